"""Digests of Results: whether two runs came out the same.

The tables count, to the byte, and nothing that repeats the scenario or tells how long the run took: neither summary nor
timing, nor columns that hold what was asked for.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from gradwire.scenarios.arrow import numpy_of
from gradwire.scenarios.result import TABLES

if TYPE_CHECKING:
    from gradwire.scenarios.result import Result

ASKED_FOR = frozenset({
    ("messages", "bound"), ("messages", "share"), ("messages", "priority"), ("drops", "important"),
    ("packets", "important"),
})
"""Columns that repeat the scenario."""


def content_digest(result: Result) -> str:
    """Return the SHA-256 (hex) of all tables of a Result but for columns that repeat its scenario."""
    found = hashlib.sha256()
    for name, columns in sorted(TABLES.items()):
        asked = [column for column in columns if (name, column) not in ASKED_FOR]
        hashes, rows = {column: hashlib.sha256() for column in asked}, 0
        for part in result.parts(name, *asked) if asked else ():
            rows += part.num_rows
            for column in asked:
                values = numpy_of(part[column])
                text = values.dtype == object
                hashes[column].update("".join(f"{each}\0" for each in values).encode() if text else values.tobytes())
        found.update(f"{name} {rows}".encode())
        for column in asked:
            found.update(column.encode() + hashes[column].digest())
    return found.hexdigest()
