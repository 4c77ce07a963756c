"""Runs an agent's event loop in compiled code, firing due timers and serving ready files; `gradwire.emu.agent.loop`
wraps it.

Due timers fire first, of those set so far; then files are read or written; then it waits for the next event.
"""

from __future__ import annotations

from gradwire.emu.agent.core import layout as at
from gradwire.emu.agent.core.layout import Agent
from gradwire.emu.agent.core.nic_schedule import continue_after_departure, fire_flow_timer, serve
from gradwire.emu.agent.core.receiving import read_answers, read_data
from gradwire.emu.agent.core.timers import ask, clock, fail, first_timer, pop_timer, record_lateness
from gradwire.emu.native import calls
from gradwire.jit.compiled import njit

EPOLLOUT = 4
IDLE_NS = 5_000_000
"""Time until the next timer that allows deferred work; our choice."""


@njit
def run(agent: Agent) -> None:
    """Serve timers and files until a stop, an error, or a signal."""
    while agent.is_running and agent.failure == 0:
        more_due = fire_timers(agent)
        if agent.is_running == 0 or agent.failure:
            return
        ready = poll_files(agent) if more_due else wait_for_more(agent)
        if ready < 0:
            if calls.error() != calls.INTERRUPTED:
                fail(agent, at.FAILED_CALL, calls.error())
            return
        if agent.stands_still:
            agent.reading_ns = calls.monotonic_ns(agent.scratch)
        for i in range(ready):
            event = agent.events + i * calls.EVENT_BYTES
            serve_file(agent, calls.half(event + calls.EVENT_FILE), calls.half(event))
            if agent.is_running == 0 or agent.failure:
                return
            calls.yield_after_slice(agent)


@njit
def sleep(agent: Agent) -> int:
    """Wait until a file is ready or a timer fires; return the number of events."""
    began = calls.yield_after_slice(agent)
    ready = calls.wait(agent.epoll, agent.events, at.EVENTS, -1)
    if began:
        now = calls.monotonic_ns(agent.scratch)
        if now - began > calls.AT_ONCE_NS:
            agent.slice_begin_ns = now
    return ready


@njit
def poll_files(agent: Agent) -> int:
    """Poll the files while more timers are due; return the number of events. In virtual time reading the clock takes a
    nanosecond, so that an endless loop, which is possible here, makes progress."""
    if agent.stands_still:
        calls.monotonic_ns(agent.scratch)
    return calls.wait(agent.epoll, agent.events, at.EVENTS, 0)


@njit
def serve_file(agent: Agent, file: int, events: int) -> None:
    kind = agent.files[file] if file < agent.file_count else 0
    if kind == at.FILE_TIMER:
        return
    if kind == at.FILE_DATA:
        if events & ~EPOLLOUT:
            read_data(agent)
    elif kind == at.FILE_ANSWERS:
        if events & ~EPOLLOUT:
            read_answers(agent, file)
    elif kind == at.FILE_SPACE:
        continue_after_departure(agent)
    else:
        ask(agent, at.ASK_FILE, file, events, 0, 0)


@njit
def wait_for_more(agent: Agent) -> int:
    """Wait until a file is ready or a timer is due, doing deferred work; return the number of events."""
    while agent.has_idle_work and min(first_timer(agent), agent.python_timer_ns) >= clock(agent) + IDLE_NS:
        ready = calls.wait(agent.epoll, agent.events, at.EVENTS, 0)
        if ready:
            return ready
        ask(agent, at.ASK_IDLE, 0, 0, 0, 0)
        if agent.failure:
            return 0
    return sleep(agent)


@njit
def fire_timers(agent: Agent) -> bool:
    """Fire the due timers of those set so far; return True if timers set meanwhile are due."""
    last, now = agent.timers_set, clock(agent)
    while True:
        time = first_timer(agent)
        number = agent.timers.order >> 1
        is_of_python = time > agent.python_timer_ns or (
            time == agent.python_timer_ns and number > agent.python_timer_number
        )
        if is_of_python:
            time, number = agent.python_timer_ns, agent.python_timer_number
        if time == at.NEVER:
            break
        if time > now:
            now = clock(agent)
            if time > now:
                break
        if number > last:
            return True
        if is_of_python:
            ask(agent, at.ASK_TIMER, 0, 0, 0, 0)
        else:
            fire_first(agent, time)
        if agent.is_running == 0 or agent.failure:
            return False
        calls.yield_after_slice(agent)
    time_ns = time + agent.begin_ns if time != at.NEVER else 0
    if time_ns != agent.armed_ns:
        agent.armed_ns = time_ns
        if calls.set_timer(agent.timer_file, time_ns, agent.scratch) < 0:
            fail(agent, at.FAILED_CALL, calls.error())
    return False


@njit
def fire_first(agent: Agent, time: int) -> None:
    entry = agent.timers
    ahead, flow = entry.order & 1, entry.flow
    pop_timer(agent)
    if ahead and time >= agent.paused_until_ns:
        record_lateness(agent, clock(agent) - time)
    agent.due_ns = time
    if flow:
        fire_flow_timer(agent, flow)
    else:
        agent.wake_number = 0
        serve(agent)
    agent.due_ns = at.NEVER
