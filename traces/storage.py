"""How a trace lies on disk: `manifest.json` and four Parquet tables (zstd, with page checksums).

    layers      layer i32, name str
    tensors     tensor i32, name str, shape list<i64>, numel i64, dtype str, layer i32, scale_exponent i32
    iterations  iteration i32, phase str, step i64, loss f64, forward_start_ps list<i64>[L], forward_end_ps
    list<i64>[L],
                ready_ps list<i64>[T], backward_end_ps i64, optimizer_ps i64, end_ps i64
    chunks      iteration i32, tensor i32, mean f16, max f16    (ordered by iteration, tensor, place in the
    tensor)

Reading is strict: a trace that is not exactly this raises TraceError with the file, what is wrong and what
was expected. The row counts also stand in the manifest, so that a table from another trace is noticed.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from scenarios.errors import TraceError
from traces.trace import CHUNK_ELEMENTS, SCHEMA_VERSION, Iteration, TensorInfo, Trace

if TYPE_CHECKING:
    from numpy.typing import NDArray

_TIMES = pa.list_(pa.int64())
SCHEMAS: dict[str, pa.Schema] = {
    "layers": pa.schema([("layer", pa.int32()), ("name", pa.string())]),
    "tensors": pa.schema(
        [
            ("tensor", pa.int32()),
            ("name", pa.string()),
            ("shape", pa.list_(pa.int64())),
            ("numel", pa.int64()),
            ("dtype", pa.string()),
            ("layer", pa.int32()),
            ("scale_exponent", pa.int32()),
        ]
    ),
    "iterations": pa.schema(
        [
            ("iteration", pa.int32()),
            ("phase", pa.string()),
            ("step", pa.int64()),
            ("loss", pa.float64()),
            ("forward_start_ps", _TIMES),
            ("forward_end_ps", _TIMES),
            ("ready_ps", _TIMES),
            ("backward_end_ps", pa.int64()),
            ("optimizer_ps", pa.int64()),
            ("end_ps", pa.int64()),
        ]
    ),
    "chunks": pa.schema(
        [("iteration", pa.int32()), ("tensor", pa.int32()), ("mean", pa.float16()), ("max", pa.float16())]
    ),
}


def write(trace: Trace, directory: Path) -> Path:
    """Write `trace` to the new `directory`: built beside it under another name, then renamed."""
    if directory.exists():
        raise TraceError("exists already", str(directory), "a new directory")
    directory.parent.mkdir(parents=True, exist_ok=True)
    tables = _tables(trace)
    manifest = {
        "schema_version": SCHEMA_VERSION,
        **trace.manifest,
        "rows": {name: table.num_rows for name, table in tables.items()},
    }
    building = Path(tempfile.mkdtemp(prefix=f".{directory.name}-", dir=directory.parent))
    try:
        for name, table in tables.items():
            _write_table(table, building / f"{name}.parquet")
        (building / "manifest.json").write_text(json.dumps(manifest, indent=2, sort_keys=True) + "\n")
        building.chmod(0o755)  # mkdtemp makes it private, and a trace is meant to be shared
        building.rename(directory)
    except OSError as error:
        raise TraceError(
            f"cannot be written ({error})", str(directory), "a writable place with room"
        ) from error
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return directory


def _write_table(table: pa.Table, path: Path) -> None:
    # Magnitudes of neighbouring chunks share exponents but not mantissas: split bytes let zstd see that.
    split = [name for name in ("mean", "max") if name in table.column_names]
    pq.write_table(
        table,
        path,
        compression="zstd",
        compression_level=19,
        use_dictionary=[name for name in table.column_names if name not in split],
        use_byte_stream_split=split,
        write_page_checksum=True,
    )


def _tables(trace: Trace) -> dict[str, pa.Table]:
    iterations, tensors = trace.iterations, trace.tensors
    per_iteration = np.repeat(np.arange(len(tensors), dtype=np.int32), [tensor.chunks for tensor in tensors])
    columns: dict[str, dict[str, Any]] = {
        "layers": {"layer": range(len(trace.layers)), "name": trace.layers},
        "tensors": {
            "tensor": range(len(tensors)),
            "name": [t.name for t in tensors],
            "shape": [list(t.shape) for t in tensors],
            "numel": [t.numel for t in tensors],
            "dtype": [t.dtype for t in tensors],
            "layer": [t.layer for t in tensors],
            "scale_exponent": [t.scale_exponent for t in tensors],
        },
        "iterations": {
            "iteration": [i.index for i in iterations],
            "phase": [i.phase for i in iterations],
            "step": [i.step for i in iterations],
            "loss": [i.loss for i in iterations],
            "forward_start_ps": [i.forward_start_ps for i in iterations],
            "forward_end_ps": [i.forward_end_ps for i in iterations],
            "ready_ps": [i.ready_ps for i in iterations],
            "backward_end_ps": [i.backward_end_ps for i in iterations],
            "optimizer_ps": [i.optimizer_ps for i in iterations],
            "end_ps": [i.end_ps for i in iterations],
        },
        "chunks": {
            "iteration": np.repeat(np.arange(len(iterations), dtype=np.int32), len(per_iteration)),
            "tensor": np.tile(per_iteration, len(iterations)),
            "mean": trace._mean.reshape(-1),
            "max": trace._max.reshape(-1),
        },
    }
    return {
        name: pa.table(
            {field.name: pa.array(columns[name][field.name], type=field.type) for field in schema}, schema
        )
        for name, schema in SCHEMAS.items()
    }


def read(directory: Path) -> Trace:
    """The trace in `directory`."""
    manifest, rows = _read_manifest(directory / "manifest.json")
    tables = {
        name: _read_table(directory / f"{name}.parquet", schema, rows[name])
        for name, schema in SCHEMAS.items()
    }
    layers, tensors, iterations, chunks = (tables[name] for name in SCHEMAS)
    _expect_order(directory / "layers.parquet", layers, "layer", np.arange(layers.num_rows))
    _expect_order(directory / "tensors.parquet", tensors, "tensor", np.arange(tensors.num_rows))
    infos = [
        TensorInfo(
            row["name"], tuple(row["shape"]), row["numel"], row["dtype"], row["layer"], row["scale_exponent"]
        )
        for row in tensors.to_pylist()
    ]
    counts = np.array([info.chunks for info in infos], dtype=np.int64)
    per_iteration = np.repeat(np.arange(len(infos), dtype=np.int32), counts)
    numbers = np.arange(iterations.num_rows, dtype=np.int32)[:, np.newaxis]
    place = directory / "chunks.parquet"
    _expect_order(place, chunks, "tensor", np.broadcast_to(per_iteration, (len(numbers), len(per_iteration))))
    _expect_order(place, chunks, "iteration", np.broadcast_to(numbers, (len(numbers), len(per_iteration))))
    shape = (iterations.num_rows, int(counts.sum()))
    try:
        return Trace(
            manifest,
            layers["name"].to_pylist(),
            infos,
            _iterations(iterations),
            chunks["mean"].to_numpy().reshape(shape),
            chunks["max"].to_numpy().reshape(shape),
        )
    except TraceError as error:
        raise TraceError(error.what, f"{directory}: {error.where}", error.expected) from None


def _read_manifest(path: Path) -> tuple[dict[str, Any], dict[str, int]]:
    """(what the trace says of itself, rows that each table must have)."""
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise TraceError("missing", str(path), "the manifest of a trace") from None
    except (OSError, ValueError) as error:
        raise TraceError(f"cannot be read ({error})", str(path), "a JSON object") from error
    if not isinstance(manifest, dict):
        raise TraceError(f"is a JSON {type(manifest).__name__}", str(path), "a JSON object")
    version = manifest.pop("schema_version", None)
    if version != SCHEMA_VERSION:
        advice = "; capture it again or use the gradwire that wrote it" if version is not None else ""
        raise TraceError(f"schema version {version}", str(path), f"{SCHEMA_VERSION}{advice}")
    if not isinstance(manifest.get("name"), str):
        raise TraceError(f"name {manifest.get('name')!r}", str(path), "the name of the trace as text")
    if manifest.get("chunk_elements", CHUNK_ELEMENTS) != CHUNK_ELEMENTS:
        raise TraceError(f"chunk_elements {manifest['chunk_elements']}", str(path), str(CHUNK_ELEMENTS))
    rows = manifest.pop("rows", None)
    if not isinstance(rows, dict) or not all(type(rows.get(name)) is int for name in SCHEMAS):
        raise TraceError(f"rows {rows!r}", str(path), "the number of rows of " + ", ".join(SCHEMAS))
    return manifest, rows


def _read_table(path: Path, schema: pa.Schema, rows: int) -> pa.Table:
    try:
        table = pq.read_table(path, page_checksum_verification=True)
    except FileNotFoundError:
        raise TraceError("missing", str(path), "a table that every trace has") from None
    except (pa.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0]
        raise TraceError(f"truncated or damaged ({reason})", str(path), "a complete Parquet file") from error
    if not table.schema.equals(schema):
        found = ", ".join(f"{field.name} {field.type}" for field in table.schema)
        wanted = ", ".join(f"{field.name} {field.type}" for field in schema)
        raise TraceError(f"columns {found}", str(path), wanted)
    if table.num_rows != rows:
        raise TraceError(f"{table.num_rows} rows", str(path), f"{rows}, as the manifest says")
    for name in table.column_names:
        if table[name].null_count:
            raise TraceError(f"column {name} has {table[name].null_count} empty values", str(path), "none")
    return table


def _expect_order(path: Path, table: pa.Table, column: str, expected: NDArray[np.integer[Any]]) -> None:
    """Raise TraceError unless `column` reads as `expected` row by row: a row is found by its place alone."""
    values = table[column].to_numpy()
    if len(values) != expected.size:
        raise TraceError(
            f"{len(values)} rows", str(path), f"{expected.size} for these tensors and iterations"
        )
    wrong = values.reshape(expected.shape) != expected
    if wrong.any():
        row = int(np.argmax(wrong))
        raise TraceError(f"{column} {values[row]} in row {row}", str(path), f"{expected.flat[row]}")


def _iterations(table: pa.Table) -> list[Iteration]:
    times = {name: table[name].to_pylist() for name in ("forward_start_ps", "forward_end_ps", "ready_ps")}
    plain = table.drop_columns(list(times)).to_pylist()
    return [
        Iteration(
            index=row["iteration"],
            phase=row["phase"],
            step=row["step"],
            loss=row["loss"],
            forward_start_ps=np.array(times["forward_start_ps"][number], dtype=np.int64),
            forward_end_ps=np.array(times["forward_end_ps"][number], dtype=np.int64),
            ready_ps=np.array(times["ready_ps"][number], dtype=np.int64),
            backward_end_ps=row["backward_end_ps"],
            optimizer_ps=row["optimizer_ps"],
            end_ps=row["end_ps"],
        )
        for number, row in enumerate(plain)
    ]
