"""A port as the scenario means it, packet by packet: what a kernel's port is compared with.

Strict priorities, one packet on the wire at a time, store and forward. A packet that finds the port idle goes out
untested; one that finds it busy has to fit into the buffer of the port and the part of its queue, and then meets the threshold of its queue.
Written apart from the testbed and from the simulator; times are integers of any unit.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass
class Outcome:
    """Of one packet: "sent" or why not; marked; when its transmission began (None if dropped)."""

    fate: str = "sent"
    marked: bool = False
    begins: int | None = None


@dataclass
class PortModel:
    """`byte_time`: how long a byte takes. `thresholds`, `limits`: per queue, or None."""

    byte_time: float
    queues: int
    buffer: float
    thresholds: Sequence[int] | None = None
    selective: bool = False
    limits: Sequence[int] | None = None
    free_at: float = 0.0
    peak: int = 0
    waiting: list[deque[tuple[int, Outcome]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.waiting = [deque() for _ in range(self.queues)]

    def advance(self, now: float) -> None:
        """Begin all transmissions that can begin by `now`."""
        while self.free_at <= now:
            queue = next((each for each in self.waiting if each), None)
            if queue is None:
                return
            self._begin(self.free_at, *queue.popleft())

    def _begin(self, at: float, size: int, outcome: Outcome) -> None:
        outcome.begins = round(at)
        self.free_at = at + size * self.byte_time

    def arrive(self, now: float, size: int, queue: int, ect: bool) -> Outcome:
        self.advance(now)
        outcome = Outcome()
        total = sum(each[0] for line in self.waiting for each in line)
        if self.free_at <= now and not total:
            self._begin(now, size, outcome)
            return outcome
        held = sum(each[0] for each in self.waiting[queue])
        if total + size > self.buffer or (self.limits is not None and held + size > self.limits[queue]):
            outcome.fate = "tail"
            return outcome
        if self.thresholds is not None and held >= self.thresholds[queue]:
            if ect:
                outcome.marked = True
            elif self.selective:
                outcome.fate = "selective"
                return outcome
        self.waiting[queue].append((size, outcome))
        self.peak = max(self.peak, total + size)
        return outcome
