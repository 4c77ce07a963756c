"""Edits a kernel's source for a User-Mode Linux with exact time, repeatable runs and better speed
(`kernel_patches.toml`).

Every pattern must match exactly once in its file, so that an unsuitable source is rejected.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import NamedTuple

from gradwire.emu.switches.backend_kind import TestbedError

SOURCE = "the source of Linux 6.1 or 6.12"


class Edit(NamedTuple):
    """A replacement of `pattern` by `new` in `file`, only if the file contains `where`."""

    file: str
    pattern: str
    new: str
    where: str = ""


_TABLES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
EXACT, QUICK = (tuple(Edit(**table) for table in _TABLES[key]) for key in ("exact", "quick"))
EDITS = (*EXACT, *QUICK)


def edit(source: Path) -> None:
    """Edit an unpacked source; raise TestbedError if a pattern does not match exactly once."""
    for rule in EDITS:
        path = source / rule.file
        text = path.read_text()
        if rule.where not in text:
            continue
        new = rule.new if "\\g<" in rule.new else rule.new.replace("\\", "\\\\")
        text, count = re.subn(rule.pattern, new, text)
        if count != 1:
            what = f"pattern in {path.name} matches {count} times; expected 1"
            raise TestbedError(what, "the virtual-time kernel", SOURCE)
        path.write_text(text)
