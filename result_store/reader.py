"""Reads a Result's files from disk and checks their formats and types.

A file that is missing, damaged, of another format or of the wrong type raises `ResultError` with its path. Values are
not validated further: Results of older versions may lack keys, or have values that would be rejected today.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradwire.result_store.columns import check_values
from gradwire.result_store.table_schema import FORMAT
from gradwire.result_store.training_result import SUMMARY as TRAINING
from gradwire.scenarios.errors import ResultError, shorten
from gradwire.scenarios.json_data import parse_json
from gradwire.scenarios.loading.toml import TABLE_LIST_KEYS, read_toml

if TYPE_CHECKING:
    import pyarrow

RESULT_EXPECTED = "a complete Result directory"
SCENARIO_EXPECTED = "the scenario that ran"
Shape = type | tuple[type, ...] | Mapping[str, Any]
SUMMARY: Mapping[str, Shape] = {
    "name": str, "policy": str, "label": str, "seed": int, "versions": dict, "scenario_hash": str, "trace_hash": str,
    "inputs": dict, "sample_period_ps": (int, type(None)),
    "transports": {"": {"kind": str, "payload": int, "overhead": int, "wire": str}},
    "engine": {"kind": str, "clock": str, "packet_hops": int, "valid": bool, "disturbed": list},
    "totals": {
        "simulated_ps": int, "finished": bool, "ended_by": str, "iterations": int, "messages": int,
        "messages_under_way": int, "bytes": int,
    },
}  # fmt: skip
"""Types of the summary's optional keys; "" stands for every key."""
MOST = 1 << 63
REQUIRED_KEYS = ("name", "totals")
"""Keys that every summary must have."""
TIMING: Mapping[str, Shape] = {"hops_per_s": (int, float), "packet_hops_simulated": int}


def read_summary(folder: Path) -> dict[str, Any]:
    """Return the content of result.json, without its format."""
    path = folder / "result.json"
    if not path.exists():
        _refuse_trainings(folder)
    summary = _read_json(path)
    version = summary.pop("format", None)
    if version != FORMAT:
        raise ResultError(f"is of format {json.dumps(version)}", str(path), f"format {FORMAT}")
    if absent := [key for key in REQUIRED_KEYS if key not in summary]:
        raise ResultError(f"has no {', '.join(absent)}", str(path), RESULT_EXPECTED)
    _check(summary, SUMMARY, "", path)
    return summary


def _refuse_trainings(folder: Path) -> None:
    """Raise `ResultError` for a folder of `gradwire train`, with the commands that accept one."""
    one = (folder / TRAINING).is_file()
    if one or any(folder.glob(f"*/{TRAINING}")):
        what = "is a training run, not a Result" if one else "holds training runs, not a Result"
        expected = "a Result directory; gradwire report shows training runs, and gradwire train resumes them"
        raise ResultError(what, str(folder), expected)


def read_timing(folder: Path) -> dict[str, Any]:
    """Return the content of timing.json; empty if there is none."""
    path = folder / "timing.json"
    if not path.exists():
        return {}
    timing = _read_json(path)
    _check(timing, TIMING, "", path)
    return timing


def _read_json(path: Path) -> dict[str, Any]:
    try:
        data = parse_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ResultError("no such file", str(path), RESULT_EXPECTED) from None
    except (OSError, ValueError) as error:
        raise ResultError(f"cannot be read ({error})", str(path)) from None
    if not isinstance(data, dict):
        raise ResultError("is not a JSON object", str(path))
    _check_numbers(data, "", path)
    return data


def _check_numbers(value: Any, key: str, path: Path) -> None:
    """Raise `ResultError` for a number that is not finite or needs more than 64 bits, both of which JSON allows."""
    if isinstance(value, dict):
        for name, each in value.items():
            _check_numbers(each, f"{key}.{name}" if key else name, path)
    elif isinstance(value, list):
        for each in value:
            _check_numbers(each, key, path)
    elif isinstance(value, int | float) and not -MOST <= value <= MOST:
        raise _wrong(key, value, f"a number of at most {MOST:.1e}", path)


def _check(data: Mapping[str, Any], shape: Mapping[str, Shape], prefix: str, path: Path) -> None:
    """Raise `ResultError` unless the values in `data` have the types in `shape`."""
    for key, value in data.items():
        kind = shape.get(key, shape.get(""))
        if isinstance(kind, Mapping):
            if not isinstance(value, dict):
                raise _wrong(f"{prefix}{key}", value, "a JSON object", path)
            _check(value, kind, f"{prefix}{key}.", path)
        elif kind is not None and (not isinstance(value, kind) or (isinstance(value, bool) and kind is int)):
            raise _wrong(f"{prefix}{key}", value, _words(kind), path)


def _words(kind: type | tuple[type, ...]) -> str:
    names = {str: "text", int: "a whole number", float: "a number", bool: "true or false", list: "a list"}
    names |= {dict: "a JSON object", type(None): "null"}
    return " or ".join(names[each] for each in (kind if isinstance(kind, tuple) else (kind,)))


def _wrong(key: str, value: Any, expected: str, path: Path) -> ResultError:
    text = json.dumps(value)
    return ResultError(f"{key} is {text if len(text) <= 40 else text[:37] + '...'}", str(path), expected)


def read_scenario(path: Path) -> str:
    """Return the text of the scenario; empty if there is none, as in Results of older versions."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise ResultError(f"cannot be read ({error})", str(path)) from None
    tables = tables_of(text, str(path))
    for key, kind in (("name", str), ("topology", dict)):
        if not isinstance(tables.get(key), kind):
            what = f"has {key} = {shorten(tables[key])}" if key in tables else f"has no {key}"
            raise ResultError(what, str(path), SCENARIO_EXPECTED)
    return text


def tables_of(text: str, where: str) -> dict[str, Any]:
    """Return the tables of a scenario's text, after a check of its overall shape."""
    try:
        tables = read_toml(text)
    except tomllib.TOMLDecodeError as error:
        raise ResultError(f"is not TOML: {error}", where, SCENARIO_EXPECTED) from None
    if not tables:
        raise ResultError("is empty", where, SCENARIO_EXPECTED)
    for key in TABLE_LIST_KEYS:
        entries = tables.get(key, [])
        if not isinstance(entries, list) or not all(isinstance(each, dict) for each in entries):
            what = f"{key} = {shorten(entries)} is not a list of tables"
            raise ResultError(what, where, f"{SCENARIO_EXPECTED}, with [[{key}]]")
    return tables


def read_table(path: Path, schema: pyarrow.Schema) -> pyarrow.Table:
    """Return a table with exactly the columns of `schema` and valid values only."""
    import pyarrow.parquet

    try:
        if path.is_dir():  # pyarrow would read it as a partitioned table
            raise ResultError("is a folder", str(path), "a Parquet file")
        table = pyarrow.parquet.read_table(path)
        table.validate(full=True)
    except FileNotFoundError:
        raise ResultError("no such file", str(path), RESULT_EXPECTED) from None
    except (OSError, ValueError, pyarrow.ArrowException) as error:  # ValueError: names that are not UTF-8
        reason = str(error).partition("\n")[0]
        raise ResultError(f"is damaged or not a Parquet file ({reason})", str(path)) from None
    if not table.schema.equals(schema):
        raise ResultError("has other columns", str(path), ", ".join(schema.names))
    for name in schema.names:
        if empty := table[name].null_count:
            raise ResultError(f"column {name} has {empty} empty values", str(path), "none")
    check_values(path.stem, table, path)
    return table
