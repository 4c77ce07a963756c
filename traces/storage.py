"""How a trace lies on disk: `manifest.json` and four Parquet tables (zstd, with page checksums).

    layers      layer i32, name str
    tensors     tensor i32, name str, shape list<i64>, numel i64, dtype str, layer i32, scale_exponent i32
    iterations  iteration i32, phase str, step i64, loss f64, forward_start_ps list<i64>[L],
                forward_end_ps list<i64>[L], ready_ps list<i64>[T], backward_end_ps i64, optimizer_ps i64,
                end_ps i64, rank i32, sampled bool
    chunks      mean f16, max f16, and rms f16 where it is known

A trace with collectives other than those of gradients (`gradwire.traces.parts.Communication`) has version 3: one table
more, one column more of `tensors` (group str), and one of `iterations` (asked_ps list<i64>[C]):

    communications  communication i32, name str, layer i32, pass str, kind str, group str, bytes i64

and, where the graphs of all ranks are known, two more:

    nodes           node i64, name str, rank i32, unit str, role str, effort_ps i64, call i64, needs list<i64>
    calls           call i64, kind str, members list<i32>, bytes i64

The rows of `chunks` are ordered by sampled iteration, tensor, place in the tensor, one row group per sampled
iteration; nothing but the place says whose a row is, since at 20 million rows the two columns of numbers that
would repeat it take more time and memory to read than the magnitudes themselves.

A capture may have kept the gradients themselves: raw/iter0003/00012.npy is the gradient of tensor 12 in
iteration 3, in NumPy's own format, float16, float32 or float64 as it was computed (bfloat16 as float32, which
holds it exactly), in the tensor's shape. They are not read with the trace; `raw_gradient` reads one.

A trace may have the magnitudes of a bundled one and no `chunks` of its own: its manifest then names that trace under
`chunks_of` (`gradwire trace retime --share`).

Without them it is version 2. In version 1, which is still read, every iteration is sampled, rank and rms do not exist
and chunks begin with the columns iteration i32 and tensor i32.

Reading is strict: a trace that is not exactly this raises TraceError with the file, what is wrong and what
was expected. The row counts also stand in the manifest, so that a table from another trace is noticed.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gradwire.scenarios.arrays import AnyArray, AnyInts
from gradwire.scenarios.errors import TraceError
from gradwire.scenarios.given import path_of
from gradwire.scenarios.json_data import Json, JsonView
from gradwire.scenarios.output import FREE, cannot_write, is_taken
from gradwire.traces import trace as traces
from gradwire.traces.graphs import ROLES, UNITS, Call, Graphs
from gradwire.traces.parts import Communication
from gradwire.traces.room import refuse_beyond
from gradwire.traces.trace import (
    CHUNK_ELEMENTS,
    SCHEMA_VERSION,
    Halves,
    Iteration,
    TensorInfo,
    Trace,
    bundled_traces,
    load_trace,
)

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
            ("rank", pa.int32()),
            ("sampled", pa.bool_()),
        ]
    ),
    "chunks": pa.schema([("mean", pa.float16()), ("max", pa.float16())]),
}
RMS = pa.field("rms", pa.float16())
SCHEMAS_1 = {  # version 1, which is only read
    **SCHEMAS,
    "iterations": pa.schema(list(SCHEMAS["iterations"])[:-2]),
    "chunks": pa.schema([("iteration", pa.int32()), ("tensor", pa.int32()), *SCHEMAS["chunks"]]),
}
SCHEMAS_3 = {
    **SCHEMAS,
    "tensors": SCHEMAS["tensors"].append(pa.field("group", pa.string())),
    "iterations": SCHEMAS["iterations"].append(pa.field("asked_ps", _TIMES)),
    "communications": pa.schema(
        [
            ("communication", pa.int32()),
            ("name", pa.string()),
            ("layer", pa.int32()),
            ("pass", pa.string()),
            ("kind", pa.string()),
            ("group", pa.string()),
            ("bytes", pa.int64()),
        ]
    ),
}
GRAPHS = {
    "nodes": pa.schema(
        [
            ("node", pa.int64()),
            ("name", pa.string()),
            ("rank", pa.int32()),
            ("unit", pa.string()),
            ("role", pa.string()),
            ("effort_ps", pa.int64()),
            ("call", pa.int64()),
            ("needs", _TIMES),
        ]
    ),
    "calls": pa.schema(
        [("call", pa.int64()), ("kind", pa.string()), ("members", pa.list_(pa.int32())), ("bytes", pa.int64())]
    ),
}
READABLE = {1: SCHEMAS_1, 2: SCHEMAS, SCHEMA_VERSION: SCHEMAS_3}
RAW = "raw"
DAMAGED = (pa.ArrowException, OSError, ValueError, OverflowError)  # what reading a damaged table may raise
SMALL = 2_000_000  # rows of chunks up to which strong compression takes seconds rather than minutes


def write(trace: Trace, directory: str | Path, raw: Path | None = None, chunks_of: str | None = None) -> Path:
    """Write `trace` to the new `directory`: built beside it under another name, then renamed.

    `raw`, a folder of raw gradients on the same file system, is moved into it. `chunks_of` names the bundled trace that
    has the same magnitudes, which are then not written again; TraceError if it has not.
    """
    directory = path_of(directory, "directory", FREE, TraceError)
    if is_taken(directory):
        raise TraceError("exists already", str(directory), FREE)
    refuse_unwritable(directory)
    version = _version(trace)
    tables = _tables(trace, READABLE[version])
    manifest: Json = {
        "schema_version": version,
        **trace.manifest,
        "rows": {name: table.num_rows for name, table in tables.items()},
    }
    if chunks_of is not None:
        _refuse_unlike(trace, chunks_of)
        manifest["chunks_of"] = chunks_of
        del tables["chunks"]
    text = manifest_text(manifest)
    building = Path(tempfile.mkdtemp(prefix=f".{directory.name}-", dir=directory.parent))
    try:
        for name, table in tables.items():
            _write_table(table, building / f"{name}.parquet", trace)
        (building / "manifest.json").write_text(text)
        if raw is not None:
            raw.rename(building / RAW)
        building.chmod(0o755)  # mkdtemp makes it private, and a trace is meant to be shared
        building.rename(directory)
    except OSError as error:
        raise cannot_write(error, directory, TraceError) from error
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return directory


def manifest_text(manifest: JsonView) -> str:
    """A manifest as JSON. TraceError for what JSON has no way to write: ask before hours of training."""
    try:
        return json.dumps(dict(manifest), indent=2, sort_keys=True) + "\n"
    except (TypeError, ValueError, RecursionError) as error:
        expected = "texts, numbers, and lists and tables of these"
        raise TraceError(f"cannot be written as JSON ({error})", "manifest", expected) from None


def refuse_unwritable(directory: Path) -> None:
    """TraceError, better before hours of training than after, if nothing can be created beside `directory`."""
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{directory.name}-", dir=directory.parent):
            pass
    except OSError as error:
        raise cannot_write(error, directory, TraceError) from error


def raw_folder(directory: Path, iteration: int) -> Path:
    """Where the raw gradients of an iteration lie in the trace `directory`."""
    return directory / RAW / f"iter{iteration:04d}"


def raw_gradient(directory: str | Path, iteration: int, tensor: int) -> AnyArray:
    """The gradient itself, in the tensor's shape, where the capture kept it. TraceError where it did not, or
    if the file is damaged.
    """
    path = raw_folder(Path(directory), iteration) / f"{tensor:05d}.npy"
    try:
        values: AnyArray = np.load(path, allow_pickle=False)
    except FileNotFoundError:
        raise TraceError(
            "missing", str(path), "a capture with raw=True, and an iteration it sampled"
        ) from None
    except (OSError, ValueError, EOFError) as error:
        raise TraceError(f"cannot be read ({error})", str(path), "a NumPy array") from error
    return values


def _refuse_unlike(trace: Trace, name: str) -> None:
    """Raise TraceError unless the bundled trace `name` has the very magnitudes of `trace`."""
    if name not in bundled_traces():
        known = ", ".join(bundled_traces())
        raise TraceError(f"shares the magnitudes of {name}", trace.name, f"a bundled trace: {known}")
    other = load_trace(name)
    for mine, theirs in ((trace._mean, other._mean), (trace._max, other._max), (trace._rms, other._rms)):
        equal = mine is theirs or (mine is not None and theirs is not None and np.array_equal(mine, theirs))
        if not equal or trace.sampled != other.sampled:
            raise TraceError(f"has other magnitudes than {name}", trace.name, "the same ones, to share them")


def _write_table(table: pa.Table, path: Path, trace: Trace) -> None:
    # Magnitudes of neighbouring chunks share exponents but not mantissas: split bytes let zstd see that.
    split = [name for name in ("mean", "max", "rms") if name in table.column_names]
    pq.write_table(
        table,
        path,
        row_group_size=int(trace._offsets[-1]) if split else None,
        compression="zstd",
        compression_level=19 if table.num_rows <= SMALL else 3,
        use_dictionary=[name for name in table.column_names if name not in split],
        use_byte_stream_split=split,
        write_page_checksum=True,
    )


def _version(trace: Trace) -> int:
    """The oldest version that has all that the trace has."""
    plain = not trace.communications and all(tensor.group == "data" for tensor in trace.tensors)
    return 2 if plain and trace.graphs is None else SCHEMA_VERSION


def _tables(trace: Trace, given: dict[str, pa.Schema]) -> dict[str, pa.Table]:
    iterations, tensors, called = trace.iterations, trace.tensors, trace.communications
    schemas = dict(given)
    chunks = {"mean": trace._mean.reshape(-1), "max": trace._max.reshape(-1)}
    if trace._rms is not None:
        schemas["chunks"] = schemas["chunks"].append(RMS)
        chunks["rms"] = trace._rms.reshape(-1)
    sampled = set(trace.sampled)
    columns: dict[str, Json] = {
        "layers": {"layer": range(len(trace.layers)), "name": trace.layers},
        "tensors": {
            "tensor": range(len(tensors)),
            "name": [t.name for t in tensors],
            "shape": [list(t.shape) for t in tensors],
            "numel": [t.numel for t in tensors],
            "dtype": [t.dtype for t in tensors],
            "layer": [t.layer for t in tensors],
            "scale_exponent": [t.scale_exponent for t in tensors],
            "group": [t.group for t in tensors],
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
            "rank": [i.rank for i in iterations],
            "sampled": [i.index in sampled for i in iterations],
            "asked_ps": [i.asked_ps for i in iterations],
        },
        "communications": {
            "communication": range(len(called)),
            "name": [each.name for each in called],
            "layer": [each.layer for each in called],
            "pass": [each.turn for each in called],
            "kind": [each.kind for each in called],
            "group": [each.group for each in called],
            "bytes": [each.bytes for each in called],
        },
        "chunks": chunks,
    }
    if trace.graphs is not None:
        schemas |= GRAPHS
        columns |= _graph_columns(trace.graphs)
    return {
        name: pa.table(
            {field.name: pa.array(columns[name][field.name], type=field.type) for field in schema}, schema
        )
        for name, schema in schemas.items()
    }


def _graph_columns(graphs: Graphs) -> dict[str, Json]:
    return {
        "nodes": {
            "node": range(len(graphs.names)),
            "name": list(graphs.names),
            "rank": graphs.rank,
            "unit": [UNITS[each] for each in graphs.unit.tolist()],
            "role": [ROLES[each] for each in graphs.role.tolist()],
            "effort_ps": graphs.effort_ps,
            "call": graphs.call,
            "needs": [graphs.of(row) for row in range(len(graphs.names))],
        },
        "calls": {
            "call": range(len(graphs.calls)),
            "kind": [each.kind for each in graphs.calls],
            "members": [list(each.members) for each in graphs.calls],
            "bytes": [each.bytes for each in graphs.calls],
        },
    }


def read(directory: Path) -> Trace:
    """The trace in `directory`. TraceError if a part is missing, damaged or does not fit the others."""
    manifest, rows, version = _read_manifest(directory / "manifest.json")
    schemas = READABLE[version]
    layers, tensors, iterations = (
        _read_table(directory / f"{name}.parquet", schemas[name], rows[name])
        for name in ("layers", "tensors", "iterations")
    )
    _expect_order(directory / "layers.parquet", layers, "layer")
    _expect_order(directory / "tensors.parquet", tensors, "tensor")
    infos = [
        TensorInfo(
            row["name"],
            tuple(row["shape"]),
            row["numel"],
            row["dtype"],
            row["layer"],
            row["scale_exponent"],
            row.get("group", "data"),
        )
        for row in tensors.to_pylist()
    ]
    captured = _iterations(iterations)
    sampled = [number for number, row in enumerate(_sampled(iterations)) if row]
    shape = (len(sampled), sum(info.chunks for info in infos))
    owner, schema = _owner_of_chunks(directory, manifest, version)
    halves = _read_halves(owner / "chunks.parquet", schema, rows["chunks"], shape, infos)
    try:
        return Trace(
            manifest,
            layers["name"].to_pylist(),
            infos,
            captured,
            halves["mean"],
            halves["max"],
            halves.get("rms"),
            sampled,
            _communications(directory, schemas, rows),
            _graphs(directory, rows) if "nodes" in rows and version == SCHEMA_VERSION else None,
        )
    except TraceError as error:
        raise TraceError(error.what, f"{directory}: {error.where}", error.expected) from None


def _communications(
    directory: Path, schemas: dict[str, pa.Schema], rows: dict[str, int]
) -> list[Communication]:
    if "communications" not in schemas:
        return []
    path = directory / "communications.parquet"
    table = _read_table(path, schemas["communications"], rows["communications"])
    _expect_order(path, table, "communication")
    keys = ("name", "layer", "pass", "kind", "group", "bytes")
    return [Communication(*(row[key] for key in keys)) for row in table.to_pylist()]


def _graphs(directory: Path, rows: dict[str, int]) -> Graphs:
    nodes, calls = (_read_table(directory / f"{name}.parquet", GRAPHS[name], rows.get(name, -1)) for name in GRAPHS)
    _expect_order(directory / "nodes.parquet", nodes, "node")
    _expect_order(directory / "calls.parquet", calls, "call")
    told = {}
    for name, known in (("unit", UNITS), ("role", ROLES)):
        values = nodes[name].to_pylist()
        if wrong := set(values) - set(known):
            raise TraceError(f"{name} {min(wrong)!r}", str(directory / "nodes.parquet"), ", ".join(known))
        told[name] = np.array([known.index(each) for each in values], dtype=np.int64)
    needs = _lists(nodes["needs"])
    rank, effort, call = (_numbers(nodes[name]).astype(np.int64) for name in ("rank", "effort_ps", "call"))
    return Graphs(
        names=nodes["name"].to_pylist(), rank=rank, unit=told["unit"], role=told["role"], effort_ps=effort, call=call,
        first=np.concatenate([[0], np.cumsum([len(each) for each in needs])]).astype(np.int64),
        needs=np.concatenate([*needs, np.zeros(0, dtype=np.int64)]),
        calls=[Call(row["kind"], tuple(row["members"]), row["bytes"]) for row in calls.to_pylist()],
    )  # fmt: skip


def _owner_of_chunks(directory: Path, manifest: Json, version: int) -> tuple[Path, pa.Schema]:
    """(the directory that has the magnitudes, their columns); what the manifest says of it is taken out of it."""
    name = manifest.pop("chunks_of", None)
    if name is None:
        return directory, READABLE[version]["chunks"]
    if name not in bundled_traces():
        known = ", ".join(bundled_traces())
        raise TraceError(f"chunks_of {name!r}", str(directory / "manifest.json"), f"a bundled trace: {known}")
    owner = traces.BUNDLED / name  # asked each time: tests have bundles of their own
    owned, _, written = _read_manifest(owner / "manifest.json")
    if "chunks_of" in owned:
        raise TraceError(f"chunks_of {name!r}", str(directory / "manifest.json"), "a trace with magnitudes of its own")
    return owner, READABLE[written]["chunks"]


def _read_manifest(path: Path) -> tuple[Json, dict[str, int], int]:
    """(what the trace says of itself, rows that each table must have, schema version)."""
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise TraceError("missing", str(path), "the manifest of a trace") from None
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


def _opened(path: Path, schema: pa.Schema, rows: int) -> pq.ParquetFile:
    """The Parquet file at `path`, once it is known to have these columns (rms may follow) and rows."""
    try:
        file = pq.ParquetFile(path, page_checksum_verification=True)
        found = file.schema_arrow
    except FileNotFoundError:
        raise TraceError("missing", str(path), "a table that every trace has") from None
    except DAMAGED as error:
        raise _damaged(path, error) from error
    if not (found.equals(schema) or ("mean" in schema.names and found.equals(schema.append(RMS)))):
        columns = ", ".join(f"{field.name} {field.type}" for field in found)
        wanted = ", ".join(f"{field.name} {field.type}" for field in schema)
        raise TraceError(f"columns {columns}", str(path), wanted)
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
    with _opened(path, schema, rows) as file:
        try:
            table = file.read()
        except DAMAGED as error:
            raise _damaged(path, error) from error
    _expect_full(path, table)
    return table


def _read_halves(
    path: Path, schema: pa.Schema, rows: int, shape: tuple[int, int], infos: list[TensorInfo]
) -> dict[str, Halves]:
    """The columns of magnitudes, float16 of `shape` each, read one row group at a time to hold them once."""
    with _opened(path, schema, rows) as file:
        if rows != shape[0] * shape[1]:
            raise TraceError(
                f"{rows} rows", str(path), f"{shape[0] * shape[1]} for these tensors and iterations"
            )
        columns = [name for name in file.schema_arrow.names if name in ("mean", "max", "rms")]
        refuse_beyond(2 * rows * len(columns), f"a trace of {rows} chunks", str(path))
        halves = {
            name: np.empty(rows, dtype=np.float16)
            for name in columns
        }
        tensor_of = np.empty(0, dtype=np.int32)
        if "tensor" in file.schema_arrow.names:
            tensor_of = np.repeat(np.arange(len(infos), dtype=np.int32), [info.chunks for info in infos])
        at = 0
        for group in range(file.num_row_groups):
            try:
                table = file.read_row_group(group)
            except DAMAGED as error:
                raise _damaged(path, error) from error
            _expect_full(path, table)
            end = at + table.num_rows
            for name, values in halves.items():
                values[at:end] = _numbers(table[name])
            if "iteration" in table.column_names:  # version 1 says whose a row is
                place = np.arange(at, end)
                _expect_numbers(path, table, "tensor", tensor_of[place % shape[1]], at)
                _expect_numbers(path, table, "iteration", place // shape[1], at)
            at = end
    return {name: values.reshape(shape) for name, values in halves.items()}


def _expect_order(path: Path, table: pa.Table, column: str) -> None:
    """Raise TraceError unless `column` counts from 0: a row is found by its place alone."""
    _expect_numbers(path, table, column, np.arange(table.num_rows), 0)


def _expect_numbers(
    path: Path, table: pa.Table, column: str, expected: AnyInts, first_row: int
) -> None:
    values = _numbers(table[column])
    wrong = values != expected
    if wrong.any():
        row = int(np.argmax(wrong))
        raise TraceError(f"{column} {values[row]} in row {first_row + row}", str(path), f"{expected[row]}")


def _numbers(column: pa.ChunkedArray) -> AnyArray:
    """A column of numbers without gaps, by DLPack: `to_numpy` imports pandas, which takes longer than all of reading
    a trace."""
    chunks = column.chunks
    return np.from_dlpack(pa.concat_arrays(chunks)) if chunks else np.empty(0, column.type.to_pandas_dtype())


def _sampled(table: pa.Table) -> list[bool]:
    return table["sampled"].to_pylist() if "sampled" in table.column_names else [True] * table.num_rows


def _lists(column: pa.ChunkedArray) -> list[NDArray[np.int64]]:
    """The rows of a column of lists as int64 arrays; an empty one has length 0."""
    values = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], type=_TIMES)
    ends = np.cumsum(np.from_dlpack(values.value_lengths()))
    return np.split(np.from_dlpack(values.flatten()).astype(np.int64), ends[:-1])


def _iterations(table: pa.Table) -> list[Iteration]:
    columns = ("forward_start_ps", "forward_end_ps", "ready_ps", "asked_ps")
    times = {name: _lists(table[name]) for name in columns if name in table.column_names}
    plain = table.drop_columns(list(times)).to_pylist()
    return [
        Iteration(
            index=row["iteration"],
            phase=row["phase"],
            step=row["step"],
            loss=row["loss"],
            forward_start_ps=times["forward_start_ps"][number],
            forward_end_ps=times["forward_end_ps"][number],
            ready_ps=times["ready_ps"][number],
            backward_end_ps=row["backward_end_ps"],
            optimizer_ps=row["optimizer_ps"],
            end_ps=row["end_ps"],
            rank=row.get("rank", 0),
            asked_ps=times["asked_ps"][number] if "asked_ps" in times else np.zeros(0, dtype=np.int64),
        )
        for number, row in enumerate(plain)
    ]
