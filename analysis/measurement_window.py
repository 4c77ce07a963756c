"""Selects the iterations and messages that figures cover, a job's steady state or the flows in a measured window.

A job's first iteration fills the network, as it waits for nothing at its start; its last one drains it, as it ends
when everything has arrived (see `docs/results.md`). With three iterations or more these two are left out. Of traffic,
the flows that begin in the scenario's measured window (`[measure]`) count, or all without one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gradwire.result_store.arrow import to_numpy
from gradwire.result_store.lazy_table import dictionary_encoded
from gradwire.result_store.result import Result
from gradwire.result_store.table_schema import KINDS
from gradwire.scenarios.arrays import Flags, Ints
from gradwire.scenarios.schema.measurement import Window, window_of
from gradwire.scenarios.units import MAX_INNER

if TYPE_CHECKING:
    import pyarrow

WHOLE_RUN = Window()


@dataclass(frozen=True)
class IterationSpan:
    """Iterations that figures cover: `first` to `last` of `count`, numbered from 0."""

    first: int
    last: int
    count: int

    @classmethod
    def steady(cls, count: int) -> IterationSpan:
        """Leave out the first and last of `count` iterations, if there are at least three."""
        return cls(1, count - 2, count) if count >= 3 else cls(0, count - 1, count)

    @property
    def is_steady(self) -> bool:
        """True if the first and last iteration are left out."""
        return self.count >= 3

    def __str__(self) -> str:
        if not self.is_steady:
            return "all of 0-1" if self.count == 2 else "all of 0" if self.count else "none"
        chosen = f"{self.first}-{self.last}" if self.last > self.first else str(self.first)
        return f"{chosen} of 0-{self.count - 1}"


def durations(result: Result, job: str) -> tuple[Ints, Ints, Ints]:
    """Return (iteration, duration, exposed time; picoseconds) of every row of a job in the table of iterations."""
    rows = rows_of_job(result.iterations, job)
    table = result.iterations
    times = to_numpy(table["end_ps"])[rows] - to_numpy(table["start_ps"])[rows]
    return to_numpy(table["iteration"])[rows], times, to_numpy(table["exposed_ps"])[rows]


def steady_state(numbers: Ints) -> tuple[IterationSpan, Flags]:
    """Return the iterations of a job's steady state, and a mask of the rows in it; `numbers`: iteration of each row."""
    span = IterationSpan.steady(int(numbers.max()) + 1 if len(numbers) else 0)
    return span, (numbers >= span.first) & (numbers <= span.last)


def measured_flows(result: Result) -> Window:
    """Return the measured window of flows, from the scenario in the Result."""
    return window_of(result.tables)


def in_window(part: pyarrow.Table, window: Window) -> Flags:
    """Return a mask of the messages that count: flows that begin in the window, and all that are not flows. Columns
    `kind`, `start_ps`."""
    if window == WHOLE_RUN:
        return np.ones(part.num_rows, dtype=np.bool_)
    start = to_numpy(part["start_ps"])
    inside = (start >= window.after) & (start < (MAX_INNER if window.until is None else window.until))
    return np.asarray(inside | ~rows_with_text(part, "kind", "flow"), dtype=np.bool_)


def completion_times(result: Result, job: str) -> dict[str, Ints]:
    """Return picoseconds from ready to delivered of delivered messages, per kind that occurs. Of a job those of its
    steady state, like its iteration times; of traffic those that begin in the measured window."""
    steady, _ = steady_state(durations(result, job)[0])
    window = measured_flows(result)
    times_by_kind: dict[str, list[Ints]] = {kind: [] for kind in KINDS}
    for part in result.parts("messages", "job", "kind", "iteration", "start_ps", "end_ps"):
        end = to_numpy(part["end_ps"])
        selected = rows_of_job(part, job) & (end >= 0) & in_window(part, window)
        if steady.is_steady:
            number = to_numpy(part["iteration"])
            selected &= (number >= steady.first) & (number <= steady.last)
        duration = end - to_numpy(part["start_ps"])
        for kind, times in times_by_kind.items():
            times.append(duration[selected & rows_with_text(part, "kind", kind)])
    joined = {kind: np.concatenate(times) for kind, times in times_by_kind.items() if times}
    return {kind: times for kind, times in joined.items() if len(times)}


def rows_of_job(table: pyarrow.Table, job: str) -> Flags:
    """Return a mask of the rows of a job or traffic. Column `job`."""
    return rows_with_text(table, "job", job)


def rows_with_text(table: pyarrow.Table, column: str, text: str) -> Flags:
    """Return a mask of the rows whose column has a text."""
    codes, texts = dictionary_encoded(table[column])
    return np.asarray(codes == (texts.index(text) if text in texts else -1), dtype=np.bool_)
