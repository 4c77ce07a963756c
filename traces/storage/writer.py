"""Writes traces as folders of tables (`gradwire.traces.storage.tables`), and reads their raw gradients."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gradwire.result_store.folders.output_folder import NEW_FOLDER, is_taken, new_folder, write_error
from gradwire.result_store.folders.replacement import set_aside
from gradwire.scenarios.arrays import AnyArray
from gradwire.scenarios.errors import TraceError
from gradwire.scenarios.interrupt import defer_interrupt
from gradwire.scenarios.json_data import Json, JsonView
from gradwire.scenarios.validation.argument_checks import require_path
from gradwire.traces.rank_graphs import ROLES, UNITS, RankGraphs
from gradwire.traces.storage.tables import GRAPHS, READABLE, RMS, SCHEMA_VERSION

if TYPE_CHECKING:
    from gradwire.traces.trace import Trace

RAW = "raw"
SMALL_TABLE_ROWS = 2_000_000  # rows of chunks up to which strong compression takes only seconds


def write(trace: Trace, directory: str | Path, raw: Path | None = None, chunks_of: str | None = None) -> Path:
    """Write `trace` to the new `directory`: built beside it under another name, then renamed. `raw`, a folder of raw
    gradients on the same file system, is moved into it. `chunks_of` names a bundled trace with the same magnitudes,
    which are then not written again (see `gradwire.traces.tools.retime.require_equal_magnitudes`)."""
    directory = require_path(directory, "directory", NEW_FOLDER, TraceError)
    if is_taken(directory):
        raise TraceError("exists already", str(directory), NEW_FOLDER)
    refuse_unwritable(directory)
    version = _version(trace)
    tables = _tables(trace, READABLE[version])
    manifest: Json = {
        "schema_version": version,
        **trace.manifest,
        "rows": {name: table.num_rows for name, table in tables.items()},
    }
    if chunks_of is not None:
        manifest["chunks_of"] = chunks_of
        del tables["chunks"]
    text = manifest_text(manifest)
    with new_folder(directory, TraceError) as building:
        for name, table in tables.items():
            _write_table(table, building / f"{name}.parquet", trace)
        (building / "manifest.json").write_text(text)
        if raw is not None:
            raw.rename(building / RAW)
    return directory


def replaceable(directory: str | Path, force: bool) -> AbstractContextManager[None]:
    """Return a context in which, with `force`, a trace at `directory` may be replaced by a new one.

    It is restored if none has replaced it. Raises TraceError for a folder with other files, or with raw gradients,
    which nothing can compute again.
    """
    return set_aside(Path(directory), _refuse_foreign) if force else nullcontext()


def _refuse_foreign(path: Path) -> None:
    expected = "a trace without raw gradients and other files, or another --out"
    try:
        names = {entry.name for entry in path.iterdir()}
        is_trace = "schema_version" in json.loads((path / "manifest.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, TypeError):
        raise TraceError("cannot be replaced (--force)", str(path), expected) from None
    tables = {name for version in READABLE.values() for name in version} | set(GRAPHS)
    foreign = sorted(names - {"manifest.json", *(f"{name}.parquet" for name in tables)})
    if path.is_symlink() or not is_trace or foreign:
        what = f"cannot be replaced (--force){': ' + foreign[0] + ' is in it' if foreign else ''}"
        raise TraceError(what, str(path), expected)


def manifest_text(manifest: JsonView) -> str:
    """Return a manifest as JSON; TraceError for values that JSON cannot represent. Call it before hours of training."""
    try:
        return json.dumps(dict(manifest), indent=2, sort_keys=True) + "\n"
    except (TypeError, ValueError, RecursionError) as error:
        expected = "texts, numbers, and lists and tables of these"
        raise TraceError(f"cannot be written as JSON ({error})", "manifest", expected) from None


def refuse_unwritable(directory: Path) -> None:
    """Raise TraceError, before hours of training, if nothing can be created beside `directory`."""
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        with defer_interrupt(), tempfile.TemporaryDirectory(prefix=f".{directory.name}-", dir=directory.parent):
            pass
    except OSError as error:
        raise write_error(error, directory, TraceError) from error


def raw_folder(directory: Path, iteration: int) -> Path:
    """Return the folder of an iteration's raw gradients in the trace `directory`."""
    return directory / RAW / f"iter{iteration:04d}"


def raw_gradient(directory: str | Path, iteration: int, tensor: int) -> AnyArray:
    """Return a stored gradient in the tensor's shape; TraceError if it was not stored or is damaged."""
    path = raw_folder(Path(directory), iteration) / f"{tensor:05d}.npy"
    try:
        values: AnyArray = np.load(path, allow_pickle=False)
    except FileNotFoundError:
        raise TraceError("missing", str(path), "a capture with raw=True, and an iteration it sampled") from None
    except (OSError, ValueError, EOFError) as error:
        raise TraceError(f"cannot be read ({error})", str(path), "a NumPy array") from error
    return values


def _write_table(table: pa.Table, path: Path, trace: Trace) -> None:
    # Magnitudes of neighbouring chunks share exponents but not mantissas: split bytes let zstd exploit that.
    split = [name for name in ("mean", "max", "rms") if name in table.column_names]
    pq.write_table(
        table,
        path,
        row_group_size=int(trace._offsets[-1]) if split else None,
        compression="zstd",
        compression_level=19 if table.num_rows <= SMALL_TABLE_ROWS else 3,
        use_dictionary=[name for name in table.column_names if name not in split],
        use_byte_stream_split=split,
        write_page_checksum=True,
    )


def _version(trace: Trace) -> int:
    """Return the oldest schema version that can hold the trace."""
    plain = not trace.communications and all(tensor.group == "data" for tensor in trace.tensors)
    return 2 if plain and trace.graphs is None else SCHEMA_VERSION


def _fields(rows: Sequence[object], *names: str) -> Json:
    """Return the columns of these attributes of `rows`."""
    return {name: [getattr(row, name) for row in rows] for name in names}


def _tables(trace: Trace, base_schemas: dict[str, pa.Schema]) -> dict[str, pa.Table]:
    iterations, tensors, communications = trace.iterations, trace.tensors, trace.communications
    schemas = dict(base_schemas)
    chunks = {"mean": trace._mean.reshape(-1), "max": trace._max.reshape(-1)}
    if trace._rms is not None:
        schemas["chunks"] = schemas["chunks"].append(RMS)
        chunks["rms"] = trace._rms.reshape(-1)
    sampled = set(trace.sampled)
    columns: dict[str, Json] = {
        "layers": {"layer": range(len(trace.layers)), "name": trace.layers},
        "tensors": {
            "tensor": range(len(tensors)),
            "shape": [list(t.shape) for t in tensors],
            **_fields(tensors, "name", "numel", "dtype", "layer", "scale_exponent", "group"),
        },
        "iterations": {
            "iteration": [i.index for i in iterations],
            "sampled": [i.index in sampled for i in iterations],
            **_fields(iterations, "phase", "step", "loss", "rank", "backward_end_ps", "optimizer_ps", "end_ps"),
            **_fields(iterations, "forward_start_ps", "forward_end_ps", "ready_ps", "asked_ps"),
        },
        "communications": {
            "communication": range(len(communications)),
            "pass": [c.turn for c in communications],
            **_fields(communications, "name", "layer", "kind", "group", "bytes"),
        },
        "chunks": chunks,
    }
    if trace.graphs is not None:
        schemas |= GRAPHS
        columns |= _graph_columns(trace.graphs)
    return {
        name: pa.table({field.name: pa.array(columns[name][field.name], type=field.type) for field in schema}, schema)
        for name, schema in schemas.items()
    }


def _graph_columns(graphs: RankGraphs) -> dict[str, Json]:
    return {
        "nodes": {
            "node": range(len(graphs.names)),
            "name": list(graphs.names),
            "rank": graphs.rank,
            "unit": [UNITS[item] for item in graphs.unit.tolist()],
            "role": [ROLES[item] for item in graphs.role.tolist()],
            "effort_ps": graphs.effort_ps,
            "call": graphs.call,
            "needs": [graphs.of(row) for row in range(len(graphs.names))],
        },
        "calls": {
            "call": range(len(graphs.calls)),
            "members": [list(item.members) for item in graphs.calls],
            **_fields(graphs.calls, "kind", "bytes"),
        },
    }
