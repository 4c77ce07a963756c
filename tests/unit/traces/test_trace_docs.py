"""docs/traces.md says what is there: every column of every table."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import gradwire
from gradwire.traces.storage.tables import GRAPHS, RMS, SCHEMAS, SCHEMAS_3

ROOT = Path(gradwire.__file__).resolve().parents[1]
TEXT = (ROOT / "docs" / "traces.md").read_text(encoding="utf-8")


TABLES = {**SCHEMAS, **GRAPHS, "communications": SCHEMAS_3["communications"]}


@pytest.mark.parametrize("table", TABLES)
def test_docs_describe_every_column_of_trace_tables(table: str) -> None:
    section = TEXT.split(f"### {table}\n")[1].split("\n#")[0]
    described = re.findall(r"^\| `(\w+)` \| ([\w ]+) \|", section, flags=re.MULTILINE)
    fields = [*TABLES[table], *([RMS] if table == "chunks" else [])]
    types = [re.sub(r"list<item: (\w+)>", r"list of \1", str(field.type)) for field in fields]
    assert described == [(field.name, kind) for field, kind in zip(fields, types, strict=True)]
