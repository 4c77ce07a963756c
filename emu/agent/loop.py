"""`EpollLoop` serves an agent's timers, with nanosecond precision, and its files in one thread; its inner loop is
compiled.

Times are of CLOCK_MONOTONIC, minus that of the common beginning. A timerfd wakes the loop, because poll(2) rounds to
milliseconds and may be late by the timer slack. In virtual time sleeping is exact and computing takes no time, so
every call happens exactly when due, and the clock is read only after sleeping: reading it is an expensive system call
there.

The loop and the work per packet are machine code (`gradwire.emu.agent.core`). This module has the timers and files of
everything else, which the loop calls.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import time
from array import array
from collections.abc import Callable
from heapq import heappop, heappush
from typing import NamedTuple

from gradwire.emu.agent import compiled_agent
from gradwire.emu.agent.core import layout as at
from gradwire.emu.agent.core.layout import Agent, AgentTimer
from gradwire.emu.agent.shared_words import WordBlock
from gradwire.emu.native.calls import SHARE_NS
from gradwire.emu.switches.backend_kind import TestbedError
from gradwire.emu.system.processes import new_timer

Call = Callable[[], None]
RequestHandler = Callable[[int, int, int, int], "int | None"]

STALL_NS = 5_000_000
NEVER = at.NEVER
TIMERS, LATE = 256, 4096
"""Initial capacities; our choice."""
EVENT_BYTES = at.EVENTS * 16
ERROR_TEXTS = {
    at.FAILED_RULE: "the function {name} of a transport raised an exception",
    at.FAILED_PULL: "a transport tried to send packet {number}, beyond the end of its message",
}
_CALLED = ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_void_p] * 2, *[ctypes.c_int64] * 5)
"""A function of five integers with the calling convention of compiled code (`gradwire.jit.machine_code`)."""


class Timer(NamedTuple):
    """A scheduled call. `ahead`: its lateness counts."""

    time_ns: int
    number: int
    call: Call
    ahead: bool


class EpollLoop:
    """Timers and files, served one at a time, in order of time; equal times in the order in which they were set.

    agent : its record, shared with compiled code.
    asked : requests of compiled code by ASK_*, each called with four integers.
    """

    def __init__(self, beginning_ns: int = 0) -> None:
        core = compiled_agent.core()
        self._enter = core["enter"]
        self._block = WordBlock(Agent.WORDS)
        self.agent = agent = Agent(self._block.words, 0)
        self._heap = WordBlock(TIMERS * AgentTimer.WORDS)
        self._late, self._scratch = WordBlock(LATE), WordBlock(4)
        self._events, self._files = WordBlock(EVENT_BYTES // 8), WordBlock(64)
        self._timers: list[Timer] = []
        self._readers: dict[int, Call] = {}
        self._writers: dict[int, Call] = {}
        self._epoll = select.epoll()
        self._clock = new_timer()
        self._lateness = array("q")
        self._idle: Callable[[], bool] | None = None
        self._error: BaseException | None = None
        self.asked: dict[int, RequestHandler] = {
            at.ASK_TIMER: self._fire,
            at.ASK_FILE: self._serve_file,
            at.ASK_IDLE: self._use_time,
            at.ASK_SPACE: self._grow,
        }
        self._callback = _CALLED(self._serve_request)
        agent.python_function = ctypes.cast(self._callback, ctypes.c_void_p).value or 0
        agent.begin_ns = beginning_ns
        agent.due_ns = agent.python_timer_ns = agent.python_timer_number = NEVER
        agent.timers, agent.timer_capacity = self._heap.index, TIMERS
        agent.lateness, agent.lateness_capacity = self._late.index, LATE
        agent.epoll, agent.timer_file = self._epoll.fileno(), self._clock
        agent.slice_ns = SHARE_NS if os.sched_getscheduler(0) in (os.SCHED_RR, os.SCHED_FIFO) else 0
        agent.scratch, agent.events = self._scratch.address, self._events.address
        agent.files, agent.file_count = self._files.index, len(self._files.words)
        self.serve_in_core(self._clock, at.FILE_TIMER)

    # --- the clock

    def begin(self, beginning_ns: int) -> None:
        """Set the beginning of the run; earlier lateness does not count."""
        self.agent.begin_ns = beginning_ns
        self.agent.lateness_count = 0
        del self._lateness[:]

    def pause_until(self, until_ns: int) -> None:
        """Pause until a time: no timer fires, nothing is read, and the resulting lateness does not count."""
        while (remaining := until_ns + self.agent.begin_ns - time.monotonic_ns()) > 0:
            time.sleep(remaining / 1e9)
        self.agent.reading_ns = time.monotonic_ns()
        self.agent.paused_until_ns = until_ns

    def now(self) -> int:
        """Return nanoseconds since the beginning; negative before it."""
        agent = self.agent
        return (agent.reading_ns if agent.stands_still else time.monotonic_ns()) - agent.begin_ns

    # --- timers

    def at(self, time_ns: int, call: Call, *, counts: bool = True) -> None:
        """Schedule a call, at once if the time is past. `counts`: its lateness counts."""
        self.agent.timers_set = number = self.agent.timers_set + 1
        heappush(self._timers, Timer(time_ns, number, call, counts and time_ns > self.now()))
        self._update_first()

    def pending(self) -> int:
        """Return the number of timers whose lateness counts and that have not fired."""
        return sum(timer.ahead for timer in self._timers)

    def _update_first(self) -> None:
        """Store the first of the timers of Python for compiled code."""
        first = self._timers[0] if self._timers else (NEVER, NEVER)
        self.agent.python_timer_ns, self.agent.python_timer_number = first[:2]

    def _fire(self, *_: int) -> None:
        agent, timer = self.agent, heappop(self._timers)
        if timer.ahead and timer.time_ns >= agent.paused_until_ns:
            self._lateness.append(self.now() - timer.time_ns)
        self._update_first()
        agent.due_ns = timer.time_ns
        timer.call()
        agent.due_ns = NEVER

    def _grow(self, *_: int) -> None:
        agent = self.agent
        self._collect_late()
        if agent.timer_count == agent.timer_capacity:
            self._heap = self._heap.resized(2 * len(self._heap.words))
            agent.timers, agent.timer_capacity = self._heap.index, 2 * agent.timer_capacity

    def _collect_late(self) -> None:
        self._lateness.extend(self._late.words[: self.agent.lateness_count])
        self.agent.lateness_count = 0

    # --- files

    def reader(self, file: int, call: Call | None) -> None:
        self._change(file, self._readers, call)

    def writer(self, file: int, call: Call | None) -> None:
        self._change(file, self._writers, call)

    def serve_in_core(self, file: int, kind: int) -> None:
        """Have compiled code read a file (FILE_*) or note when it is writable (FILE_SPACE); FILE_OF_PYTHON ends it."""
        if file >= len(self._files.words):
            self._files = self._files.resized(2 * file)
            self.agent.files, self.agent.file_count = self._files.index, len(self._files.words)
        self._files.words[file] = kind
        if kind != at.FILE_OF_PYTHON:
            self._epoll.register(file, select.EPOLLOUT | select.EPOLLET if kind == at.FILE_SPACE else select.EPOLLIN)
        else:
            self._forget(file)

    def _forget(self, file: int) -> None:
        with contextlib.suppress(OSError):  # the file may be closed already
            self._epoll.unregister(file)

    def _change(self, file: int, table: dict[int, Call], call: Call | None) -> None:
        is_registered = file in self._readers or file in self._writers
        if call is None:
            table.pop(file, None)
        else:
            table[file] = call
        events = (select.EPOLLIN if file in self._readers else 0) | (select.EPOLLOUT if file in self._writers else 0)
        if not events:
            if is_registered:
                self._forget(file)
        elif is_registered:
            self._epoll.modify(file, events)
        else:
            self._epoll.register(file, events)

    def _serve_file(self, file: int, events: int, *_: int) -> None:
        if events & ~select.EPOLLOUT and (read := self._readers.get(file)) is not None:
            read()
        is_writable = events & select.EPOLLOUT or (events & select.EPOLLERR and file not in self._readers)
        if is_writable and (write := self._writers.get(file)) is not None:
            write()

    # --- running

    @property
    def idle(self) -> Callable[[], bool] | None:
        """Return the call for idle time, for deferred work; it is removed when it returns False."""
        return self._idle

    @idle.setter
    def idle(self, call: Callable[[], bool] | None) -> None:
        self._idle = call
        self.agent.has_idle_work = call is not None

    def _use_time(self, *_: int) -> None:
        if self._idle is not None and not self._idle():
            self.idle = None

    def stop(self) -> None:
        """Make `run` return after the current call."""
        self.agent.is_running = 0

    def run(self) -> None:
        """Call timers and files until `stop`."""
        self.agent.is_running = 1
        while self.agent.is_running:
            self.enter(at.RUN)

    def enter(self, what: int, argument: int = 0) -> None:
        """Run a command (RUN etc.) in compiled code; raise errors of it or of its calls to Python."""
        if self._enter(self._block.address, what, argument):
            self._raise()

    def _raise(self) -> None:
        agent = self.agent
        reason, agent.failure = agent.failure, 0
        number = agent.failure_detail
        if reason == at.FAILED_REQUEST and self._error is not None:
            error, self._error = self._error, None
            raise error
        if reason == at.FAILED_CALL:
            raise OSError(number, f"a system call of the agent's loop: {os.strerror(number)}")
        name = at.RULES[number] if reason == at.FAILED_RULE else ""
        raise TestbedError(ERROR_TEXTS[reason].format(number=number, name=name), "transport", "another", usage=False)

    def _serve_request(self, result: int, _: int, request: int, *arguments: int) -> int:
        """Serve a request of compiled code; return the status of a compiled function."""
        try:
            ctypes.c_int64.from_address(result).value = self.asked[request](*arguments) or 0
        except BaseException as error:
            self._error = error
            return 1
        return 0

    # --- afterwards

    def punctuality(self) -> dict[str, int]:
        """Return the lateness of timers set in advance that fired after the beginning.

        Keys: `timers`, `max_ns`, `p99_ns`, and `stalls`, those above 5 ms.
        """
        self._collect_late()
        late = sorted(self._lateness)
        return {
            "timers": len(late),
            "max_ns": late[-1] if late else 0,
            "p99_ns": late[min(len(late) * 99 // 100, len(late) - 1)] if late else 0,
            "stalls": sum(1 for lateness in reversed(late) if lateness > STALL_NS),
        }

    def close(self) -> None:
        self._epoll.close()
        os.close(self._clock)
