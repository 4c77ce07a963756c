"""A writer of TOML: Python's `tomllib` reads it only, and what a scenario holds needs no more than this.

Tables become [sections], lists of tables [[sections]], everything else stands on a line of its own. There is no null in
TOML: a None is left out, which in a scenario means the same as its default.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

SEVERAL = ("job", "traffic", "fault", "policy", "link_override")
"""What a scenario may have several of, as [[tables]]."""
BARE = re.compile(r"[A-Za-z0-9_-]+")


def write_toml(tables: Mapping[str, Any]) -> str:
    """The text that `tomllib.loads` turns into `tables` again, without what is None.

    Values are texts, whole numbers, floats, booleans, lists and tables of these. TypeError for anything else.
    """
    return "\n".join(_section((), tables)).lstrip("\n") + "\n"


def _section(path: tuple[str, ...], table: Mapping[str, Any]) -> Iterator[str]:
    """The lines of one table: first what stands on lines, since what follows a header belongs to it."""
    inner = {key: value for key, value in table.items() if value is not None}
    for key, value in inner.items():
        if not isinstance(value, Mapping) and not _are_tables(value):
            yield f"{_key(key)} = {inline(value)}"
    for key, value in inner.items():
        deeper = (*path, _key(key))
        if isinstance(value, Mapping):
            yield from ("", f"[{'.'.join(deeper)}]", *_section(deeper, value))
        elif _are_tables(value):
            for each in value:
                yield from ("", f"[[{'.'.join(deeper)}]]", *_section(deeper, each))


def _are_tables(value: Any) -> bool:
    is_list = isinstance(value, (list, tuple)) and len(value) > 0
    return is_list and all(isinstance(each, Mapping) for each in value)


def _key(key: str) -> str:
    return key if BARE.fullmatch(key) else _text(key)


def inline(value: Any) -> str:
    """A value on one line, tables in braces. TypeError for what TOML does not have."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(inline, value))}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{_key(key)} = {inline(each)}' for key, each in value.items() if each is not None)}}}"
    raise TypeError(f"TOML has no {type(value).__name__}")


def _text(text: str) -> str:
    """As JSON writes it, which TOML's basic strings are but for DEL; other scripts stay as they are."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
