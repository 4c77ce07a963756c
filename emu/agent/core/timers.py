"""Provides the agent's compiled code with a clock, a heap of timers, and calls to Python for rare cases.

Numbers follow the order of setting, here and in Python alike, so that equal times fire in that order wherever they were
set. A cancelled timer stays until it reaches the front, where its number no longer matches.
"""

from __future__ import annotations

from gradwire.emu.agent.core import layout as at
from gradwire.emu.agent.core.layout import Agent, NicFlow
from gradwire.emu.native.calls import invoke, monotonic_ns
from gradwire.emu.native.heap import pop, push
from gradwire.jit.compiled import njit


@njit
def ask(agent: Agent, request: int, first: int, second: int, third: int, fourth: int) -> int:
    """Request a rare operation from Python (ASK_*); return its result."""
    result = invoke(agent.python_function, (request, first, second, third, fourth))
    if result == at.RAISED:
        agent.failure = at.FAILED_REQUEST
        return 0
    return result


@njit
def fail(agent: Agent, reason: int, detail: int) -> None:
    """Record a reason to leave compiled code (FAILED_*), and its detail."""
    agent.failure_detail = detail
    agent.failure = reason


@njit
def clock(agent: Agent) -> int:
    """Return nanoseconds since the beginning."""
    if agent.stands_still:
        return agent.reading_ns - agent.begin_ns
    return monotonic_ns(agent.scratch) - agent.begin_ns


@njit
def scheduled(agent: Agent) -> int:
    """Return the due time of the current call; the present if it is not a timer."""
    return min(agent.due_ns, clock(agent))


@njit
def set_timer_of(agent: Agent, time_ns: int, flow: NicFlow) -> int:
    """Set a timer for a flow, or for the NIC (no flow); return its number."""
    if agent.timer_count == agent.timer_capacity:
        ask(agent, at.ASK_SPACE, 0, 0, 0, 0)
        if agent.failure:
            return 0
    agent.timers_set += 1
    number = agent.timers_set
    ahead = 1 if time_ns > clock(agent) else 0
    push(agent.timers, agent.timer_count, time_ns, number << 1 | ahead, flow.base)
    agent.timer_count += 1
    return number


@njit
def pop_timer(agent: Agent) -> None:
    pop(agent.timers, agent.timer_count)
    agent.timer_count -= 1


@njit
def first_timer(agent: Agent) -> int:
    """Remove cancelled timers from the front of the heap; return the due time of the first one, or NEVER."""
    while agent.timer_count:
        entry = agent.timers
        live_number = entry.flow.timer_number if entry.flow else agent.wake_number
        if entry.order >> 1 == live_number:
            return entry.time_ns
        pop_timer(agent)
    return at.NEVER


@njit
def record_lateness(agent: Agent, late_ns: int) -> None:
    if agent.lateness_count == agent.lateness_capacity:
        ask(agent, at.ASK_SPACE, 0, 0, 0, 0)
        if agent.failure:
            return
    agent.lateness[agent.lateness_count] = late_ns
    agent.lateness_count += 1
