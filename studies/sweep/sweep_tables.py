"""Builds a sweep's tables (means over seeds, and one row per point), and writes them as files and text.

    sweep.parquet, .csv      axes; `runs` and `failed`; per measure its mean, `_low` and `_high` (the 95 % interval of
                             the mean over the seeds, by Student's t), `_count` (number of seeds that have it)
    points.parquet, .csv     axes, seed, state, per measure its value, key

They hold nothing that differs between two equal sweeps, such as durations: however often a sweep was interrupted, its
final tables have the same bytes.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from gradwire.analysis.comparison.tables import Grid
from gradwire.analysis.confidence_intervals import MIN_VALUES, shown_half_width
from gradwire.result_store.arrow import arrow_array
from gradwire.result_store.folders.output_folder import atomic_replace
from gradwire.scenarios.readable import count_text, share_text, size_text, time_text
from gradwire.studies.sweep.measures import split_measure
from gradwire.studies.sweep.point_store import Record
from gradwire.studies.sweep.points import PointPlace, rows_of
from gradwire.studies.sweep.schema import SweepFile

if TYPE_CHECKING:
    import pyarrow

Records = Mapping[str, Record]
Line = dict[str, Any]


def value_of(record: Record | None, measure: str) -> float | None:
    """Return a measure of a point; None if it has none."""
    return None if record is None or record.state != "done" else record.figure(*split_measure(measure))


def summary_lines(points: Sequence[PointPlace], records: Records, measures: Sequence[str]) -> list[Line]:
    """Return the rows of the first table."""
    lines = []
    for together in rows_of(points):
        point_records = [records.get(point.key) for point in together]
        line: Line = dict(together[0].at)
        line["runs"] = sum(record is not None and record.state == "done" for record in point_records)
        line["failed"] = sum(record is not None and record.state == "failed" for record in point_records)
        for name in measures:
            values = [value for record in point_records if (value := value_of(record, name)) is not None]
            half = shown_half_width(values)
            mean = fmean(values) if values else None
            known = mean is not None and math.isfinite(half)
            line |= {
                name: mean,
                f"{name}_low": mean - half if known and mean is not None else None,
                f"{name}_high": mean + half if known and mean is not None else None,
                f"{name}_count": len(values),
            }
        lines.append(line)
    return lines


def point_lines(points: Sequence[PointPlace], records: Records, measures: Sequence[str]) -> list[Line]:
    """Return the rows of the second table."""
    lines = []
    for point in points:
        record = records.get(point.key)
        line: Line = {**point.at, "seed": point.seed, "state": record.state if record else "waiting"}
        lines.append(line | {name: value_of(record, name) for name in measures} | {"key": point.key})
    return lines


def table_of(lines: Sequence[Line], axes: Sequence[str]) -> pyarrow.Table:
    """Return lines as a table. An axis is a column of numbers if all its values are, else of texts."""
    import pyarrow

    columns = {}
    for name in lines[0]:
        values = [line[name] for line in lines]
        if name in axes:
            columns[name] = _axis_column(values)
        elif name in ("state", "key"):
            columns[name] = arrow_array(values, "string")
        else:
            is_integer = name in ("runs", "failed", "seed") or name.endswith("_count")
            columns[name] = arrow_array(values, "int64" if is_integer else "float64")
    return pyarrow.Table.from_arrays(list(columns.values()), names=list(columns))


def _axis_column(values: list[Any]) -> pyarrow.Array:
    present = [value for value in values if value is not None]
    for kind, arrow in ((bool, "bool"), (int, "int64"), ((int, float), "float64")):
        if all(isinstance(value, kind) and (kind is bool or not isinstance(value, bool)) for value in present):
            return arrow_array(values, arrow)
    texts = [str(v).lower() if isinstance(v, bool) else v if v is None else str(v) for v in values]
    return arrow_array(texts, "string")


def write_table(table: pyarrow.Table, folder: Path, name: str) -> None:
    """Write `name`.parquet and `name`.csv, each atomically."""
    import pyarrow.parquet

    with atomic_replace(folder / f"{name}.csv") as partial, partial.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, table.column_names)
        writer.writeheader()
        writer.writerows(table.to_pylist())
    with atomic_replace(folder / f"{name}.parquet") as partial:
        pyarrow.parquet.write_table(table, partial)


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
    """Return the mean and half of its 95 % interval with two digits: "5.31 us ± 160 ns", "33.6 % ± 1.2 points".

    The number of runs follows if some lack the measure."""
    mean, high, count = line[name], line[f"{name}_high"], line[f"{name}_count"]
    if mean is None:
        return "-"
    text = value_text(name, mean)
    if high is not None and high > mean:
        digits = float(f"{high - mean:.2g}")
        half = value_text(name, digits)
        text += f" ± {f'{100 * digits:.2g} points' if half.endswith('%') else half}"
    return text if count == line["runs"] else f"{text} ({count})"


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
