"""`read_parts` reads the folder of a trace strictly, and checks it against the schemas in `tables`.

Any deviation from `gradwire.traces.storage.tables` raises TraceError with the file, the value and the expected one.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gradwire.scenarios.arrays import AnyArray, AnyInts, Float16s, Ints
from gradwire.scenarios.errors import TraceError
from gradwire.scenarios.json_data import Json, parse_json
from gradwire.traces.parts import CHUNK_ELEMENTS, Communication, Iteration, TensorInfo
from gradwire.traces.rank_graphs import ROLES, UNITS, RankCall, RankGraphs
from gradwire.traces.storage.memory_limits import refuse_beyond
from gradwire.traces.storage.tables import GRAPHS, READABLE, RMS, SCHEMA_VERSION, TIMES

READ_ERRORS = (pa.ArrowException, OSError, ValueError, OverflowError)  # what reading a damaged table may raise


def read_parts(directory: Path, bundled: Mapping[str, Path]) -> dict[str, Any]:
    """Return the arguments of `gradwire.traces.trace.Trace` for the trace in `directory`; TraceError if a part is
    missing or damaged. `bundled`: folders of the bundled traces, by name, whose magnitudes it may share."""
    manifest, rows, version = _read_manifest(directory / "manifest.json")
    schemas = READABLE[version]
    layers, tensors, iterations = (
        _read_table(directory / f"{name}.parquet", schemas[name], rows[name])
        for name in ("layers", "tensors", "iterations")
    )
    _expect_order(directory / "layers.parquet", layers, "layer")
    _expect_order(directory / "tensors.parquet", tensors, "tensor")
    infos = [
        TensorInfo(**{**row, "shape": tuple(row["shape"])}) for row in tensors.drop_columns(["tensor"]).to_pylist()
    ]
    captured = _iterations(iterations)
    sampled = list(range(len(captured)))
    if "sampled" in iterations.column_names:
        sampled = np.flatnonzero(iterations["sampled"].to_pylist()).tolist()
    shape = (len(sampled), sum(info.chunks for info in infos))
    owner, schema = _owner_of_chunks(directory, manifest, version, bundled)
    halves = _read_magnitudes(owner / "chunks.parquet", schema, rows["chunks"], shape, infos)
    return {
        "manifest": manifest,
        "layers": layers["name"].to_pylist(),
        "tensors": infos,
        "iterations": captured,
        "chunk_mean": halves["mean"],
        "chunk_max": halves["max"],
        "chunk_rms": halves.get("rms"),
        "sampled": sampled,
        "communications": _communications(directory, schemas, rows),
        "graphs": _graphs(directory, rows) if "nodes" in rows and version == SCHEMA_VERSION else None,
    }


def _communications(directory: Path, schemas: dict[str, pa.Schema], rows: dict[str, int]) -> list[Communication]:
    if "communications" not in schemas:
        return []
    path = directory / "communications.parquet"
    table = _read_table(path, schemas["communications"], rows["communications"])
    _expect_order(path, table, "communication")
    keys = ("name", "layer", "pass", "kind", "group", "bytes")
    return [Communication(*(row[key] for key in keys)) for row in table.to_pylist()]


def _graphs(directory: Path, rows: dict[str, int]) -> RankGraphs:
    nodes, calls = (_read_table(directory / f"{name}.parquet", GRAPHS[name], rows.get(name, -1)) for name in GRAPHS)
    _expect_order(directory / "nodes.parquet", nodes, "node")
    _expect_order(directory / "calls.parquet", calls, "call")
    indices = {}
    for name, known in (("unit", UNITS), ("role", ROLES)):
        values = nodes[name].to_pylist()
        if wrong := set(values) - set(known):
            raise TraceError(f"{name} {min(wrong)!r}", str(directory / "nodes.parquet"), ", ".join(known))
        indices[name] = np.array([known.index(value) for value in values], dtype=np.int64)
    needs = _lists(nodes["needs"])
    rank, effort, call = (_numbers(nodes[name]).astype(np.int64) for name in ("rank", "effort_ps", "call"))
    return RankGraphs(
        names=nodes["name"].to_pylist(),
        rank=rank,
        unit=indices["unit"],
        role=indices["role"],
        effort_ps=effort,
        call=call,
        first=np.concatenate([[0], np.cumsum([len(value) for value in needs])]).astype(np.int64),
        needs=np.concatenate([*needs, np.zeros(0, dtype=np.int64)]),
        calls=[RankCall(row["kind"], tuple(row["members"]), row["bytes"]) for row in calls.to_pylist()],
    )


def _owner_of_chunks(
    directory: Path, manifest: Json, version: int, bundled: Mapping[str, Path]
) -> tuple[Path, pa.Schema]:
    """Return (the directory with the magnitudes, their columns), and remove `chunks_of` from the manifest."""
    name = manifest.pop("chunks_of", None)
    if name is None:
        return directory, READABLE[version]["chunks"]
    if name not in bundled:
        known = ", ".join(bundled)
        raise TraceError(f"chunks_of {name!r}", str(directory / "manifest.json"), f"a bundled trace: {known}")
    owner = bundled[name]
    owned, _, written = _read_manifest(owner / "manifest.json")
    if "chunks_of" in owned:
        raise TraceError(f"chunks_of {name!r}", str(directory / "manifest.json"), "a trace with its own magnitudes")
    return owner, READABLE[written]["chunks"]


def _read_manifest(path: Path) -> tuple[Json, dict[str, int], int]:
    """Return (manifest, number of rows of each table, schema version)."""
    try:
        manifest = parse_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise TraceError("not a trace: no manifest.json", str(path.parent), "the folder of a trace") from None
    except (OSError, ValueError) as error:
        raise TraceError(f"cannot be read ({error})", str(path), "a JSON object") from error
    if not isinstance(manifest, dict):
        raise TraceError(f"is a JSON {type(manifest).__name__}", str(path), "a JSON object")
    version = manifest.pop("schema_version", None)
    if type(version) is not int or version not in READABLE:
        advice = "; capture it again or use the gradwire that wrote it" if version is not None else ""
        *newer, oldest = (str(number) for number in sorted(READABLE, reverse=True))
        raise TraceError(f"schema version {version}", str(path), f"{', '.join(newer)} or {oldest}{advice}")
    if not isinstance(manifest.get("name"), str):
        raise TraceError(f"name {manifest.get('name')!r}", str(path), "the name of the trace as text")
    if manifest.get("chunk_elements", CHUNK_ELEMENTS) != CHUNK_ELEMENTS:
        raise TraceError(f"chunk_elements {manifest['chunk_elements']}", str(path), str(CHUNK_ELEMENTS))
    rows = manifest.pop("rows", None)
    if not isinstance(rows, dict) or not all(type(rows.get(name)) is int for name in READABLE[version]):
        raise TraceError(f"rows {rows!r}", str(path), "the number of rows of " + ", ".join(READABLE[version]))
    return manifest, rows, version


def _open_table(path: Path, schema: pa.Schema, rows: int) -> pq.ParquetFile:
    """Open the Parquet file at `path` after a check of its columns (rms may follow) and number of rows."""
    try:
        file = pq.ParquetFile(path, page_checksum_verification=True)
        actual = file.schema_arrow
    except FileNotFoundError:
        raise TraceError("missing", str(path), "a table that every trace has") from None
    except READ_ERRORS as error:
        raise _damaged(path, error) from error
    if not (actual.equals(schema) or ("mean" in schema.names and actual.equals(schema.append(RMS)))):
        columns = ", ".join(f"{field.name} {field.type}" for field in actual)
        expected = ", ".join(f"{field.name} {field.type}" for field in schema)
        raise TraceError(f"columns {columns}", str(path), expected)
    if file.metadata.num_rows != rows:
        raise TraceError(f"{file.metadata.num_rows} rows", str(path), f"{rows}, as the manifest says")
    return file


def _damaged(path: Path, error: Exception) -> TraceError:
    reason = next(iter(str(error).splitlines()), type(error).__name__)
    return TraceError(f"truncated or damaged ({reason})", str(path), "a complete Parquet file")


def _expect_full(path: Path, table: pa.Table) -> None:
    for name in table.column_names:
        if table[name].null_count:
            raise TraceError(f"column {name} has {table[name].null_count} empty values", str(path), "none")


def _read_table(path: Path, schema: pa.Schema, rows: int) -> pa.Table:
    with _open_table(path, schema, rows) as file:
        try:
            table = file.read()
        except READ_ERRORS as error:
            raise _damaged(path, error) from error
    _expect_full(path, table)
    return table


def _read_magnitudes(
    path: Path, schema: pa.Schema, rows: int, shape: tuple[int, int], infos: list[TensorInfo]
) -> dict[str, Float16s]:
    """Return the columns of magnitudes, float16 of `shape` each, read one row group at a time to save memory."""
    with _open_table(path, schema, rows) as file:
        if rows != shape[0] * shape[1]:
            raise TraceError(f"{rows} rows", str(path), f"{shape[0] * shape[1]} for these tensors and iterations")
        columns = [name for name in file.schema_arrow.names if name in ("mean", "max", "rms")]
        refuse_beyond(2 * rows * len(columns), f"a trace of {rows} chunks", str(path))
        halves = {name: np.empty(rows, dtype=np.float16) for name in columns}
        tensor_of = np.empty(0, dtype=np.int32)
        if "tensor" in file.schema_arrow.names:
            tensor_of = np.repeat(np.arange(len(infos), dtype=np.int32), [info.chunks for info in infos])
        at = 0
        for group in range(file.num_row_groups):
            try:
                table = file.read_row_group(group)
            except READ_ERRORS as error:
                raise _damaged(path, error) from error
            _expect_full(path, table)
            end = at + table.num_rows
            for name, values in halves.items():
                values[at:end] = _numbers(table[name])
            if "iteration" in table.column_names:  # version 1 has columns that identify a row
                positions = np.arange(at, end)
                _expect_numbers(path, table, "tensor", tensor_of[positions % shape[1]], at)
                _expect_numbers(path, table, "iteration", positions // shape[1], at)
            at = end
    return {name: values.reshape(shape) for name, values in halves.items()}


def _expect_order(path: Path, table: pa.Table, column: str) -> None:
    """Raise TraceError unless `column` counts from 0: rows are addressed by position."""
    _expect_numbers(path, table, column, np.arange(table.num_rows), 0)


def _expect_numbers(path: Path, table: pa.Table, column: str, expected: AnyInts, first_row: int) -> None:
    values = _numbers(table[column])
    wrong = values != expected
    if wrong.any():
        row = int(np.argmax(wrong))
        raise TraceError(f"{column} {values[row]} in row {first_row + row}", str(path), f"{expected[row]}")


def _numbers(column: pa.ChunkedArray) -> AnyArray:
    """Return a column of numbers without gaps, by DLPack: `to_numpy` imports pandas, slower than reading a trace."""
    chunks = column.chunks
    return np.from_dlpack(pa.concat_arrays(chunks)) if chunks else np.empty(0, column.type.to_pandas_dtype())


def _lists(column: pa.ChunkedArray) -> list[Ints]:
    """Return the rows of a column of lists as int64 arrays; an empty one has length 0."""
    values = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], type=TIMES)
    ends = np.cumsum(np.from_dlpack(values.value_lengths()))
    return np.split(np.from_dlpack(values.flatten()).astype(np.int64), ends[:-1])


def _iterations(table: pa.Table) -> list[Iteration]:
    columns = ("forward_start_ps", "forward_end_ps", "ready_ps", "asked_ps")
    times = {name: _lists(table[name]) for name in columns if name in table.column_names}
    plain = table.drop_columns(list(times)).to_pylist()
    for number, row in enumerate(plain):
        row["index"] = row.pop("iteration")
        row.pop("sampled", None)
        row.update({name: lists[number] for name, lists in times.items()})
    return [Iteration(**row) for row in plain]
