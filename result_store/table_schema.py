"""Declares the columns of a Result's tables, and builds tables from columns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gradwire.scenarios.errors import import_extra
from gradwire.scenarios.version import VERSION

if TYPE_CHECKING:
    import pandas
    import pyarrow


SCENARIO_FILE = "scenario.toml"

FORMAT = 6
"""Version of the directory's layout; other versions are rejected."""

TABLES: Mapping[str, Mapping[str, str]] = {
    "iterations": {
        "job": "string",
        "worker": "int32",
        "iteration": "int32",
        "start_ps": "int64",
        "forward_end_ps": "int64",
        "backward_end_ps": "int64",
        "end_ps": "int64",
        "compute_ps": "int64",
        "exposed_ps": "int64",  # end - start - compute: time spent waiting for the network
    },
    "messages": {
        "message": "int64",
        "job": "string",
        "iteration": "int32",
        "tensor": "int32",  # -1 for a bucket or a ring segment
        "layer": "int32",  # of the tensor, 0 = nearest the input; or -1
        "part": "int32",
        "kind": "string",  # one of KINDS
        "src": "string",
        "dst": "string",
        "bytes": "int64",
        "packets": "int32",
        "priority": "int8",
        "start_ps": "int64",
        "released_ps": "int64",  # when its host began to send it, -1 = not yet, or unknown
        "end_ps": "int64",  # -1 if the run ended before the message did
        "received_bytes": "int64",
        "lost_bytes": "int64",
        "bound": "float64",
        "share": "float64",  # its part of a budget for several messages, as a share of its bytes; else its bound
        "retransmitted": "int32",  # retransmissions
        "sent_packets": "int32",  # total packets sent
        "marked": "int32",  # data packets that arrived with a congestion mark
        "trimmed": "int32",  # headers that arrived without their payload
        "timeouts": "int32",  # retransmission time-outs, -1 = unknown
    },
    "flows": {  # of traffic: columns beyond those of messages
        "message": "int64",
        "ideal_ps": "int64",  # unloaded transfer time
    },
    "drops": {
        "message": "int64",
        "packet": "int32",
        "port": "string",
        "time_ps": "int64",
        "cause": "string",  # one of CAUSES
        "important": "bool",
        "priority": "int8",
    },
    "missing": {  # unless output.missing is off: runs of packets missing from delivered messages
        "message": "int64",
        "packet": "int32",  # the first of them
        "packets": "int32",
        "offset": "int64",  # byte of the message at which they begin
        "bytes": "int64",  # of the message
    },
    "ports": {
        "port": "string",  # "a->b"
        "packets": "int64",
        "bytes": "int64",
        "drops_tail": "int64",
        "drops_selective": "int64",
        "drops_loss": "int64",
        "drops_evicted": "int64",
        "drops_down": "int64",
        "drops_no_route": "int64",
        "marks": "int64",
        "control_marks": "int64",  # of these, on acknowledgements and other control packets; -1 if unknown
        "trimmed": "int64",  # packets trimmed to their headers
        "pauses": "int64",  # pause frames that paused this port
        "peak_queue_bytes": "int64",
    },
    "samples": {  # with output.queue_samples
        "time_ps": "int64",
        "port": "string",
        "queue_bytes": "int64",  # queued
        "sent_bytes": "int64",  # since the start of the run
        "rate_bps": "int64",  # of the link as it was built
    },
    "delays": {  # with output.delays
        "port": "string",
        "from_ps": "int64",  # delays from this one ...
        "to_ps": "int64",  # ... to below this one
        "packets": "int64",  # with such a delay
    },
    "packets": {  # with output.packet_log: a packet crosses a link
        "start_ps": "int64",
        "port": "string",
        "message": "int64",  # -1 for pause frames
        "kind": "string",
        "packet": "int32",  # its number in the message; -1 for control packets
        "bytes": "int32",
        "priority": "int8",
        "important": "bool",
        "marked": "bool",
        "trimmed": "bool",
        "echo": "bool",  # it echoes a mark to the sender
        "argument": "int32",  # value of a control packet, with a meaning defined by its transport
        "lost": "bool",  # on this link
    },
}

KINDS = (
    "push", "pull", "reduce_scatter", "all_gather", "flow", "activations", "errors", "parameters", "tensor_parallel",
    "expert_parallel", "data_parallel", "collective", "point_to_point", "context_parallel",
)  # fmt: skip

CAUSES = ("tail", "selective", "link_loss", "evicted", "link_down", "no_route")


def as_pandas(table: pyarrow.Table) -> pandas.DataFrame:
    """Return a pyarrow table as a pandas DataFrame. Raises MissingExtraError if pandas is not installed."""
    import_extra("pandas", "pandas")  # pyarrow's own message does not say how to install it
    return table.to_pandas()


def make_table(name: str, columns: Mapping[str, Any]) -> pyarrow.Table:
    """Return the table `name` from its columns, or an empty one without any. Raises ValueError if they do not fit."""
    import pyarrow

    from gradwire.result_store.arrow import arrow_array

    schema = schema_of(name)
    columns = columns or {column: [] for column in schema.names}  # `schema.empty_table` would import pandas
    if set(columns) != set(schema.names):
        missing = sorted(set(schema.names) - set(columns))
        unknown = sorted(set(columns) - set(schema.names))
        raise ValueError(f"table {name}: missing columns {missing}, unknown columns {unknown}")
    lengths = {len(column) for column in columns.values()}
    if len(lengths) > 1:
        raise ValueError(f"table {name}: columns of unequal length {sorted(lengths)}")
    arrays = [arrow_array(columns[column], kind) for column, kind in TABLES[name].items()]
    return pyarrow.Table.from_arrays(arrays, schema=schema)


def versions() -> dict[str, str]:
    """Return the versions of everything that may influence a Result."""
    import platform
    from importlib import metadata

    packages = {package: metadata.version(package) for package in ("numpy", "numba")}
    return {"gradwire": VERSION, "python": platform.python_version(), **packages}


def schema_of(name: str) -> pyarrow.Schema:
    import pyarrow

    types = {"bool": pyarrow.bool_(), "string": pyarrow.string(), "float64": pyarrow.float64()}
    types |= {width: getattr(pyarrow, width)() for width in ("int8", "int32", "int64")}
    return pyarrow.schema([(column, types[kind]) for column, kind in TABLES[name].items()])
