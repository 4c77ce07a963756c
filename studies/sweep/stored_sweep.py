"""Writes a sweep's declaration into its folder, and reads a stored sweep with its points and records.

`gradwire sweep` resolves every point anew, and so detects points that a change of scenario or simulator affects.
Reading the measurements needs neither: coordinates and keys are in points.parquet.

Names of scenarios, traces, files and modules are relative to the folder of the sweep's file. The stored declaration has
absolute ones, so that it means the same.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from gradwire.result_store.folders.output_folder import atomic_replace
from gradwire.scenarios.errors import ResultError, ScenarioError, ScenarioNote
from gradwire.scenarios.loading.load import list_library, parse_toml, read_text
from gradwire.scenarios.loading.overrides import last_key, with_absolute_paths
from gradwire.scenarios.loading.registry import USER_CLASS
from gradwire.scenarios.validation.argument_checks import require_path
from gradwire.studies.sweep.point_store import PointStore, Record, State, write_errors
from gradwire.studies.sweep.points import PointPlace
from gradwire.studies.sweep.schema import SweepFile, build_sweep, plot_files

SWEEP_FILE = "sweep.toml"
POINTS = "points.parquet"
EXPECTED_FOLDER = f"a folder of gradwire sweep, with {SWEEP_FILE} and {POINTS}"

Parts = tuple[SweepFile, Path, list[PointPlace], Mapping[str, "Record"], Mapping[State, int]]


def write_declaration(output_dir: Path, file: SweepFile, text: str) -> None:
    """Write a sweep's text into its folder, and remove plots that only the previous declaration has. Raises
    `ResultError` if it cannot be written."""
    with suppress(ScenarioError):
        if (output_dir / SWEEP_FILE).is_file():
            before = _file(output_dir)
            if before.name != file.name:
                note = f"its records are kept; tables and plots are now those of {file.name}"
                warnings.warn(f"{output_dir} held the sweep {before.name}: {note}", ScenarioNote, stacklevel=3)
            new = {path for files in plot_files(file, output_dir).values() for path in files}
            for old in {path for files in plot_files(before, output_dir).values() for path in files} - new:
                old.unlink(missing_ok=True)
    with write_errors(output_dir), atomic_replace(output_dir / SWEEP_FILE) as partial:
        partial.write_text(text, encoding="utf-8")


def _file(folder: Path) -> SweepFile:
    path = folder / SWEEP_FILE
    return build_sweep(parse_toml(path, read_text(path, "a sweep file (.toml)")), str(path))


def read_sweep(folder: str | Path) -> Parts:
    """Return the parts of a `Sweep`. Raises `ResultError` if there is none, or it is damaged."""
    import pyarrow
    import pyarrow.parquet

    path = require_path(folder, "Sweep.read(folder)", EXPECTED_FOLDER, ResultError)
    for name in (SWEEP_FILE, POINTS):
        if not (path / name).is_file():
            raise ResultError("holds no started sweep", str(path), EXPECTED_FOLDER)
    file = _file(path)
    try:
        lines = pyarrow.parquet.read_table(path / POINTS).to_pylist()
        points = _places(file, lines)
    except (OSError, KeyError, pyarrow.ArrowException):
        raise ResultError("is damaged, or belongs to another sweep", str(path / POINTS), EXPECTED_FOLDER) from None
    store = PointStore(path)
    keys = list(dict.fromkeys(point.key for point in points))
    records = store.read_all(keys)
    return file, path, points, records, store.states(keys, records)


def _places(file: SweepFile, lines: list[dict[str, Any]]) -> list[PointPlace]:
    columns = [axis.column for axis in file.axis]
    labels = {
        axis.column: {variant.name: variant.label or variant.name for variant in axis.variant} for axis in file.axis
    }
    rows: dict[tuple[Any, ...], int] = {}
    places = []
    for line in lines:
        at = {column: line[column] for column in columns}
        row = rows.setdefault(tuple(at.values()), len(rows))
        texts = {column: str(value) for column, value in at.items() if value is not None}
        named = {column: labels[column].get(value, value) for column, value in texts.items()}
        places.append(PointPlace(row, at, named, int(line["seed"]), str(line["key"])))
    return places


def with_absolute_sweep_paths(tables: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return the tables of a sweep with absolute file names. `folder` : of the sweep's file."""
    axes = [_axis(axis, folder) if isinstance(axis, dict) else axis for axis in tables.get("axis", ())]
    absolute = {**tables, **({"axis": axes} if axes else {})}
    if "set" in tables:
        absolute["set"] = with_absolute_paths("", tables["set"], folder)
    scenario = tables["scenario"]
    if isinstance(scenario, dict):
        modules = {} if "modules" in scenario or not _names_class(tables) else {"modules": str(folder)}
        absolute["scenario"] = {**with_absolute_paths("", scenario, folder), **modules}
    elif (folder / Path(scenario).expanduser()).exists() or scenario not in list_library():
        absolute["scenario"] = str((folder / Path(scenario).expanduser()).absolute())
    return absolute


def _axis(axis: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return one axis. Of several keys with the same values, only some may name files."""
    located_axis = dict(axis)
    keys = [axis.get("key", ())] if isinstance(axis.get("key"), str) else axis.get("key", ())
    for key in keys:
        if "values" in axis:
            located_axis["values"] = [
                with_absolute_paths(last_key(key), value, folder) for value in located_axis["values"]
            ]
    if "variant" in axis:
        located_axis["variant"] = [with_absolute_paths("", variant, folder) for variant in axis["variant"]]
    return located_axis


def _names_class(value: Any) -> bool:
    """Return True if a user-defined class is named anywhere."""
    if isinstance(value, dict):
        return any(map(_names_class, value.values()))
    if isinstance(value, list | tuple):
        return any(map(_names_class, value))
    return isinstance(value, str) and USER_CLASS.fullmatch(value) is not None
