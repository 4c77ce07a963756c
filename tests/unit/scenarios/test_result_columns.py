"""Every column of every table of a Result refuses what it cannot hold, in one message, when it is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gradwire.result_store.columns import LEAST, VOCABULARIES, check_values
from gradwire.result_store.result import Result
from gradwire.result_store.table_schema import KINDS, TABLES, make_table
from gradwire.scenarios.errors import ResultError

POSITIVE = {"ideal_ps": 1}
GOOD = {"int8": 0, "int32": 0, "int64": 0, "float64": 0.5, "bool": False, "string": "a"}
BAD: dict[str, tuple[Any, ...]] = {
    "int8": (-2,), "int32": (-2,), "int64": (-2, 1 << 62 | 1), "float64": (float("inf"), float("nan"), -0.1, 1.5), "string": ("",),
}  # fmt: skip
TIMES = ("start_ps", "forward_end_ps", "backward_end_ps", "end_ps")
FREE = {("iterations", "exposed_ps"), ("packets", "argument"), *(("iterations", name) for name in TIMES)}
"""Columns of whole numbers that may be anything."""
COLUMNS = [
    (table, column, kind) for table, columns in TABLES.items() for column, kind in columns.items() if kind != "bool"
]


def good_row(table: str) -> dict[str, Any]:
    row = {column: GOOD[kind] for column, kind in TABLES[table].items()}
    words = {column: values[0] for (named, column), values in VOCABULARIES.items() if named == table}
    positive = {column: value for column, value in POSITIVE.items() if column in row}
    return row | ({"port": "a->b"} if "port" in row else {}) | positive | words


def table_of(name: str, row: dict[str, Any]) -> pa.Table:
    return make_table(name, {column: [value] for column, value in row.items()})


@pytest.mark.parametrize("name", TABLES)
def test_valid_column_values_are_accepted(name: str):
    check_values(name, table_of(name, good_row(name)), Path(f"{name}.parquet"))
    unknown = {column: -1 for (table, column), least in LEAST.items() if table == name and least == -1}
    check_values(name, table_of(name, good_row(name) | unknown), Path(f"{name}.parquet"))


@pytest.mark.parametrize(("name", "column", "kind"), COLUMNS)
def test_invalid_column_values_are_rejected(name: str, column: str, kind: str):
    values = (*BAD[kind], "bogus") if (name, column) in VOCABULARIES else BAD[kind]
    values = (*values, "x", "a->b->c", "->b") if column == "port" else values
    for value in values:
        if value == -2 and (name, column) in FREE:
            continue
        with pytest.raises(ResultError) as raised:
            check_values(name, table_of(name, good_row(name) | {column: value}), Path(f"{name}.parquet"))
        assert str(raised.value).startswith(f"{name}.parquet: {column} is ")
        assert " in row 0; expected " in str(raised.value)


@pytest.mark.parametrize(
    ("table", "column", "value", "words"),
    [
        ("messages", "kind", "bogus", f'kind is "bogus" in row 0; expected one of {", ".join(KINDS)}'),
        ("messages", "share", float("inf"), "share is inf in row 0; expected 0.0 to 1.0"),
        ("ports", "port", "x", 'port is "x" in row 0; expected two nodes, such as a->b'),
    ],
)
def test_result_read_rejects_altered_column_values(tmp_path: Path, table: str, column: str, value: Any, words: str):
    tables = {name: {key: [value] for key, value in good_row(name).items()} for name in ("messages", "ports")}
    Result.build({"name": "x", "totals": {}}, tables).write(tmp_path / "result")
    Result.read(tmp_path / "result")
    path = tmp_path / "result" / f"{table}.parquet"
    pq.write_table(table_of(table, good_row(table) | {column: value}), path)
    with pytest.raises(ResultError) as raised:
        Result.read(tmp_path / "result")
    assert str(raised.value) == f"{path}: {words}"


@pytest.mark.parametrize("number", ["1e999", "NaN", "9" * 30])
def test_result_read_rejects_non_finite_and_huge_json_numbers(tmp_path: Path, number: str):
    Result.build({"name": "x", "totals": {"lost_bytes": 7}}, {}).write(tmp_path / "result")
    path = tmp_path / "result" / "result.json"
    path.write_text(path.read_text().replace("7", number, 1))
    with pytest.raises(ResultError, match=r"totals\.lost_bytes is"):
        Result.read(tmp_path / "result")
