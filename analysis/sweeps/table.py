"""The tables of a sweep: one row for every coordinates, over its seeds, and one for every point.

    sweep.parquet, .csv      axes; `runs` and `failed`; per measure its mean, `_low` and `_high` (the 95 % interval
    of the
                             mean over the seeds, by Student's t), `_count` (how many seeds have it)
    points.parquet, .csv     axes, seed, state, per measure its value, key

They hold nothing that differs between two equal sweeps, such as durations: however often a sweep was interrupted, its
tables have the same bytes in the end.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from gradwire.analysis.claims.intervals import shown_half_width
from gradwire.analysis.sweeps.measures import whose
from gradwire.analysis.sweeps.points import Place, rows_of
from gradwire.analysis.sweeps.store import Record
from gradwire.scenarios.arrow import arrow_array
from gradwire.scenarios.output import replaced

if TYPE_CHECKING:
    import pyarrow

Records = Mapping[str, Record]
Line = dict[str, Any]


def value_of(record: Record | None, measure: str) -> float | None:
    """A measure of a point; None where it has none."""
    return None if record is None or record.state != "done" else record.figure(*whose(measure))


def summary_lines(points: Sequence[Place], records: Records, measures: Sequence[str]) -> list[Line]:
    """The rows of the first table."""
    lines = []
    for together in rows_of(points):
        found = [records.get(point.key) for point in together]
        line: Line = dict(together[0].at)
        line["runs"] = sum(each is not None and each.state == "done" for each in found)
        line["failed"] = sum(each is not None and each.state == "failed" for each in found)
        for name in measures:
            values = [value for each in found if (value := value_of(each, name)) is not None]
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


def point_lines(points: Sequence[Place], records: Records, measures: Sequence[str]) -> list[Line]:
    """The rows of the second."""
    lines = []
    for point in points:
        record = records.get(point.key)
        line: Line = {**point.at, "seed": point.seed, "state": record.state if record else "waiting"}
        lines.append(line | {name: value_of(record, name) for name in measures} | {"key": point.key})
    return lines


def table_of(lines: Sequence[Line], axes: Sequence[str]) -> pyarrow.Table:
    """Lines as a table. An axis is a column of numbers where all its values are, else of texts."""
    import pyarrow

    columns = {}
    for name in lines[0]:
        values = [line[name] for line in lines]
        if name in axes:
            columns[name] = _axis_column(values)
        elif name in ("state", "key"):
            columns[name] = arrow_array(values, "string")
        else:
            whole = name in ("runs", "failed", "seed") or name.endswith("_count")
            columns[name] = arrow_array(values, "int64" if whole else "float64")
    return pyarrow.Table.from_arrays(list(columns.values()), names=list(columns))


def _axis_column(values: list[Any]) -> pyarrow.Array:
    there = [each for each in values if each is not None]
    for kind, arrow in ((bool, "bool"), (int, "int64"), ((int, float), "float64")):
        if all(isinstance(each, kind) and (kind is bool or not isinstance(each, bool)) for each in there):
            return arrow_array(values, arrow)
    texts = [str(each).lower() if isinstance(each, bool) else each if each is None else str(each) for each in values]
    return arrow_array(texts, "string")


def write_table(table: pyarrow.Table, folder: Path, name: str) -> None:
    """`name`.parquet and `name`.csv, each complete or as it was."""
    import pyarrow.parquet

    with replaced(folder / f"{name}.csv") as partial, partial.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, table.column_names)
        writer.writeheader()
        writer.writerows(table.to_pylist())
    with replaced(folder / f"{name}.parquet") as partial:
        pyarrow.parquet.write_table(table, partial)
