"""Result: the output of a run, in the same form from the simulator and the testbed.

A Result is a summary and nine tables. On disk it is a directory:

    result.json           the summary: the run (name, policy, seed, hashes, versions) and its totals
    iterations.parquet    one row per job, worker and iteration
    messages.parquet      one row per message
    flows.parquet         one row per message of traffic
    drops.parquet         one row per packet lost
    missing.parquet       missing packets of delivered messages
    ports.parquet         one row per egress port
    samples.parquet       queues over time             (optional)
    delays.parquet        queueing delays of packets   (optional)
    packets.parquet       one row per transmission     (optional)
    scenario.toml         the scenario that ran, as a file that loads by itself; see `gradwire.result_store.provenance`
    timing.json           speed of the run, and the command; the only file that differs between two equal runs

Times are picoseconds of simulated time, sizes bytes of payload (`ports.bytes`: bytes on the link). `TABLES` defines the
columns; `Result.build` and `Result.read` enforce them.

pyarrow is imported inside functions, because the command line imports this module when it checks a scenario.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradwire.result_store.folders.output_folder import new_folder
from gradwire.result_store.lazy_table import InMemoryTable, LazyTable
from gradwire.scenarios.errors import MissingExtraError, ResultError
from gradwire.scenarios.validation.argument_checks import require_path
from gradwire.scenarios.version import VERSION

if TYPE_CHECKING:
    import pandas
    import pyarrow

    from gradwire.scenarios.schema.scenario import Scenario

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
    "expert_parallel", "data_parallel", "collective", "point_to_point",
)  # fmt: skip
CAUSES = ("tail", "selective", "link_loss", "evicted", "link_down", "no_route")


class _Table:
    """A table of a Result, set as a `pyarrow.Table` or as `LazyTable` rows and read as a `pyarrow.Table`."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, result: Result | None, owner: type) -> pyarrow.Table:
        if result is None:
            raise AttributeError(self.name)  # the dataclass field must have no default
        return result.kept(self.name).table()

    def __set__(self, result: Result, value: pyarrow.Table | LazyTable) -> None:
        vars(result)[self.name] = value


@dataclass(frozen=True, eq=False, repr=False)
class Result:
    """One run. The tables are `pyarrow.Table`s with the columns of `TABLES`. Tables of a long run need not be in
    memory: each is built at its first use and cached. `select` and `parts` read some columns without the others and
    without caching them."""

    summary: dict[str, Any]
    iterations: pyarrow.Table = _Table()
    messages: pyarrow.Table = _Table()
    flows: pyarrow.Table = _Table()
    drops: pyarrow.Table = _Table()
    missing: pyarrow.Table = _Table()
    ports: pyarrow.Table = _Table()
    samples: pyarrow.Table = _Table()
    delays: pyarrow.Table = _Table()
    packets: pyarrow.Table = _Table()
    timing: dict[str, Any] = field(default_factory=dict)
    """Wall-clock figures of the run, such as packet-hops per second, and the command; not reproducible."""
    scenario: str = ""
    """The scenario that ran, as TOML; empty if unknown."""

    @cached_property
    def tables(self) -> dict[str, Any]:
        """Tables of the scenario that ran, as `tomllib` returns them, read-only; empty if unknown. Raises `ResultError`
        if invalid."""
        from gradwire.result_store.reader import tables_of

        return tables_of(self.scenario, SCENARIO_FILE) if self.scenario else {}

    @classmethod
    def build(
        cls,
        summary: Mapping[str, Any],
        tables: Mapping[str, Mapping[str, Any] | LazyTable],
        timing: Mapping[str, Any] | None = None,
        scenario: str = "",
    ) -> Result:
        """Build a Result from columns, `tables["ports"]["marks"]` being an array or list with one entry per row, or
        from `LazyTable` rows. Missing tables are empty. Raises ValueError if columns are missing, unknown or of unequal
        length."""
        unknown = set(tables) - set(TABLES)
        if unknown:
            raise ValueError(f"no such table: {', '.join(sorted(unknown))}")
        rows = {name: tables.get(name, {}) for name in TABLES}
        built = {name: each if isinstance(each, LazyTable) else make_table(name, each) for name, each in rows.items()}
        return cls(dict(summary), **built, timing=dict(timing or {}), scenario=scenario)

    def __repr__(self) -> str:
        rows = ", ".join(
            f"{count:,} {'worker-iterations' if name == 'iterations' else name}" for name, count in self._rows().items()
        )
        return f"<Result: {self._what()}; {rows or 'empty'}>"

    def _repr_html_(self) -> str:
        """Return the HTML that notebooks show."""
        from html import escape

        lines = "".join(
            f"<tr><td>{escape(name)}</td><td>{count:,}</td><td>{escape(', '.join(TABLES[name]))}</td></tr>"
            for name, count in self._rows().items()
        )
        head = "<tr><th>table</th><th>rows</th><th>columns</th></tr>"
        return f"<p><b>Result</b>: {escape(self._what())}</p><table>{head}{lines}</table>"

    def _what(self) -> str:
        """Return a summary: scenario, policy, duration and end."""
        totals = self.summary.get("totals", {})
        name, policy = (str(self.summary.get(key, "?")) for key in ("name", "policy"))
        where = "emulated" if self.summary.get("engine", {}).get("kind") == "emulation" else "simulated"
        end = "" if "simulated_ps" not in totals else f" {int(totals['simulated_ps']) / 1e9:.3g} ms"
        return f"{name} {policy}, {where}{end}, ended by {totals.get('ended_by', '?')}"

    def _rows(self) -> dict[str, int]:
        return {name: rows for name in TABLES if (rows := self.kept(name).num_rows)}

    def kept(self, table: str) -> LazyTable:
        """Return the stored rows of a table."""
        value = vars(self)[table]
        return value if isinstance(value, LazyTable) else InMemoryTable(value)

    def select(self, table: str, *columns: str) -> pyarrow.Table:
        """Return some columns of a table, without reading the others. Texts may be dictionary-encoded."""
        return self.kept(table).select(columns)

    def parts(self, table: str, *columns: str) -> Iterator[pyarrow.Table]:
        """Yield some columns of a table, about a million rows at a time."""
        return self.kept(table).parts(columns)

    def to_pandas(self, table: str = "messages") -> pandas.DataFrame:
        """Return one of the tables as a pandas DataFrame.

        Raises
        ------
        MissingExtraError
            pandas is not installed.
        ResultError
            The table does not exist.
        """
        if table not in list(TABLES):
            raise ResultError(f"no table {table!r}", "to_pandas(table)", f"one of {', '.join(TABLES)}")
        return as_pandas(getattr(self, table))

    def write(self, directory: str | Path) -> Path:
        """Write everything to a new directory, which appears complete or not at all. Raises `ResultError` if the
        directory exists, as results are never overwritten or mixed, or cannot be written."""
        with new_folder(directory) as folder:
            for name in TABLES:
                self.kept(name).write(folder / f"{name}.parquet")
            _write_json(folder / "result.json", {"format": FORMAT, **self.summary})
            _write_json(folder / "timing.json", self.timing)
            if self.scenario:
                (folder / SCENARIO_FILE).write_text(self.scenario, encoding="utf-8")
        return Path(directory)

    @classmethod
    def read(cls, directory: str | Path) -> Result:
        """Read a directory written by `write`. Raises `ResultError` if it is missing, damaged or of another format."""
        from gradwire.result_store import reader
        from gradwire.result_store.consistency import check_consistency

        folder = require_path(directory, "Result.read(directory)", "a Result directory", ResultError)
        if not folder.is_dir():
            raise ResultError("no such directory", str(folder), "a Result directory")
        summary, timing = reader.read_summary(folder), reader.read_timing(folder)
        tables = {name: reader.read_table(folder / f"{name}.parquet", schema_of(name)) for name in TABLES}
        check_consistency(summary, tables, folder)
        return cls(summary, **tables, timing=timing, scenario=reader.read_scenario(folder / SCENARIO_FILE))


def as_pandas(table: pyarrow.Table) -> pandas.DataFrame:
    """Return a pyarrow table as a pandas DataFrame. Raises MissingExtraError if pandas is not installed."""
    try:
        import pandas  # noqa: F401  # pyarrow's own message does not say how to install it
    except ModuleNotFoundError as error:
        raise MissingExtraError("pandas", "pandas") from error
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


def summarise(
    scenario: Scenario, trace_hash: str, engine: Mapping[str, Any], totals: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the summary of a run of `scenario`: identity, versions, and totals. It contains nothing that differs
    between two equal runs (no dates, no durations, no paths)."""
    from gradwire.result_store.provenance import input_digests

    return {
        "name": scenario.name,
        "policy": scenario.policy_name,
        "label": scenario.policy_label,
        "seed": scenario.seed,
        "versions": versions(),
        "scenario_hash": scenario.digest(),
        "trace_hash": trace_hash,
        "inputs": input_digests(scenario),
        "transports": {
            table.name: {"kind": used.kind, "payload": used.payload, "overhead": used.overhead, "wire": used.wire}
            for table in scenario.senders
            for used in [table.transport or scenario.transport]
        },
        "sample_period_ps": scenario.output.queue_samples,
        "engine": dict(engine),
        "totals": dict(totals),
    }


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


def _write_json(path: Path, data: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(data, indent=2, sort_keys=True) + "\n", encoding="utf-8")
