"""`content_digest` hashes the tables of a Result, so that two runs can be compared.

The digest covers the tables, to the byte, without columns that repeat the scenario, and neither summary nor timing.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from gradwire.result_store.arrow import to_numpy
from gradwire.result_store.table_schema import TABLES

if TYPE_CHECKING:
    from gradwire.result_store.result import Result

INPUT_COLUMNS = frozenset(
    {
        ("messages", "bound"),
        ("messages", "share"),
        ("messages", "priority"),
        ("drops", "important"),
        ("packets", "important"),
    }
)
"""Columns that repeat the scenario."""


def content_digest(result: Result) -> str:
    """Return the SHA-256 (hex) of all tables of a Result, except columns that repeat its scenario."""
    digest = hashlib.sha256()
    for name, columns in sorted(TABLES.items()):
        measured = [column for column in columns if (name, column) not in INPUT_COLUMNS]
        hashes, rows = {column: hashlib.sha256() for column in measured}, 0
        for part in result.parts(name, *measured) if measured else ():
            rows += part.num_rows
            for column in measured:
                values = to_numpy(part[column])
                text = values.dtype == object
                hashes[column].update("".join(f"{each}\0" for each in values).encode() if text else values.tobytes())
        digest.update(f"{name} {rows}".encode())
        for column in measured:
            digest.update(column.encode() + hashes[column].digest())
    return digest.hexdigest()
