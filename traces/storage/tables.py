"""The schemas declare the columns of a trace's Parquet tables, by format version; `reader` and `writer` apply them. A
trace is a folder with `manifest.json` and four Parquet tables (zstd, with page checksums).

The tables are `layers`, `tensors`, `iterations` (times as lists, per layer L, L and per tensor T) and `chunks`, with
rms if known; their columns are in `SCHEMAS`. A trace with collectives other than those of gradients
(`gradwire.traces.parts.Communication`) has version 3: one more table, `communications`, one more column of `tensors`
(group), and one of `iterations` (asked_ps, per communication); if the graphs of all ranks are known, also `nodes` and
`calls`. Other traces are version 2. In version 1, which is still read, every iteration is sampled, rank and rms do not
exist and chunks begin with the columns iteration and tensor.

The rows of `chunks` are ordered by sampled iteration, tensor and position in the tensor, one row group per sampled
iteration; a row is identified by its position alone, since at 20 million rows two more columns would take more time and
memory to read than the magnitudes themselves.

A capture may have stored the gradients themselves: raw/iter0003/00012.npy is the gradient of tensor 12 in iteration 3,
in NumPy's format, float16, float32 or float64 as computed (bfloat16 as float32, which holds it exactly), in the
tensor's shape. They are not read with the trace; `raw_gradient` (`gradwire.traces.storage.writer`) reads one.

A trace may have the magnitudes of a bundled one and no `chunks` itself: its manifest then names that trace under
`chunks_of` (`gradwire trace retime --share`).

Reading is strict: any deviation raises TraceError with the file, the value and the expected one. The manifest has the
row counts too, so that a table from another trace is noticed.
"""

from __future__ import annotations

import pyarrow as pa

SCHEMA_VERSION = 3
TIMES = pa.list_(pa.int64())
_TYPES = {
    "i32": pa.int32(),
    "i64": pa.int64(),
    "f16": pa.float16(),
    "f64": pa.float64(),
    "str": pa.string(),
    "bool": pa.bool_(),
    "list<i32>": pa.list_(pa.int32()),
    "list<i64>": TIMES,
}


def _schema(columns: str) -> pa.Schema:
    """Return the schema of comma-separated columns, each "name type"."""
    return pa.schema([(name, _TYPES[kind]) for name, kind in (column.split() for column in columns.split(","))])


SCHEMAS: dict[str, pa.Schema] = {
    "layers": _schema("layer i32, name str"),
    "tensors": _schema("tensor i32, name str, shape list<i64>, numel i64, dtype str, layer i32, scale_exponent i32"),
    "iterations": _schema(
        "iteration i32, phase str, step i64, loss f64, forward_start_ps list<i64>, forward_end_ps list<i64>, "
        "ready_ps list<i64>, backward_end_ps i64, optimizer_ps i64, end_ps i64, rank i32, sampled bool"
    ),
    "chunks": _schema("mean f16, max f16"),
}
RMS = pa.field("rms", pa.float16())
SCHEMAS_1 = {  # version 1, which is only read
    **SCHEMAS,
    "iterations": pa.schema(list(SCHEMAS["iterations"])[:-2]),
    "chunks": _schema("iteration i32, tensor i32, mean f16, max f16"),
}
SCHEMAS_3 = {
    **SCHEMAS,
    "tensors": SCHEMAS["tensors"].append(pa.field("group", pa.string())),
    "iterations": SCHEMAS["iterations"].append(pa.field("asked_ps", TIMES)),
    "communications": _schema("communication i32, name str, layer i32, pass str, kind str, group str, bytes i64"),
}
GRAPHS = {
    "nodes": _schema("node i64, name str, rank i32, unit str, role str, effort_ps i64, call i64, needs list<i64>"),
    "calls": _schema("call i64, kind str, members list<i32>, bytes i64"),
}
READABLE = {1: SCHEMAS_1, 2: SCHEMAS, SCHEMA_VERSION: SCHEMAS_3}
