"""`Sweep` holds a sweep's points and their records so far, and returns them as tables, plots and texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradwire.analysis.comparison.tables import Grid, TableRow, html_table, print_grid
from gradwire.result_store.folders.output_folder import atomic_replace
from gradwire.result_store.table_schema import as_pandas
from gradwire.studies.sweep import sweep_tables as tables
from gradwire.studies.sweep.point_store import Record, State, write_errors
from gradwire.studies.sweep.points import PointPlace
from gradwire.studies.sweep.schema import SweepFile, plot_files

if TYPE_CHECKING:
    import pandas
    import pyarrow
    from matplotlib.figure import Figure


@dataclass(frozen=True, repr=False)
class Sweep:
    """Points of a sweep and their records so far.

    file : the declaration. `folder` : of the records; None if there is none (a dry run in a new place).
    points : all of them, in the order of the tables.
    records : by key, of the points that are done or failed.
    states : number of distinct runs by state ("done", "failed", "running", "interrupted", "waiting").
    """

    file: SweepFile
    folder: Path | None
    points: Sequence[PointPlace]
    records: Mapping[str, Record]
    states: Mapping[State, int]

    @classmethod
    def read(cls, folder: str | Path) -> Sweep:
        """Read the sweep in a folder, whatever scenario and simulator version made it. Raises `ResultError` if the
        folder holds no sweep, or is damaged."""
        from gradwire.studies.sweep.stored_sweep import read_sweep

        return cls(*read_sweep(folder))

    @property
    def axes(self) -> list[str]:
        """The columns of the axes."""
        return [axis.column for axis in self.file.axis]

    @property
    def table(self) -> pyarrow.Table:
        """One row per coordinates: means over the seeds, 95 % intervals, counts
        (`gradwire.studies.sweep.sweep_tables`)."""
        return tables.table_of(tables.summary_lines(self.points, self.records, self.file.measures), self.axes)

    @property
    def points_table(self) -> pyarrow.Table:
        """One row per point."""
        return tables.table_of(tables.point_lines(self.points, self.records, self.file.measures), self.axes)

    def to_pandas(self, points: bool = False) -> pandas.DataFrame:
        """Return `table`, or `points_table`, as a pandas DataFrame. Raises MissingExtraError if pandas is not
        installed."""
        return as_pandas(self.points_table if points else self.table)

    def plot(self) -> dict[str, Figure]:
        """Return the declared plots that have data, as matplotlib figures by name."""
        from gradwire.studies.sweep.plots.sweep_plots import figures

        return figures(self.file, self.points, self.records)

    @property
    def grid(self) -> Grid:
        """`table` as texts."""
        return tables.grid_of(self.file, self.points, self.records)

    @property
    def complete(self) -> bool:
        """True if every point is done."""
        return self.states["done"] == sum(self.states.values())

    @property
    def failures(self) -> list[tuple[PointPlace, Record]]:
        """Points that failed, each run once."""
        failed_by_key: dict[str, tuple[PointPlace, Record]] = {}
        for point in self.points:
            record = self.records.get(point.key)
            if record is not None and record.state == "failed":
                failed_by_key.setdefault(point.key, (point, record))
        return list(failed_by_key.values())

    @property
    def broken_bounds(self) -> list[PointPlace]:
        """Points at which a message lost more than its bound allows."""
        return [
            point
            for point in self.points
            if (record := self.records.get(point.key)) is not None
            and any(seen.figures.get("broken") for seen in record.jobs.values())
        ]

    @property
    def axes_without_effect(self) -> list[str]:
        """Axes without effect: all points along them give byte-identical Results; one sentence per axis. Points are
        compared if their other coordinates and seed are equal; points that are not done do not count."""
        sentences = []
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
                sentences.append(f"{axis} has no effect: its points give byte-identical Results")
        return sentences

    @property
    def text(self) -> str:
        """Summary such as "12 runs: 10 done, 2 failed"."""
        total = sum(self.states.values())
        parts = ", ".join(f"{count:,} {state}" for state, count in self.states.items() if count)
        return f"{total:,} {'run' if total == 1 else 'runs'}: {parts}"

    def __repr__(self) -> str:
        axes = " x ".join(self.axes) or "no axes"
        return f"<Sweep {self.file.name} over {axes}, {self.text}>"

    def _repr_html_(self) -> str:
        """Return the notebook view: the table of means."""
        grid = self.grid
        table = html_table("", grid.head[1:], [TableRow(row[0], row[1:]) for row in grid.rows], grid.head[0])
        return f"<p><b>{escape(self.file.name)}</b>: {escape(self.text)}</p>{table}"

    def print(self) -> None:
        """Print the table of means to stdout; of a long one the beginning."""
        grid, more = tables.shortened(self.grid)
        print_grid(grid)
        print(tables.interval_remark(self.points, self.records, self.file.measures))
        if more:
            print(f"and {more:,} more lines: sweep.csv has all of them")
        for text in self.axes_without_effect:
            print(f"note: {text}")

    def write(self, folder: Path) -> list[Path]:
        """Write tables and plots over earlier ones; return the plot files. Raises `ResultError` if that fails."""
        from gradwire.analysis.figure_files import save_figure

        with write_errors(folder):
            tables.write_table(self.table, folder, "sweep")
            tables.write_table(self.points_table, folder, "points")
            files = []
            for name, figure in self.plot().items() if self.file.plot else ():
                for path in plot_files(self.file, folder)[name]:
                    with atomic_replace(path) as partial:
                        save_figure(figure, partial, path)
                    files.append(path)
            return files

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "name": self.file.name,
            "axes": self.axes,
            "measures": list(self.file.measures),
            "states": dict(self.states),
            "notes": self.axes_without_effect,
            "rows": tables.summary_lines(self.points, self.records, self.file.measures),
            "failures": [{"point": point.name, "why": record.why} for point, record in self.failures],
        }
