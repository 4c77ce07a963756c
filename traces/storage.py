"""Writes traces, whose tables `gradwire.traces.tables` describes, and finds the raw gradients beside them."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gradwire.scenarios.arrays import AnyArray
from gradwire.scenarios.errors import TraceError
from gradwire.scenarios.given import path_of
from gradwire.scenarios.interrupt import deferred
from gradwire.scenarios.json_data import Json, JsonView
from gradwire.scenarios.output import FREE, cannot_write, is_taken
from gradwire.traces.graphs import ROLES, UNITS, Graphs
from gradwire.traces.tables import GRAPHS, READABLE, RMS
from gradwire.traces.trace import SCHEMA_VERSION, Trace, bundled_traces, load_trace

RAW = "raw"
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
    with deferred():
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
        with deferred(), tempfile.TemporaryDirectory(prefix=f".{directory.name}-", dir=directory.parent):
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
