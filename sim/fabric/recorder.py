"""What comes of steps, remembered for as long as it may come again, and how it does: later, with higher numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from gradwire.experiment.program import Part
from gradwire.experiment.repeating import ROTATES
from gradwire.scenarios.arrays import Ints
from gradwire.sim.fabric.counts import Counts
from gradwire.sim.fabric.over import Over, Taker


class Recorder:
    """Takes what is over for somebody, and remembers what it was as long as it may be wanted again."""

    def __init__(self, taker: Taker) -> None:
        self.taker = taker
        self.taken: list[tuple[Part, int, Over, Counts, Ints]] = []
        self.dropped: list[Ints] = []
        self.before = (0, 0)
        """how many entries of either list have been forgotten"""
        self.on = False

    def step(self, part: Part, number: int, over: Over, counts: Counts, missing: Ints) -> None:
        self.taker.step(part, number, over, counts, missing)
        if self.on:
            self.taken.append((part, number, over, counts, missing))

    def drops(self, rows: Ints) -> None:
        self.taker.drops(rows)
        if self.on:
            self.dropped.append(rows)

    @property
    def seen(self) -> tuple[int, int]:
        """How many entries there have been in either list."""
        return self.before[0] + len(self.taken), self.before[1] + len(self.dropped)

    def forget(self, taken: int, dropped: int) -> None:
        """The first so many entries are wanted no more."""
        del self.taken[: taken - self.before[0]], self.dropped[: dropped - self.before[1]]
        self.before = taken, dropped


class Shift(NamedTuple):
    """By how much what comes again differs: steps, messages, picoseconds."""

    steps: int
    messages: int
    by: int

    def step(self, over: Over, counts: Counts, missing: Ints) -> tuple[Over, Counts, Ints]:
        """A step that is over, what was counted of its messages, and what they lack, so much later."""
        rows = over.step.messages
        moved = replace(rows, **{name: getattr(rows, name) + self.steps for name in ROTATES})
        notes = np.column_stack((self._time(over.notes[:, :-1]), over.notes[:, -1]))
        return (
            Over(
                replace(over.step, messages=moved), over.numbers + self.messages, self._time(over.ready),
                self._time(over.started), notes,
            ),
            replace(counts, end_ps=counts.end_ps + self.by, first=counts.first + self.messages),
            missing + np.array([self.messages, 0, 0, 0, 0]),
        )  # fmt: skip

    def _time(self, times: Ints) -> Ints:
        """Times, -1 for never, so much later."""
        return np.where(times >= 0, times + self.by, times)
