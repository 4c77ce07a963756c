"""The loop of an agent: timers to the nanosecond and files, in one thread.

Times are of CLOCK_MONOTONIC, minus that of the common beginning. A timerfd wakes the loop, because what poll(2) offers
is rounded to milliseconds and may be late by the timer slack. Under virtual time sleeping is exact and computing takes
no time, so everything happens exactly when it was asked for, and the clock need not be read but after sleeping: there
reading it is a system call, at the price of all others.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import struct
import time
from array import array
from collections.abc import Callable
from heapq import heappop, heappush

from gradwire.emu.agent import base
from gradwire.emu.system.sockets import LIBC

Call = Callable[[], None]

CLOCK_MONOTONIC = 1
TIMER_FLAGS = 0o2000000 | 0o4000  # close on exec, do not block
ABSOLUTE = 1
SECOND = 1_000_000_000
STALL_NS = 5_000_000
NEVER = 1 << 62
IDLE_NS = 5_000_000
"""So long nothing has to be due before work is done that could wait; our choice."""
TIMER = struct.Struct("=qqqq")


class Timer:
    """Something to be called at a time; `call` is None once it has been, or has been cancelled."""

    __slots__ = ("ahead", "call", "number", "time")

    def __init__(self, time_ns: int, number: int, call: Call, ahead: bool) -> None:
        self.time, self.number, self.call, self.ahead = time_ns, number, call, ahead

    call: Call | None

    def __lt__(self, other: Timer) -> bool:
        return (self.time, self.number) < (other.time, other.number)


class EpollLoop:
    """See `gradwire.emu.agent.base.Loop`."""

    def __init__(self, beginning_ns: int = 0) -> None:
        self.beginning = beginning_ns
        self._timers: list[Timer] = []
        self._set = 0
        self._readers: dict[int, Call] = {}
        self._writers: dict[int, Call] = {}
        self._epoll = select.epoll()
        self._clock = LIBC.timerfd_create(CLOCK_MONOTONIC, TIMER_FLAGS)
        if self._clock < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        self._epoll.register(self._clock, select.EPOLLIN)
        self._armed = 0
        self._setting = ctypes.create_string_buffer(TIMER.size)
        self._running = False
        self._called = NEVER
        self._clock_ns: Callable[[], int] = time.monotonic_ns
        self._seen: int | None = None
        self._stood_until = 0
        self.idle: Callable[[], bool] | None = None
        """called where nothing is due for a while, for work that can be done at any time; forgotten when it says that
        there is no more"""
        self.lateness = array("q")
        """ns that timers were late, of those that lay ahead when they were set and went off after the beginning"""

    def begin(self, beginning_ns: int) -> None:
        """Times are of the run from now on; what was late before it does not count."""
        self.beginning = beginning_ns
        del self.lateness[:]

    def stand_still(self) -> None:
        """From now on time only passes while this waits, as it does under virtual time."""
        self._seen = time.monotonic_ns()
        self._clock_ns = self._last_seen

    def stand(self, until_ns: int) -> None:
        """Do nothing at all until a time: no timer goes off and nothing is read. What is late because of it does not
        count as late."""
        while (left := until_ns + self.beginning - time.monotonic_ns()) > 0:
            time.sleep(left / 1e9)
        if self._seen is not None:
            self._seen = time.monotonic_ns()
        self._stood_until = until_ns

    def _last_seen(self) -> int:
        assert self._seen is not None
        return self._seen

    def now(self) -> int:
        return self._clock_ns() - self.beginning

    def scheduled(self) -> int:
        return min(self._called, self.now())

    def at(self, time_ns: int, call: Call, *, counts: bool = True) -> Timer:
        """See `Loop`; `counts`: whether it matters if this is late."""
        self._set += 1
        timer = Timer(time_ns, self._set, call, counts and time_ns > self.now())
        heappush(self._timers, timer)
        return timer

    def cancel(self, timer: base.Timer | None) -> None:
        if timer is not None:
            timer.call = None

    def reader(self, file: int, call: Call | None) -> None:
        self._change(file, self._readers, call)

    def writer(self, file: int, call: Call | None) -> None:
        self._change(file, self._writers, call)

    def _change(self, file: int, table: dict[int, Call], call: Call | None) -> None:
        known = file in self._readers or file in self._writers
        if call is None:
            table.pop(file, None)
        else:
            table[file] = call
        events = (select.EPOLLIN if file in self._readers else 0) | (
            select.EPOLLOUT if file in self._writers else 0
        )
        if not events:
            if known:
                with contextlib.suppress(OSError):  # the file may be closed already
                    self._epoll.unregister(file)
        elif known:
            self._epoll.modify(file, events)
        else:
            self._epoll.register(file, events)

    def stop(self) -> None:
        """`run` returns after what is being called now."""
        self._running = False

    def run(self) -> None:
        """Call timers and files until `stop`."""
        self._running = True
        epoll, readers, writers = self._epoll, self._readers, self._writers
        while self._running:
            waiting = self._due()
            if not self._running:
                return
            found = epoll.poll(0) if waiting else self._wait()
            if self._seen is not None:
                self._seen = time.monotonic_ns()
            for file, events in found:
                if events & ~select.EPOLLOUT:
                    call = readers.get(file)
                    if call is not None:
                        call()
                if events & select.EPOLLOUT or (events & select.EPOLLERR and file not in readers):
                    call = writers.get(file)
                    if call is not None:
                        call()
                if not self._running:
                    return

    def _wait(self) -> list[tuple[int, int]]:
        """Files that can be read or written, as soon as there are some or a timer is due."""
        while self.idle is not None and not (self._timers and self._timers[0].time < self.now() + IDLE_NS):
            found = self._epoll.poll(0)
            if found:
                return found
            if not self.idle():
                self.idle = None
        return self._epoll.poll(-1)

    def _due(self) -> bool:
        """Call the timers that are due, of those set so far. True if some are due that were set meanwhile."""
        timers, last, clock = self._timers, self._set, self._clock_ns
        now = clock() - self.beginning
        while timers:
            first = timers[0]
            if first.call is None:
                heappop(timers)
                continue
            if first.time > now:
                now = clock() - self.beginning
                if first.time > now:
                    break
            if first.number > last:
                return True
            heappop(timers)
            if first.ahead and first.time >= self._stood_until:
                self.lateness.append(clock() - self.beginning - first.time)
            call, first.call = first.call, None
            self._called = first.time
            call()
            self._called = NEVER
            if not self._running:
                return False
        when = timers[0].time + self.beginning if timers else 0
        if when != self._armed:
            self._arm(when)
        return False

    def _arm(self, when: int) -> None:
        """Have the timerfd wake at a time of the monotonic clock, 0: never. Setting it also makes it unreadable."""
        self._armed = when
        TIMER.pack_into(self._setting, 0, 0, 0, *divmod(when, SECOND))
        if LIBC.timerfd_settime(self._clock, ABSOLUTE, self._setting, None) < 0:
            raise OSError(ctypes.get_errno(), "timerfd_settime")

    def punctuality(self) -> dict[str, int]:
        """How late timers were: `timers`, `max_ns`, `p99_ns`, and `stalls`, those above 5 ms."""
        late = sorted(self.lateness)
        return {
            "timers": len(late),
            "max_ns": late[-1] if late else 0,
            "p99_ns": late[min(len(late) * 99 // 100, len(late) - 1)] if late else 0,
            "stalls": sum(1 for each in reversed(late) if each > STALL_NS),
        }

    def pending(self) -> list[Timer]:
        """Timers that are still to go off, earliest first."""
        return sorted(timer for timer in self._timers if timer.call is not None)

    def close(self) -> None:
        """Give back its files."""
        self._epoll.close()
        os.close(self._clock)
