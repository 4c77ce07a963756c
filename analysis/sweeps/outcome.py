"""Sweep: what has come of a sweep so far, for tables, plots, Python and notebooks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradwire.analysis.sweeps.points import Place
from gradwire.analysis.sweeps.schema import SweepFile, pictures
from gradwire.analysis.sweeps.shown import grid_of, remark, rows_of_table, shortened
from gradwire.analysis.sweeps.store import State, writing
from gradwire.analysis.sweeps.table import point_lines, summary_lines, table_of, write_table
from gradwire.analysis.tables import Grid, html_table, print_grid
from gradwire.scenarios.output import replaced
from gradwire.scenarios.result import as_pandas

if TYPE_CHECKING:
    import pandas
    import pyarrow
    from matplotlib.figure import Figure

    from gradwire.analysis.sweeps.store import Record


@dataclass(frozen=True, repr=False)
class Sweep:
    """Points of a sweep, and what is there of them.

    Attributes
    ----------
    file : the declaration. `folder` : where it is kept; None where nothing is (a dry run in a new place).
    points : all of them, in the order of the tables.
    records : by key, of those that are done or have failed.
    states : how many different runs are in which state ("done", "failed", "running", "interrupted", "waiting").
    """

    file: SweepFile
    folder: Path | None
    points: Sequence[Place]
    records: Mapping[str, Record]
    states: Mapping[State, int]

    @classmethod
    def read(cls, folder: str | Path) -> Sweep:
        """What is there of a sweep in its folder, whatever scenario and simulator it was made with.

        Raises
        ------
        ResultError
            It holds no sweep, or is damaged.
        """
        from gradwire.analysis.sweeps.stored import read_sweep

        return cls(*read_sweep(folder))

    @property
    def axes(self) -> list[str]:
        """The columns of the axes."""
        return [axis.column for axis in self.file.axis]

    @property
    def table(self) -> pyarrow.Table:
        """One row for every coordinates: means over the seeds, 95 % intervals, counts
        (`gradwire.analysis.sweeps.table`)."""
        return table_of(summary_lines(self.points, self.records, self.file.measures), self.axes)

    @property
    def points_table(self) -> pyarrow.Table:
        """One row for every point."""
        return table_of(point_lines(self.points, self.records, self.file.measures), self.axes)

    def to_pandas(self, points: bool = False) -> pandas.DataFrame:
        """`table`, or `points_table`, as a pandas DataFrame. Raises MissingExtraError if that is not installed."""
        return as_pandas(self.points_table if points else self.table)

    def plot(self) -> dict[str, Figure]:
        """The pictures that the file declares, as matplotlib figures by name, as far as there is something to draw."""
        from gradwire.analysis.sweeps.plots import figures

        return figures(self.file, self.points, self.records)

    @property
    def grid(self) -> Grid:
        """`table` for people."""
        return grid_of(self.file, self.points, self.records)

    @property
    def complete(self) -> bool:
        """Whether every point is done."""
        return self.states["done"] == sum(self.states.values())

    @property
    def failures(self) -> list[tuple[Place, Record]]:
        """Points that have failed, each run once."""
        found: dict[str, tuple[Place, Record]] = {}
        for point in self.points:
            record = self.records.get(point.key)
            if record is not None and record.state == "failed":
                found.setdefault(point.key, (point, record))
        return list(found.values())

    @property
    def broken(self) -> list[Place]:
        """Points in which a message lost more than its bound allows."""
        return [
            point
            for point in self.points
            if (record := self.records.get(point.key)) is not None
            and any(seen.figures.get("broken") for seen in record.jobs.values())
        ]

    @property
    def axes_without_effect(self) -> list[str]:
        """Axes along which all points give the same Result, to the byte, one sentence per axis.

        Points are compared whose other coordinates and seed are the same; those that are not done do not count.
        """
        found = []
        for axis in self.axes:
            groups: dict[tuple[object, ...], dict[object, set[str]]] = {}
            for point in self.points:
                record = self.records.get(point.key)
                if record is None or not record.digest or point.at[axis] is None:
                    continue
                others = (point.seed, *(value for column, value in point.at.items() if column != axis))
                groups.setdefault(others, {}).setdefault(point.at[axis], set()).add(record.digest)
            compared = [group for group in groups.values() if len(group) > 1]
            if compared and all(len(set().union(*group.values())) == 1 for group in compared):
                found.append(f"{axis} has no effect: its points give the same Results, to the byte")
        return found

    @property
    def words(self) -> str:
        """Such as "12 runs: 10 done, 2 failed"."""
        total = sum(self.states.values())
        parts = ", ".join(f"{count:,} {state}" for state, count in self.states.items() if count)
        return f"{total:,} {'run' if total == 1 else 'runs'}: {parts}"

    def __repr__(self) -> str:
        axes = " x ".join(self.axes) or "no axes"
        return f"<Sweep {self.file.name} over {axes}, {self.words}>"

    def _repr_html_(self) -> str:
        """What notebooks show: the table of means."""
        grid = self.grid
        names, rows = rows_of_table(grid)
        table = html_table("", names, rows, grid.head[0])
        return f"<p><b>{escape(self.file.name)}</b>: {escape(self.words)}</p>{table}"

    def print(self) -> None:
        """Print the table of means to stdout, of a long one the beginning."""
        grid, more = shortened(self.grid)
        print_grid(grid)
        print(remark(self.points, self.records, self.file.measures))
        if more:
            print(f"and {more:,} more lines: sweep.csv has all of them")
        for text in self.axes_without_effect:
            print(f"note: {text}")

    def write(self, folder: Path) -> list[Path]:
        """Write tables and pictures, those of an earlier state are replaced. Returns the pictures. Raises `ResultError`
        if they cannot be written."""
        from gradwire.analysis.figures import save_figure

        with writing(folder):
            write_table(self.table, folder, "sweep")
            write_table(self.points_table, folder, "points")
            drawn = []
            for name, figure in self.plot().items() if self.file.plot else ():
                for place in pictures(self.file, folder)[name]:
                    with replaced(place) as partial:
                        save_figure(figure, partial, place)
                    drawn.append(place)
            return drawn

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "name": self.file.name,
            "axes": self.axes,
            "measures": list(self.file.measures),
            "states": dict(self.states),
            "notes": self.axes_without_effect,
            "rows": summary_lines(self.points, self.records, self.file.measures),
            "failures": [{"point": point.name, "why": record.why} for point, record in self.failures],
        }
