"""Sweep tables as text: a line per coordinates, means with half of their 95 % intervals."""

from __future__ import annotations

from collections.abc import Sequence

from gradwire.analysis.comparison.tables import Grid, TableRow
from gradwire.analysis.confidence_intervals import MIN_VALUES
from gradwire.scenarios.readable import count_text, share_text, size_text, time_text
from gradwire.studies.sweep.measures import split_measure
from gradwire.studies.sweep.points import PointPlace
from gradwire.studies.sweep.schema import SweepFile
from gradwire.studies.sweep.sweep_tables import Line, Records, summary_lines

MOST_LINES = 60
"""Printed lines; the rest is in the files."""
SHARES = ("again", "timed_out", "tail_timed_out", "worst_used")


def value_text(name: str, value: float) -> str:
    """Return a measure as text with its unit."""
    measure = split_measure(name)[1]
    if measure.endswith("_ps"):
        return time_text(value)
    if measure.endswith("_bytes"):
        return size_text(value)
    if measure.endswith("_share") or measure in SHARES:
        return share_text(value)
    return count_text(value) if abs(value) >= 1000 else f"{value:.4g}"


def cell_of(name: str, line: Line) -> str:
    """Return the mean and half of its 95 % interval, both absolute: "5.31 us ± 160 ns", "33.6 % ± 1.2 points".

    The number of runs follows if some lack the measure."""
    mean, high, count = line[name], line[f"{name}_high"], line[f"{name}_count"]
    if mean is None:
        return "-"
    text = value_text(name, mean)
    if high is not None and high > mean:
        text += f" ± {half_text(name, high - mean)}"
    return text if count == line["runs"] else f"{text} ({count})"


def half_text(name: str, half: float) -> str:
    """Return half of an interval with two digits and its unit (percentage points for shares)."""
    digits = float(f"{half:.2g}")
    text = value_text(name, digits)
    return f"{100 * digits:.2g} points" if text.endswith("%") else text


def interval_remark(points: Sequence[PointPlace], records: Records, measures: Sequence[str]) -> str:
    """Explain the ± of a table, or its absence."""
    counts = [line[f"{name}_count"] for line in summary_lines(points, records, measures) for name in measures]
    if not any(count >= MIN_VALUES for count in counts):
        return f"No intervals: they need at least {MIN_VALUES} seeds."
    return "± is half of the 95 % interval over the seeds (Student's t), in the unit of the mean."


def grid_of(file: SweepFile, points: Sequence[PointPlace], records: Records) -> Grid:
    """Return a line per coordinates with runs or failures."""
    lines = summary_lines(points, records, file.measures)
    axes = [axis.column for axis in file.axis]
    shown = [line for line in lines if line["runs"] or line["failed"]]
    head = [*axes, *file.measures, "runs"]
    rows = [
        [*(_coordinate(line[axis]) for axis in axes), *(cell_of(name, line) for name in file.measures), _runs(line)]
        for line in shown
    ]
    return Grid(file.name, head, rows)


def rows_of_table(grid: Grid) -> tuple[list[str], list[TableRow]]:
    """Return (headings, lines) with the first column as labels, for notebooks."""
    return grid.head[1:], [TableRow(row[0], row[1:]) for row in grid.rows]


def _coordinate(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "-" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _runs(line: Line) -> str:
    return f"{line['runs']}, {line['failed']} failed" if line["failed"] else str(line["runs"])


def shortened(grid: Grid, most: int = MOST_LINES) -> tuple[Grid, int]:
    """Return the printed lines, and the number of omitted ones."""
    rows: Sequence[list[str]] = grid.rows
    return Grid(grid.title, grid.head, list(rows[:most])), max(0, len(rows) - most)
