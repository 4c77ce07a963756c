"""Clocks that time work on a device: the processor's own, and CUDA events.

On the CPU a mark is the time. CUDA works asynchronously, so there a mark is an event put into the current
stream; its time is known only once the device has passed it. All events of an iteration are read after one
synchronisation at its end, so that marking never makes anything wait.
"""

from __future__ import annotations

import time
from typing import Any, Protocol

import torch

from scenarios.errors import TraceError

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


class CpuClock:
    """Marks are nanoseconds of the monotonic clock."""

    def mark(self) -> int:
        return time.perf_counter_ns()

    def settle(self) -> None:
        pass

    def since(self, origin: int, mark: int) -> int:
        return (mark - origin) * PS_PER_NS


class CudaClock:
    """Marks are CUDA events, which resolve about half a microsecond [recalled, CUDA's runtime reference]."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def mark(self) -> Any:
        event = torch.cuda.Event(enable_timing=True)
        # Hooks of the backward pass run on autograd's own thread, under the stream that computes the
        # gradient: the event belongs into the stream that is current here and now.
        event.record(torch.cuda.current_stream(self._device))
        return event

    def settle(self) -> None:
        torch.cuda.synchronize(self._device)

    def since(self, origin: Any, mark: Any) -> int:
        return max(0, round(origin.elapsed_time(mark) * PS_PER_MS))


def clock_for(device: torch.device) -> Clock:
    """The clock that can time work on `device`; TraceError if there is none."""
    if device.type == "cuda":
        return CudaClock(device)
    if device.type == "cpu":
        return CpuClock()
    raise TraceError(f"device {device.type}", "capture", "cpu or cuda, the devices that can be timed")
