"""Traces that are damaged, or say what cannot be: refused with file, finding and expectation."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from trace_cases import small_trace
from written_traces import TABLES, edit_manifest

from gradwire.scenarios.errors import TraceError
from gradwire.traces.storage.tables import SCHEMA_VERSION
from gradwire.traces.trace import load_trace


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    return small_trace(iterations=3, tensors=4).save(tmp_path / "trace")


def test_folder_without_a_manifest_is_refused(saved: Path) -> None:
    (saved / "manifest.json").unlink()
    with pytest.raises(TraceError, match=r"no manifest\.json") as caught:
        load_trace(saved)
    assert caught.value.where == str(saved)


@pytest.mark.parametrize("name", [f"{table}.parquet" for table in TABLES])
def test_missing_table_file_is_refused(saved: Path, name: str) -> None:
    (saved / name).unlink()
    with pytest.raises(TraceError, match="missing") as caught:
        load_trace(saved)
    assert caught.value.where.endswith(name)


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("keep", [0.0, 0.3, 0.9, 0.999])
def test_truncated_parquet_file_is_refused(saved: Path, table: str, keep: float) -> None:
    file = saved / f"{table}.parquet"
    content = file.read_bytes()
    file.write_bytes(content[: int(len(content) * keep)])
    with pytest.raises(TraceError, match="truncated or damaged") as caught:
        load_trace(saved)
    assert caught.value.where.endswith(f"{table}.parquet")
    assert caught.value.expected == "a complete Parquet file"


def test_flipped_byte_in_parquet_data_is_refused(saved: Path) -> None:
    file = saved / "chunks.parquet"
    content = bytearray(file.read_bytes())
    metadata = pq.read_metadata(file).row_group(0).column(1)
    content[metadata.data_page_offset + metadata.total_compressed_size - 2] ^= 0x10
    file.write_bytes(content)
    with pytest.raises(TraceError, match="damaged"):
        load_trace(saved)


def test_unsupported_schema_version_is_refused(saved: Path) -> None:
    edit_manifest(saved, schema_version=SCHEMA_VERSION + 1)
    with pytest.raises(TraceError, match=f"schema version {SCHEMA_VERSION + 1}; expected {SCHEMA_VERSION}, 2 or 1; "):
        load_trace(saved)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"schema_version": None}, "schema version None"),
        ({"schema_version": True}, "schema version True"),
        ({"magnitudes": {"source": "guessed"}}, "magnitudes .'source': 'guessed'"),
        ({"groups": [{"kind": "fsdp_unit", "tensors": [0, 4]}]}, r"groups\[0\]: tensors \[0, 4\]; expected .* 0 to 3"),
        ({"groups": [{"tensors": [0]}]}, r"groups\[0\]: kind None"),
        ({"name": 3}, "name 3"),
        ({"rows": None}, "rows None"),
        ({"rows": {"layers": 1}}, "number of rows"),
        ({"chunk_elements": 128}, "chunk_elements 128; expected 256"),
    ],
)
def test_invalid_manifest_fields_are_refused(saved: Path, changes: dict[str, Any], message: str) -> None:
    edit_manifest(saved, **changes)
    with pytest.raises(TraceError, match=message):
        load_trace(saved)


@pytest.mark.parametrize("text", ["", "{", "[1]", "\x00"])
def test_manifest_that_is_not_a_json_object_is_refused(saved: Path, text: str) -> None:
    (saved / "manifest.json").write_text(text)
    with pytest.raises(TraceError, match=r"manifest\.json"):
        load_trace(saved)


@pytest.mark.parametrize("table", TABLES)
def test_table_with_a_missing_row_is_refused(saved: Path, table: str) -> None:
    file = saved / f"{table}.parquet"
    whole = pq.read_table(file)
    pq.write_table(whole.slice(0, whole.num_rows - 1), file)
    with pytest.raises(TraceError, match=f"{whole.num_rows - 1} rows; expected {whole.num_rows}"):
        load_trace(saved)
    # The same with a manifest that agrees: now the tables contradict each other (or, for a whole tensor or layer
    # that is gone, the indices that point to it).
    rows = json.loads((saved / "manifest.json").read_text())["rows"]
    edit_manifest(saved, rows={**rows, table: whole.num_rows - 1})
    with pytest.raises(TraceError):
        load_trace(saved)


@pytest.mark.parametrize("table", TABLES)
def test_invalid_utf8_in_parquet_column_names_is_refused(saved: Path, table: str) -> None:
    file = saved / f"{table}.parquet"
    name = pq.read_schema(file).names[0].encode()
    file.write_bytes(file.read_bytes().replace(name, b"\xff" + name[1:]))
    with pytest.raises(TraceError, match=r"truncated or damaged|expected"):
        load_trace(saved)


def test_trace_larger_than_available_memory_is_refused(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gradwire.traces.storage.memory_limits.available_bytes", lambda: 100)
    with pytest.raises(
        TraceError, match=r"chunks.parquet: a trace of \d+ chunks would take .* GiB of memory; expected at most"
    ):
        load_trace(saved)


def replace_column(directory: Path, table: str, column: str, values: pa.Array) -> None:
    file = directory / f"{table}.parquet"
    old = pq.read_table(file)
    place = old.column_names.index(column)
    pq.write_table(old.set_column(place, old.schema.field(column), values), file)


def test_invalid_table_values_are_refused(saved: Path, tmp_path: Path) -> None:
    tensors = pq.read_table(saved / "tensors.parquet")
    chunks = pq.read_table(saved / "chunks.parquet")
    iterations = pq.read_table(saved / "iterations.parquet")
    mean = chunks["mean"].to_numpy().copy()
    mean[3] = np.nan
    early = iterations["ready_ps"].to_pylist()
    early[1][0] = 10**18
    short = iterations["ready_ps"].to_pylist()
    short[1].pop()
    cases: list[tuple[str, str, Any, str]] = [
        ("tensors", "layer", pa.array([99] * 4, pa.int32()), "layer 99; expected 0 to"),
        ("tensors", "dtype", pa.array(["int7"] * 4), "int7"),
        ("tensors", "numel", pa.array([1] * 4), "numel|rows"),
        ("tensors", "name", pa.array([None, "b", "c", "d"], pa.string()), "empty values"),
        ("tensors", "tensor", pa.array([0, 2, 1, 3], pa.int32()), "tensor 2 in row 1; expected 1"),
        ("chunks", "mean", pa.array(mean), "non-finite"),
        ("iterations", "sampled", pa.array([True, False, True]), "rows; expected .* for these tensors"),
        ("iterations", "rank", pa.array([0, -1, 0], pa.int32()), "iteration 1: rank -1; expected 0 or more"),
        ("iterations", "rank", pa.array([0, None, 0], pa.int32()), "empty values"),
        ("iterations", "ready_ps", pa.array(early), "iteration 1: a gradient is ready outside of the iteration"),
        ("iterations", "ready_ps", pa.array(short), "iteration 1: ready_ps is int64"),
        ("iterations", "end_ps", pa.array([1, 2, 3]), "end_ps 1; expected"),
    ]
    assert tensors.num_rows == 4
    for number, (table, column, values, message) in enumerate(cases):
        copy = tmp_path / f"case{number}"
        shutil.copytree(saved, copy)
        replace_column(copy, table, column, values)
        with pytest.raises(TraceError, match=message) as caught:
            load_trace(copy)
        assert str(copy) in caught.value.where


def test_columns_of_a_wrong_type_are_refused(saved: Path) -> None:
    file = saved / "chunks.parquet"
    table = pq.read_table(file)
    pq.write_table(table.set_column(0, "mean", table["mean"].cast(pa.float32())), file)
    with pytest.raises(TraceError, match="mean float"):
        load_trace(saved)


def test_parquet_schema_with_non_utf8_name_is_refused(saved: Path) -> None:
    file = saved / "layers.parquet"
    fields = [pa.field(b"la\x97er", pa.int32()), pa.field("name", pa.string())]  # type: ignore[arg-type]
    pq.write_table(pa.table([pa.array([0], pa.int32()), pa.array(["a"])], schema=pa.schema(fields)), file)
    with pytest.raises(TraceError, match=r"layers.parquet: truncated or damaged"):
        load_trace(saved)
