"""Compiled loop of an agent (see `gradwire.emu.agent.loop`).

Due timers fire first, of those set so far; then files are read or written; then it waits for the next event.
"""

from __future__ import annotations

from gradwire.emu.agent.core import layout as at
from gradwire.emu.agent.core.nic_schedule import has_left, serve, went_off
from gradwire.emu.agent.core.receiving import read_answers, read_data
from gradwire.emu.agent.core.timers import ask, clock, first_timer, note_late
from gradwire.emu.native import calls
from gradwire.emu.native.heap import pop
from gradwire.jit.compiled import njit

EPOLLOUT = 4
IDLE_NS = 5_000_000
"""Time until the next timer that allows deferred work; our choice."""


@njit
def run(A):
    """Serve timers and files until a stop, an error, or a signal."""
    while A[at.W_RUNNING] and A[at.W_BROKEN] == 0:
        waiting = due(A)
        if A[at.W_RUNNING] == 0 or A[at.W_BROKEN]:
            return
        ready = look(A) if waiting else wait_for_more(A)
        if ready < 0:
            if calls.error() != calls.INTERRUPTED:
                A[at.W_ERRNO] = calls.error()
                A[at.W_BROKEN] = at.BROKEN_CALL
            return
        if A[at.W_STILL]:
            A[at.W_SEEN] = calls.monotonic_ns(A[at.W_SPEC])
        for i in range(ready):
            event = A[at.W_EVENTS] + i * calls.EVENT_BYTES
            happened(A, calls.half(event + calls.EVENT_FILE), calls.half(event))
            if A[at.W_RUNNING] == 0 or A[at.W_BROKEN]:
                return
            share(A)


@njit
def share(A):
    """Yield to other processes if this one's turn has been long enough; return the time if turns are shared. Otherwise
    they would be late by as long as this one has work, such as the messages of an iteration that begins."""
    if A[at.W_SHARE] == 0:
        return 0
    now = calls.monotonic_ns(A[at.W_SPEC])
    if now - A[at.W_TURN] > A[at.W_SHARE]:
        calls.give_way()
        A[at.W_TURN] = now = calls.monotonic_ns(A[at.W_SPEC])
    return now


@njit
def sleep(A):
    """Wait until a file is ready or a timer fires; return the number of events."""
    began = share(A)
    ready = calls.wait(A[at.W_EPOLL], A[at.W_EVENTS], at.EVENTS, -1)
    if began:
        now = calls.monotonic_ns(A[at.W_SPEC])
        if now - began > calls.AT_ONCE_NS:
            A[at.W_TURN] = now
    return ready


@njit
def look(A):
    """Poll the files while more timers are due; return the number of events. In virtual time reading the clock takes a
    nanosecond, so that an endless loop, which is possible here, makes progress."""
    if A[at.W_STILL]:
        calls.monotonic_ns(A[at.W_SPEC])
    return calls.wait(A[at.W_EPOLL], A[at.W_EVENTS], at.EVENTS, 0)


@njit
def happened(A, file, events):
    """Serve a file that is ready."""
    kind = calls.words_at(A[at.W_FILES])[file] if file < A[at.W_FILES_ROOM] else 0
    if kind == at.FILE_TIMER:
        return
    if kind == at.FILE_DATA:
        if events & ~EPOLLOUT:
            read_data(A)
    elif kind == at.FILE_ANSWERS:
        if events & ~EPOLLOUT:
            read_answers(A, file)
    elif kind == at.FILE_ROOM:
        has_left(A)
    else:
        ask(A, at.ASK_FILE, file, events, 0, 0)


@njit
def wait_for_more(A):
    """Wait until a file is ready or a timer is due, doing deferred work; return the number of events."""
    while A[at.W_IDLE] and earliest(A) >= clock(A) + IDLE_NS:
        ready = calls.wait(A[at.W_EPOLL], A[at.W_EVENTS], at.EVENTS, 0)
        if ready:
            return ready
        ask(A, at.ASK_IDLE, 0, 0, 0, 0)
        if A[at.W_BROKEN]:
            return 0
    return sleep(A)


@njit
def earliest(A):
    """Return the due time of the next timer, or NEVER."""
    return min(first_timer(A), A[at.W_PYTHON_TIME])


@njit
def due(A):
    """Fire the due timers of those set so far; return True if timers set meanwhile are due."""
    last, now = A[at.W_SET], clock(A)
    while True:
        time = first_timer(A)
        number = calls.words_at(A[at.W_HEAP])[1] >> 1
        theirs = time > A[at.W_PYTHON_TIME] or (time == A[at.W_PYTHON_TIME] and number > A[at.W_PYTHON_NUMBER])
        if theirs:
            time, number = A[at.W_PYTHON_TIME], A[at.W_PYTHON_NUMBER]
        if time == at.NEVER:
            break
        if time > now:
            now = clock(A)
            if time > now:
                break
        if number > last:
            return True
        if theirs:
            ask(A, at.ASK_TIMER, 0, 0, 0, 0)
        else:
            go_off(A, time)
        if A[at.W_RUNNING] == 0 or A[at.W_BROKEN]:
            return False
        share(A)
    when = time + A[at.W_BEGINNING] if time != at.NEVER else 0
    if when != A[at.W_ARMED]:
        A[at.W_ARMED] = when
        if calls.set_timer(A[at.W_TIMER], when, A[at.W_SPEC]) < 0:
            A[at.W_ERRNO] = calls.error()
            A[at.W_BROKEN] = at.BROKEN_CALL
    return False


@njit
def go_off(A, time):
    """Fire the first timer of the heap."""
    H = calls.words_at(A[at.W_HEAP])
    ahead, what = H[1] & 1, H[2]
    pop(H, A[at.W_HEAP_COUNT])
    A[at.W_HEAP_COUNT] -= 1
    if ahead and time >= A[at.W_STOOD_UNTIL]:
        note_late(A, clock(A) - time)
    A[at.W_CALLED] = time
    if what:
        went_off(A, what)
    else:
        A[at.W_WAKE] = 0
        serve(A)
    A[at.W_CALLED] = at.NEVER
