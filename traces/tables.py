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
holds it exactly), in the tensor's shape. They are not read with the trace; `raw_gradient` (`gradwire.traces.storage`)
reads one.

A trace may have the magnitudes of a bundled one and no `chunks` of its own: its manifest then names that trace under
`chunks_of` (`gradwire trace retime --share`).

Without them it is version 2. In version 1, which is still read, every iteration is sampled, rank and rms do not exist
and chunks begin with the columns iteration i32 and tensor i32.

Reading is strict: a trace that is not exactly this raises TraceError with the file, what is wrong and what
was expected. The row counts also stand in the manifest, so that a table from another trace is noticed.
"""

from __future__ import annotations

import pyarrow as pa

from gradwire.traces.trace import SCHEMA_VERSION

TIMES = pa.list_(pa.int64())
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
            ("forward_start_ps", TIMES),
            ("forward_end_ps", TIMES),
            ("ready_ps", TIMES),
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
    "iterations": SCHEMAS["iterations"].append(pa.field("asked_ps", TIMES)),
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
            ("needs", TIMES),
        ]
    ),
    "calls": pa.schema(
        [("call", pa.int64()), ("kind", pa.string()), ("members", pa.list_(pa.int32())), ("bytes", pa.int64())]
    ),
}
READABLE = {1: SCHEMAS_1, 2: SCHEMAS, SCHEMA_VERSION: SCHEMAS_3}
