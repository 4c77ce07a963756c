"""Clocks time work on the processor or a CUDA device; a `Timeline` excludes pauses from an iteration's times.

On the CPU a mark is the time. CUDA works asynchronously, so there a mark is an event put into the current stream; its
time is known only once the device has passed it. All events of an iteration are read after one synchronisation at its
end, so that marking never blocks. Events are reused in the next iteration: creating one costs more than recording it.

Some work in the middle of an iteration is not part of the training: reading a gradient before it is averaged, or
waiting for parameters of other workers. A `Timeline` pauses for it: times exclude the pauses.
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
    """Clock as the recorder needs it; marks are opaque to it."""

    def mark(self) -> Any:
        """Mark this moment in the device's work."""

    def settle(self) -> None:
        """Wait until all marks can be read."""

    def since(self, origin: Any, mark: Any) -> int:
        """Return the picoseconds from `origin` to `mark`, not negative; only after `settle`."""
        ...

    def release(self) -> None:
        """Release all marks for reuse, after they have been read."""


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
    """Marks are CUDA events, with a resolution of about half a microsecond [recalled, CUDA's runtime reference]."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._free: list[Any] = []
        self._used: list[Any] = []

    def mark(self) -> Any:
        event = self._free.pop() if self._free else torch.cuda.Event(enable_timing=True)
        self._used.append(event)
        # Hooks of the backward pass run on autograd's own thread, under the stream that computes the
        # gradient: so the event goes into the stream that is current here.
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
    """Return the clock for work on `device`; TraceError if there is none."""
    if device.type == "cuda":
        return CudaClock(device)
    if device.type == "cpu":
        return CpuClock()
    raise TraceError(f"device {device.type}", "capture", "cpu or cuda, the devices that can be timed")


class Mark(NamedTuple):
    """A moment of an iteration: the clock's mark, and the number of pauses that had ended before it."""

    moment: Any
    pauses: int


class Timeline:
    """Marks of one iteration and the pauses between them. Only one thread at a time may use it: autograd's thread works
    while the caller of backward waits."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._pauses: list[tuple[Any, Any]] = []
        self._depth = 0

    def mark(self) -> Mark:
        """Mark this moment."""
        return Mark(self._clock.mark(), len(self._pauses))

    @contextlib.contextmanager
    def pause(self) -> Iterator[None]:
        """Stop the clock within the block; a nested pause is part of the outer one."""
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
        """Return the picoseconds from `origin` to `mark` without pauses, not negative; only after the clock has
        settled."""
        paused = sum(self._clock.since(*pause) for pause in self._pauses[origin.pauses : mark.pauses])
        return max(0, self._clock.since(origin.moment, mark.moment) - paused)

    def with_pauses(self, origin: Mark, mark: Mark) -> int:
        """Return the picoseconds from `origin` to `mark`, pauses included; only after the clock has settled."""
        return self._clock.since(origin.moment, mark.moment)
