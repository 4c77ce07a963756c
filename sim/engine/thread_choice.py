"""`ThreadChoice` chooses one thread or all for the engine's next call, by measured speed.

Threads meet at a barrier after every window. That pays if windows have many packets, which the engine sees itself, and
if every thread has a processor, which only the clock shows: on a busy machine, a thread that waits for its turn holds
up all others window after window, and two threads can be ten times slower than one. So the speed of one thread is
measured once all have advanced together for a second, or for a tenth of one if they got less processor time than they
could use; whenever all together are slower than one, or get less processor time than one could use, they pause, each
time for twice as long.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Literal

from gradwire.jit.records.constants import BUSY, QUIET

SAMPLE_S = 0.01  # measured time of one thread or of all, long enough to exceed noise
BUSY_SAMPLE_S = 0.05  # where processors are scarce: several turns of some ms that the kernel gives to each process
SUSPECT_S, TRUST_S = 0.1, 1.0  # time of all together before one is measured
FULL_SHARE = 0.9  # of the processor time that all together could use
SAMPLE_LASTS_S = 1.0  # so measuring costs about 1 %
SLOWER = 0.9  # of one thread's speed
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.25, 10.0

State = Literal["quiet", "sampling", "together", "paused"]


class ThreadChoice:
    """Decides after every call of the engine how the next one advances.

    Attributes
    ----------
    state : "quiet": one thread, until the engine finds windows of many packets. "sampling": one thread, to measure its
        speed. "together": all threads, until windows have few packets. "paused": one thread, because all together were
        slower.
    """

    def __init__(self, threads: int, clock: Callable[[], float] = time.perf_counter) -> None:
        self.threads = threads
        self.state: State = "quiet"
        self._clock = clock
        self._is_fixed = False
        self._one, self._all = Speed(), Speed()
        self._speed_of_one = 0.0
        self._measured_at = float("-inf")
        self._paused_until = float("-inf")
        self._pause_s = FIRST_PAUSE_S

    @property
    def is_single_threaded(self) -> bool:
        """True if one thread does the work of all in the next call."""
        return self.state != "together"

    @property
    def is_forced(self) -> bool:
        """True if the engine must not return because of the number of packets in its windows."""
        return self._is_fixed or self.state in ("sampling", "paused")

    @property
    def is_alone_for_long(self) -> bool:
        """True if the other threads should sleep, as they would take processor time from the one that works."""
        return not self._is_fixed and self.state in ("sampling", "paused")

    def fix(self, alone: bool) -> None:
        """Use one mode for every call, for tests."""
        self._is_fixed, self.state = True, "quiet" if alone else "together"

    def note(self, status: int, packets: int, seconds: float, processor_s: float) -> bool:
        """Record a call of the engine: return status, packets handled, seconds, and processor seconds. Returns True if
        one thread begins to be measured, or all begin to advance together: the next call should be short."""
        if self.threads == 1 or self._is_fixed:
            return False
        now, before = self._clock(), self.state
        if before == "quiet" and status == BUSY:
            self.state = "together"
        elif before in ("sampling", "paused"):
            self._one.add(packets, seconds, processor_s)
            if self._one.seconds >= self._one.sample_s(1) and (before == "sampling" or now >= self._paused_until):
                self._speed_of_one, self._measured_at = self._one.speed, now
                self.state = "together"
        elif before == "together":
            self._all.add(packets, seconds, processor_s)
            if status == QUIET:
                self.state = "quiet"
            if self._all.seconds >= self._all.sample_s(self.threads):
                self._judge(now)
        return before != self.state and self.state in ("sampling", "together")

    def _judge(self, now: float) -> None:
        """Pause if all together have been slower than one thread, or had less processor time than one could use."""
        is_starved = self._all.processor_s < FULL_SHARE * self._all.seconds
        if self._all.speed >= SLOWER * self._speed_of_one and not is_starved:
            if self._all.seconds < (TRUST_S if self._all.is_full(self.threads) else SUSPECT_S):
                return
            if self._speed_of_one:
                self._pause_s = FIRST_PAUSE_S
            else:
                self.state = "sampling"
        elif now - self._measured_at > SAMPLE_LASTS_S and not is_starved:
            self.state = "sampling"  # packets may cost more than at the last measurement
        else:
            self.state = "paused"
            self._paused_until = now + self._pause_s
            self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
        self._one, self._all = Speed(), Speed()


class Speed:
    """Packets handled over seconds taken, summed over calls."""

    def __init__(self) -> None:
        self.packets, self.seconds, self.processor_s = 0, 0.0, 0.0

    def add(self, packets: int, seconds: float, processor_s: float) -> None:
        """Add one call."""
        self.packets += packets
        self.seconds += seconds
        self.processor_s += processor_s

    def is_full(self, threads: int) -> bool:
        """Return True if this number of threads got the processor time that they could use."""
        return self.processor_s >= FULL_SHARE * threads * self.seconds

    def sample_s(self, threads: int) -> float:
        """Return how many seconds a measurement of this number of threads must have."""
        return SAMPLE_S if self.is_full(threads) else BUSY_SAMPLE_S

    @property
    def speed(self) -> float:
        """Packets per second."""
        return self.packets / self.seconds
