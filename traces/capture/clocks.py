"""Clocks that time work on a device: the processor's own, and CUDA events.

On the CPU a mark is the time. CUDA works asynchronously, so there a mark is an event put into the current
stream; its time is known only once the device has passed it. All events of an iteration are read after one
synchronisation at its end, so that marking never makes anything wait. Events are used again in the next
iteration: making one costs more than recording it.

Some work must happen in the middle of an iteration and is none of the training's: reading a gradient before it
is averaged away, or waiting for parameters of other workers. A `Timeline` pauses for it: marks are counted from
the start of the iteration without the pauses before them.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

import torch

from gradwire.scenarios.errors import TraceError

PS_PER_NS = 1_000
PS_PER_MS = 1_000_000_000


class Clock(Protocol):
    """What the recorder needs of a clock; marks are opaque to it."""

    def mark(self) -> Any:
        """Note this moment in the device's work."""

    def settle(self) -> None:
        """Wait until all marks can be read."""

    def since(self, origin: Any, mark: Any) -> int:
        """Picoseconds from `origin` to `mark`, not negative; only after `settle`."""
        ...

    def release(self) -> None:
        """All marks made so far have been read and will not be needed again."""


class CpuClock:
    """Marks are nanoseconds of the monotonic clock."""

    def mark(self) -> int:
        return time.perf_counter_ns()

    def settle(self) -> None:
        pass

    def since(self, origin: int, mark: int) -> int:
        return (mark - origin) * PS_PER_NS

    def release(self) -> None:
        pass


class CudaClock:
    """Marks are CUDA events, which resolve about half a microsecond [recalled, CUDA's runtime reference]."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._free: list[Any] = []
        self._used: list[Any] = []

    def mark(self) -> Any:
        event = self._free.pop() if self._free else torch.cuda.Event(enable_timing=True)
        self._used.append(event)
        # Hooks of the backward pass run on autograd's own thread, under the stream that computes the
        # gradient: the event belongs into the stream that is current here and now.
        event.record(torch.cuda.current_stream(self._device))
        return event

    def settle(self) -> None:
        torch.cuda.synchronize(self._device)

    def since(self, origin: Any, mark: Any) -> int:
        return max(0, round(origin.elapsed_time(mark) * PS_PER_MS))

    def release(self) -> None:
        self._free += self._used
        self._used = []


def clock_for(device: torch.device) -> Clock:
    """The clock that can time work on `device`; TraceError if there is none."""
    if device.type == "cuda":
        return CudaClock(device)
    if device.type == "cpu":
        return CpuClock()
    raise TraceError(f"device {device.type}", "capture", "cpu or cuda, the devices that can be timed")


class Mark(NamedTuple):
    """A moment of an iteration: the clock's mark, and how many pauses had ended before it."""

    moment: Any
    pauses: int


class Timeline:
    """Marks of one iteration and the pauses between them. One thread at a time may use it: autograd's thread
    works while the one that called backward waits.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._pauses: list[tuple[Any, Any]] = []
        self._depth = 0

    def mark(self) -> Mark:
        """Note this moment."""
        return Mark(self._clock.mark(), len(self._pauses))

    @contextlib.contextmanager
    def pause(self) -> Iterator[None]:
        """What happens inside takes no time; a pause within a pause is part of it."""
        self._depth += 1
        if self._depth > 1:
            try:
                yield
            finally:
                self._depth -= 1
            return
        start = self._clock.mark()
        try:
            yield
        finally:
            self._depth -= 1
            self._pauses.append((start, self._clock.mark()))

    def since(self, origin: Mark, mark: Mark) -> int:
        """Picoseconds from `origin` to `mark` without the pauses in between, not negative; only after the clock
        has settled.
        """
        paused = sum(self._clock.since(*pause) for pause in self._pauses[origin.pauses : mark.pauses])
        return max(0, self._clock.since(origin.moment, mark.moment) - paused)

    def whole(self, origin: Mark, mark: Mark) -> int:
        """Picoseconds from `origin` to `mark`, pauses included; only after the clock has settled."""
        return self._clock.since(origin.moment, mark.moment)
