"""What figures are of: the iterations of a job's steady state, and the messages that count.

A job's first iteration fills the network, as it waits for nothing at its start, and its last drains it, as it lasts
until everything has arrived (see `docs/results.md`): of three iterations or more these two are left out. Of traffic
those flows count that begin in the scenario's measured window (`[measure]`), all of them without one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gradwire.scenarios.arrays import Flags, Ints
from gradwire.scenarios.arrow import numpy_of
from gradwire.scenarios.kept import numbered
from gradwire.scenarios.result import KINDS, Result
from gradwire.scenarios.schema.measured import Window, window_of
from gradwire.scenarios.units import MAX_INNER

if TYPE_CHECKING:
    import pyarrow

WHOLE_RUN = Window()


@dataclass(frozen=True)
class Span:
    """The iterations that figures are of: from `first` to `last`, of `count` that there are, all from 0."""

    first: int
    last: int
    count: int

    @classmethod
    def steady(cls, count: int) -> Span:
        """Without the first and the last of `count` iterations; all of them if there are fewer than three."""
        return cls(1, count - 2, count) if count >= 3 else cls(0, count - 1, count)

    @property
    def is_steady(self) -> bool:
        """Whether the network's filling and draining are left out."""
        return self.count >= 3

    def __str__(self) -> str:
        if not self.is_steady:
            return "all of 0-1" if self.count == 2 else "all of 0" if self.count else "none"
        chosen = f"{self.first}-{self.last}" if self.last > self.first else str(self.first)
        return f"{chosen} of 0-{self.count - 1}"


def durations(result: Result, job: str) -> tuple[Ints, Ints, Ints]:
    """(iteration, its time, exposed time; picoseconds) of every row of a job in the table of iterations."""
    rows = of_job(result.iterations, job)
    table = result.iterations
    times = numpy_of(table["end_ps"])[rows] - numpy_of(table["start_ps"])[rows]
    return numpy_of(table["iteration"])[rows], times, numpy_of(table["exposed_ps"])[rows]


def steady_state(numbers: Ints) -> tuple[Span, Flags]:
    """The iterations of a job's steady state, and which of `numbers`, the iteration of each row, are among them."""
    span = Span.steady(int(numbers.max()) + 1 if len(numbers) else 0)
    return span, (numbers >= span.first) & (numbers <= span.last)


def measured_flows(result: Result) -> Window:
    """The window in which flows begin that figures are of, from the scenario that the Result holds."""
    return window_of(result.tables)


def in_window(part: pyarrow.Table, window: Window) -> Flags:
    """Which rows of messages count: flows that begin in the window, and whatever is none. Columns `kind`,
    `start_ps`."""
    if window == WHOLE_RUN:
        return np.ones(part.num_rows, dtype=np.bool_)
    start = numpy_of(part["start_ps"])
    inside = (start >= window.after) & (start < (MAX_INNER if window.until is None else window.until))
    return np.asarray(inside | ~is_text(part, "kind", "flow"), dtype=np.bool_)


def completion_times(result: Result, job: str) -> dict[str, Ints]:
    """Picoseconds from ready to delivered of delivered messages, per kind that occurs: of a job those of its steady
    state, as its iteration times; of traffic those that begin in the measured window."""
    steady, _ = steady_state(durations(result, job)[0])
    window = measured_flows(result)
    found: dict[str, list[Ints]] = {kind: [] for kind in KINDS}
    for part in result.parts("messages", "job", "kind", "iteration", "start_ps", "end_ps"):
        end = numpy_of(part["end_ps"])
        wanted = of_job(part, job) & (end >= 0) & in_window(part, window)
        if steady.is_steady:
            number = numpy_of(part["iteration"])
            wanted &= (number >= steady.first) & (number <= steady.last)
        taken = end - numpy_of(part["start_ps"])
        for kind, times in found.items():
            times.append(taken[wanted & is_text(part, "kind", kind)])
    joined = {kind: np.concatenate(times) for kind, times in found.items() if times}
    return {kind: times for kind, times in joined.items() if len(times)}


def of_job(table: pyarrow.Table, job: str) -> Flags:
    """Which rows are of a job or traffic. Column `job`."""
    return is_text(table, "job", job)


def is_text(table: pyarrow.Table, column: str, text: str) -> Flags:
    """Which rows have a text."""
    codes, texts = numbered(table[column])
    return np.asarray(codes == (texts.index(text) if text in texts else -1), dtype=np.bool_)
