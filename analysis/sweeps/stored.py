"""A sweep as its folder has it: the declaration, the table of points, and a record for each.

`gradwire sweep` resolves every point anew, and so knows which of them a change of scenario or simulator has made
another one. Whoever only looks at what was measured needs neither: coordinates and keys are in points.parquet.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradwire.analysis.sweeps.points import Place
from gradwire.analysis.sweeps.schema import SweepFile, build_sweep, pictures
from gradwire.analysis.sweeps.store import State, Store, writing
from gradwire.scenarios.errors import ResultError, ScenarioError, ScenarioNote
from gradwire.scenarios.given import path_of
from gradwire.scenarios.load import parse_toml, read_text
from gradwire.scenarios.output import replaced

if TYPE_CHECKING:
    from gradwire.analysis.sweeps.store import Record

DECLARED = "sweep.toml"
POINTS = "points.parquet"
WANTED = f"a folder of gradwire sweep, with {DECLARED} and {POINTS}"

Parts = tuple[SweepFile, Path, list[Place], Mapping[str, "Record"], Mapping[State, int]]


def declare(place: Path, file: SweepFile, text: str) -> None:
    """Put a sweep's text into its folder, and take away pictures that the one before declared and this one does not.

    Raises
    ------
    ResultError
        It cannot be written.
    """
    with suppress(ScenarioError):
        if (place / DECLARED).is_file():
            before = _file(place)
            if before.name != file.name:
                kept = f"what it has measured is kept, tables and pictures are those of {file.name} from now on"
                warnings.warn(f"{place} held the sweep {before.name}: {kept}", ScenarioNote, stacklevel=3)
            new = {each for files in pictures(file, place).values() for each in files}
            for old in {each for files in pictures(before, place).values() for each in files} - new:
                old.unlink(missing_ok=True)
    with writing(place), replaced(place / DECLARED) as partial:
        partial.write_text(text, encoding="utf-8")


def _file(place: Path) -> SweepFile:
    path = place / DECLARED
    return build_sweep(parse_toml(path, read_text(path, "a sweep file (.toml)")), str(path))


def read_sweep(folder: str | Path) -> Parts:
    """The parts of a `Sweep`. Raises `ResultError` if there is none, or it is damaged."""
    import pyarrow
    import pyarrow.parquet

    place = path_of(folder, "Sweep.read(folder)", WANTED, ResultError)
    for name in (DECLARED, POINTS):
        if not (place / name).is_file():
            raise ResultError("holds no sweep that has begun", str(place), WANTED)
    file = _file(place)
    try:
        lines = pyarrow.parquet.read_table(place / POINTS).to_pylist()
        points = _places(file, lines)
    except (OSError, KeyError, pyarrow.ArrowException):
        raise ResultError("is damaged, or of another sweep", str(place / POINTS), WANTED) from None
    store = Store(place)
    keys = list(dict.fromkeys(point.key for point in points))
    records = store.read_all(keys)
    return file, place, points, records, store.states(keys, records)


def _places(file: SweepFile, lines: list[dict[str, Any]]) -> list[Place]:
    columns = [axis.column for axis in file.axis]
    labels = {axis.column: {each.name: each.label or each.name for each in axis.variant} for axis in file.axis}
    rows: dict[tuple[Any, ...], int] = {}
    found = []
    for line in lines:
        at = {column: line[column] for column in columns}
        row = rows.setdefault(tuple(at.values()), len(rows))
        there = {column: str(value) for column, value in at.items() if value is not None}
        named = {column: labels[column].get(value, value) for column, value in there.items()}
        found.append(Place(row, at, named, int(line["seed"]), str(line["key"])))
    return found
