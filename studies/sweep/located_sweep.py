"""Sweep declarations with absolute file names, as stored in the sweep's folder for resuming.

Names of scenarios, traces, files and modules are relative to the folder of the sweep's file. The copy in the folder of
results must mean the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gradwire.scenarios.loading.load import list_library
from gradwire.scenarios.loading.overrides import last_key, with_absolute_paths
from gradwire.scenarios.loading.registry import USER_CLASS


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
