"""`StepRecorder` records completed steps and drops; `Shift` repeats steps with later times and higher step and message
numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from gradwire.scenarios.arrays import Ints
from gradwire.sim.engine.message_counts import MessageCounts
from gradwire.sim.engine.program.completed_step import CompletedStep, StepTaker
from gradwire.workload.program import ProgramPart
from gradwire.workload.steps import RISING_COLUMNS


class StepRecorder:
    """Passes completed steps to a taker, and remembers them as long as they may be repeated."""

    def __init__(self, step_taker: StepTaker) -> None:
        self.taker = step_taker
        self.taken: list[tuple[ProgramPart, int, CompletedStep, MessageCounts, Ints]] = []
        self.dropped: list[Ints] = []
        self.before = (0, 0)
        """number of forgotten entries of either list"""
        self.on = False

    def step(self, part: ProgramPart, number: int, over: CompletedStep, counts: MessageCounts, missing: Ints) -> None:
        self.taker.step(part, number, over, counts, missing)
        if self.on:
            self.taken.append((part, number, over, counts, missing))

    def drops(self, rows: Ints) -> None:
        self.taker.drops(rows)
        if self.on:
            self.dropped.append(rows)

    @property
    def seen(self) -> tuple[int, int]:
        """Number of entries so far in either list."""
        return self.before[0] + len(self.taken), self.before[1] + len(self.dropped)

    def forget(self, taken: int, dropped: int) -> None:
        """Forget the first entries of both lists, up to these numbers."""
        del self.taken[: taken - self.before[0]], self.dropped[: dropped - self.before[1]]
        self.before = taken, dropped


class Shift(NamedTuple):
    """Differences of a repetition: steps, messages, picoseconds."""

    steps: int
    messages: int
    by: int

    def step(
        self, over: CompletedStep, counts: MessageCounts, missing: Ints
    ) -> tuple[CompletedStep, MessageCounts, Ints]:
        """Return a completed step, its counters and its missing packets, shifted."""
        rows = over.step.messages
        moved = replace(rows, **{name: getattr(rows, name) + self.steps for name in RISING_COLUMNS})
        notes = np.column_stack((self._time(over.notes[:, :-1]), over.notes[:, -1]))
        return (
            CompletedStep(
                replace(over.step, messages=moved),
                over.numbers + self.messages,
                self._time(over.ready),
                self._time(over.started),
                notes,
            ),
            replace(counts, end_ps=counts.end_ps + self.by, first=counts.first + self.messages),
            missing + np.array([self.messages, 0, 0, 0, 0]),
        )

    def _time(self, times: Ints) -> Ints:
        """Return times shifted, except -1 (never)."""
        return np.where(times >= 0, times + self.by, times)
