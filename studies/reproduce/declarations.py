"""Reads the TOML declarations of policies, settings and claims, and expands their templates and repetitions.

`each` repeats a table for every combination of its lists' values; a value that is a table sets several names. {name} in
a text inserts a value, and a text that is {name} alone becomes the value itself, whose items join a list around it. The
text "absent" stands for None.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any

from gradwire.scenarios.json_data import Json


def read_declarations(name: str) -> Json:
    """Return the tables of a file of this package."""
    tables: Json = tomllib.loads((Path(__file__).parent / f"{name}.toml").read_text(encoding="utf-8"))
    return tables


def expanded(table: Mapping[str, Any], values: Mapping[str, Any], labels: Mapping[str, str]) -> Iterator[Json]:
    """Yield a table with its templates filled, once for each combination of `each`.

    values : by name. `labels` : of policies; a value {key} that names one has its label as {key_label}.
    """
    axes = filled(table.get("each", {}), values)
    rest = {key: value for key, value in table.items() if key != "each"}
    for row in product(*axes.values()):
        names = dict(values)
        for axis, value in zip(axes, row, strict=True):
            names |= value if isinstance(value, dict) else {axis: value}
        names |= {f"{key}_label": labels[value] for key, value in names.items() if str(value) in labels}
        yield filled(rest, names)


def filled(value: Any, values: Mapping[str, Any]) -> Any:
    """Return a value with its templates filled."""
    if isinstance(value, dict):
        return {key: filled(item, values) for key, item in value.items()}
    if isinstance(value, list):
        items = [(item, filled(item, values)) for item in value]
        return [
            part for item, new in items for part in (new if isinstance(item, str) and isinstance(new, list) else [new])
        ]
    if not isinstance(value, str):
        return value
    if value.startswith("{") and value[1:-1] in values:
        return values[value[1:-1]]
    text = value.format_map(values)
    return None if text == "absent" else text
