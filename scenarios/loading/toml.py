"""Reads TOML within limits on keys and brackets, and writes TOML without nulls, for scenarios.

`tomllib` takes quadratic time in the parts of a dotted key, and validation takes time for every table: `read_toml`
rejects excessive input before parsing. TOML has no null: `write_toml` leaves None out, which in a scenario means the
default. `tomli_w` writes no single values; `inline_toml` does, for overrides.
"""

from __future__ import annotations

import json
import numbers
import re
import tomllib
from collections.abc import Mapping
from typing import Any

import tomli_w

TABLE_LIST_KEYS = ("job", "traffic", "fault", "policy", "link_override")
"""Keys of a scenario that are lists of tables ([[key]])."""
BARE = re.compile(r"[A-Za-z0-9_-]+")
MOST_PARTS, MOST_BRACKETS = 64, 100_000
"""Maximum parts of a dotted key, and opening brackets (tables and lists) of a file; our choice."""
_KEY = r"""(?:[\w-]++|"(?:[^"\\\n]|\\[^\n])*+"|'[^'\n]*+')"""
_SKIPPED = "|".join(
    (
        r'''"""(?:[^\\"]|\\.|"(?!""))*+(?:"""|\Z)''',
        r"""'''(?:[^']|'(?!''))*+(?:'''|\Z)""",
        _KEY + r"(?![ \t]*+\.)",
        r""""(?:[^"\\\n]|\\[^\n])*+(?!")|'[^'\n]*+(?!')""",  # unterminated
        r"\#[^\n]*+",
        r"""[^\w"'#\[{-]""",
    )
)
_DOTTED = rf"{_KEY}(?:[ \t]*+\.[ \t]*+{_KEY})*+"
_TOKEN = re.compile(rf"(?:{_SKIPPED})*+(?:(?P<key>{_DOTTED})|(?P<bracket>[\[{{])|.|\Z)", re.ASCII | re.DOTALL)
"""Skipped text, then a dotted key, an opening bracket, or a character outside any token; possessive, so that the time
is linear."""


def read_toml(text: str) -> dict[str, Any]:
    """Return the tables of a TOML text, as `tomllib.loads` does. Raises tomllib.TOMLDecodeError if it is invalid, or
    has too deeply nested keys or tables, or too many tables."""
    brackets = 0
    for token in _TOKEN.finditer(text):
        key = token["key"] or ""
        if key.count(".") >= MOST_PARTS and len(re.findall(_KEY, key, re.ASCII)) > MOST_PARTS:
            line = text.count("\n", 0, token.start("key")) + 1
            raise tomllib.TOMLDecodeError(f"a dotted key has more than {MOST_PARTS} parts (at line {line})")
        brackets += token["bracket"] is not None
        if brackets > MOST_BRACKETS:
            raise tomllib.TOMLDecodeError(f"there are more than {MOST_BRACKETS:,} tables and lists")
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise tomllib.TOMLDecodeError("too deeply nested brackets") from None


def write_toml(tables: Mapping[str, Any]) -> str:
    """Return the text that `tomllib.loads` turns into `tables` again, without None values. Values are texts, integers,
    floats, booleans, lists and tables of these. TypeError for anything else."""
    return tomli_w.dumps(without_none(tables))


def without_none(value: Any) -> Any:
    """Return a value without the keys of its tables that are None."""
    if isinstance(value, Mapping):
        return {key: without_none(each) for key, each in value.items() if each is not None}
    return [without_none(each) for each in value] if isinstance(value, (list, tuple)) else value


def _key(key: str) -> str:
    return key if BARE.fullmatch(key) else _text(key)


def inline_toml(value: Any) -> str:
    """Return a value on one line, tables in braces. TypeError for unsupported types."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, numbers.Integral):  # NumPy's as well
        return repr(int(value))
    if isinstance(value, numbers.Real):
        return repr(float(value))
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(inline_toml, value))}]"
    if isinstance(value, Mapping):
        return (
            f"{{{', '.join(f'{_key(key)} = {inline_toml(each)}' for key, each in value.items() if each is not None)}}}"
        )
    raise TypeError(f"TOML has no {type(value).__name__}")


def _text(text: str) -> str:
    """Return a string as JSON writes it: TOML's basic string except for DEL; other scripts stay as they are."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
