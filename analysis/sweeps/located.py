"""A sweep whose files are named in full: as it is kept in its folder, from where it is gone on with.

What a sweep names - its scenario, traces, files, modules - is looked for from the folder of its file. In the folder of
its results there is a copy, which has to mean the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gradwire.scenarios.components import USER_CLASS
from gradwire.scenarios.load import list_library
from gradwire.scenarios.overrides import from_folder, last_of


def located(tables: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """The tables of a sweep with its files named in full. `folder`: that of the sweep's file."""
    axes = [_axis(each, folder) if isinstance(each, dict) else each for each in tables.get("axis", ())]
    found = {**tables, **({"axis": axes} if axes else {})}
    if "set" in tables:
        found["set"] = from_folder("", tables["set"], folder)
    scenario = tables["scenario"]
    if isinstance(scenario, dict):
        own = {} if "modules" in scenario or not _names_class(tables) else {"modules": str(folder)}
        found["scenario"] = {**from_folder("", scenario, folder), **own}
    elif (folder / Path(scenario).expanduser()).exists() or scenario not in list_library():
        found["scenario"] = str((folder / Path(scenario).expanduser()).absolute())
    return found


def _axis(axis: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """One axis. Of several keys that get the same value one may name files, and another one something else."""
    found = dict(axis)
    keys = [axis.get("key", ())] if isinstance(axis.get("key"), str) else axis.get("key", ())
    for key in keys:
        if "values" in axis:
            found["values"] = [from_folder(last_of(key), each, folder) for each in found["values"]]
    if "variant" in axis:
        found["variant"] = [from_folder("", each, folder) for each in axis["variant"]]
    return found


def _names_class(value: Any) -> bool:
    """Whether a class of the user's own is named anywhere."""
    if isinstance(value, dict):
        return any(map(_names_class, value.values()))
    if isinstance(value, list | tuple):
        return any(map(_names_class, value))
    return isinstance(value, str) and USER_CLASS.fullmatch(value) is not None
