"""Compiled loop of an agent (see `gradwire.emu.agent.loop`).

Due timers fire first, of those set so far; then files are read or written; then it waits for the next event.
"""

from __future__ import annotations

from gradwire.emu.agent.core.layout import (
    ASK_FILE,
    ASK_IDLE,
    ASK_TIMER,
    BROKEN_CALL,
    EVENTS,
    FILE_ANSWERS,
    FILE_DATA,
    FILE_ROOM,
    FILE_TIMER,
    NEVER,
    W_ARMED,
    W_BEGINNING,
    W_BROKEN,
    W_CALLED,
    W_EPOLL,
    W_ERRNO,
    W_EVENTS,
    W_FILES,
    W_FILES_ROOM,
    W_HEAP,
    W_HEAP_COUNT,
    W_IDLE,
    W_PYTHON_NUMBER,
    W_PYTHON_TIME,
    W_RUNNING,
    W_SEEN,
    W_SET,
    W_SHARE,
    W_SPEC,
    W_STILL,
    W_STOOD_UNTIL,
    W_TIMER,
    W_TURN,
    W_WAKE,
)
from gradwire.emu.agent.core.nic_schedule import has_left, serve, went_off
from gradwire.emu.agent.core.receiving import read_answers, read_data
from gradwire.emu.agent.core.timers import ask, clock, first_timer, note_late, pop
from gradwire.emu.native.calls import (
    EVENT_BYTES,
    EVENT_FILE,
    INTERRUPTED,
    error,
    give_way,
    half,
    monotonic_ns,
    set_timer,
    wait,
    words_at,
)
from gradwire.emu.system.rt_scheduling import AT_ONCE_NS
from gradwire.jit.compiled import njit

EPOLLOUT = 4
IDLE_NS = 5_000_000
"""Time until the next timer that allows deferred work; our choice."""


@njit
def run(A):
    """Serve timers and files until a stop, an error, or a signal."""
    while A[W_RUNNING] and A[W_BROKEN] == 0:
        waiting = due(A)
        if A[W_RUNNING] == 0 or A[W_BROKEN]:
            return
        ready = look(A) if waiting else wait_for_more(A)
        if ready < 0:
            if error() != INTERRUPTED:
                A[W_ERRNO] = error()
                A[W_BROKEN] = BROKEN_CALL
            return
        if A[W_STILL]:
            A[W_SEEN] = monotonic_ns(A[W_SPEC])
        for i in range(ready):
            event = A[W_EVENTS] + i * EVENT_BYTES
            happened(A, half(event + EVENT_FILE), half(event))
            if A[W_RUNNING] == 0 or A[W_BROKEN]:
                return
            share(A)


@njit
def share(A):
    """Yield to other processes if this one's turn has been long enough; return the time if turns are shared. Otherwise
    they would be late by as long as this one has work, such as the messages of an iteration that begins."""
    if A[W_SHARE] == 0:
        return 0
    now = monotonic_ns(A[W_SPEC])
    if now - A[W_TURN] > A[W_SHARE]:
        give_way()
        A[W_TURN] = now = monotonic_ns(A[W_SPEC])
    return now


@njit
def sleep(A):
    """Wait until a file is ready or a timer fires; return the number of events."""
    began = share(A)
    ready = wait(A[W_EPOLL], A[W_EVENTS], EVENTS, -1)
    if began:
        now = monotonic_ns(A[W_SPEC])
        if now - began > AT_ONCE_NS:
            A[W_TURN] = now
    return ready


@njit
def look(A):
    """Poll the files while more timers are due; return the number of events. In virtual time reading the clock takes a
    nanosecond, so that an endless loop, which is possible here, makes progress."""
    if A[W_STILL]:
        monotonic_ns(A[W_SPEC])
    return wait(A[W_EPOLL], A[W_EVENTS], EVENTS, 0)


@njit
def happened(A, file, events):
    """Serve a file that is ready."""
    kind = words_at(A[W_FILES])[file] if file < A[W_FILES_ROOM] else 0
    if kind == FILE_TIMER:
        return
    if kind == FILE_DATA:
        if events & ~EPOLLOUT:
            read_data(A)
    elif kind == FILE_ANSWERS:
        if events & ~EPOLLOUT:
            read_answers(A, file)
    elif kind == FILE_ROOM:
        has_left(A)
    else:
        ask(A, ASK_FILE, file, events, 0, 0)


@njit
def wait_for_more(A):
    """Wait until a file is ready or a timer is due, doing deferred work; return the number of events."""
    while A[W_IDLE] and earliest(A) >= clock(A) + IDLE_NS:
        ready = wait(A[W_EPOLL], A[W_EVENTS], EVENTS, 0)
        if ready:
            return ready
        ask(A, ASK_IDLE, 0, 0, 0, 0)
        if A[W_BROKEN]:
            return 0
    return sleep(A)


@njit
def earliest(A):
    """Return the due time of the next timer, or NEVER."""
    return min(first_timer(A), A[W_PYTHON_TIME])


@njit
def due(A):
    """Fire the due timers of those set so far; return True if timers set meanwhile are due."""
    last, now = A[W_SET], clock(A)
    while True:
        time = first_timer(A)
        number = words_at(A[W_HEAP])[1] >> 1
        theirs = time > A[W_PYTHON_TIME] or (time == A[W_PYTHON_TIME] and number > A[W_PYTHON_NUMBER])
        if theirs:
            time, number = A[W_PYTHON_TIME], A[W_PYTHON_NUMBER]
        if time == NEVER:
            break
        if time > now:
            now = clock(A)
            if time > now:
                break
        if number > last:
            return True
        if theirs:
            ask(A, ASK_TIMER, 0, 0, 0, 0)
        else:
            go_off(A, time)
        if A[W_RUNNING] == 0 or A[W_BROKEN]:
            return False
        share(A)
    when = time + A[W_BEGINNING] if time != NEVER else 0
    if when != A[W_ARMED]:
        A[W_ARMED] = when
        if set_timer(A[W_TIMER], when, A[W_SPEC]) < 0:
            A[W_ERRNO] = error()
            A[W_BROKEN] = BROKEN_CALL
    return False


@njit
def go_off(A, time):
    """Fire the first timer of the heap."""
    H = words_at(A[W_HEAP])
    ahead, what = H[1] & 1, H[2]
    pop(H, A[W_HEAP_COUNT])
    A[W_HEAP_COUNT] -= 1
    if ahead and time >= A[W_STOOD_UNTIL]:
        note_late(A, clock(A) - time)
    A[W_CALLED] = time
    if what:
        went_off(A, what)
    else:
        A[W_WAKE] = 0
        serve(A)
    A[W_CALLED] = NEVER
