"""Result: what a run leaves behind, the same from the simulator and from an emulated network.

A Result is a summary and nine tables. Written, it is a directory:

    result.json           the summary: what was run (name, policy, seed, hashes, versions) and its totals
    iterations.parquet    one row per job, worker and iteration
    messages.parquet      one row per message
    flows.parquet         one row per message of traffic
    drops.parquet         one row per packet lost
    missing.parquet       what messages were delivered without
    ports.parquet         one row per egress port
    samples.parquet       queues as time goes by       (if asked for)
    delays.parquet        how long packets waited      (if asked for)
    packets.parquet       one row per transmission     (if asked for)
    scenario.toml         the scenario that ran, as a file that loads by itself; see `gradwire.scenarios.record`
    timing.json           how fast the run was, and the command; the only file that differs between two equal runs

Times are picoseconds of simulated time, sizes bytes of payload (`ports.bytes`: bytes on the link). `TABLES`
defines the columns; `Result.build` and `Result.read` hold tables to it.

pyarrow is imported inside functions, because the command line imports this module when it checks a scenario.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradwire import __version__
from gradwire.scenarios.errors import MissingExtraError, ResultError
from gradwire.scenarios.given import path_of
from gradwire.scenarios.kept import Kept, Whole
from gradwire.scenarios.output import new_folder

if TYPE_CHECKING:
    import pandas
    import pyarrow

    from gradwire.scenarios.schema.scenario import Scenario

SCENARIO_FILE = "scenario.toml"

FORMAT = 6
"""Version of the directory's layout; a Result of another one is refused."""

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
        "tensor": "int32",  # -1 for what is no tensor: a bucket or a ring segment
        "layer": "int32",  # of the tensor, 0 = nearest the input; -1 as well
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
        "share": "float64",  # its own part of a budget for several messages, as a share of its bytes; else its bound
        "retransmitted": "int32",  # packets sent again
        "sent_packets": "int32",  # packets sent in all
        "marked": "int32",  # data packets that arrived with a congestion mark
        "trimmed": "int32",  # headers that arrived without their payload
        "timeouts": "int32",  # retransmission time-outs that it met, -1 = unknown
    },
    "flows": {  # of traffic; what the table of messages does not say of them
        "message": "int64",
        "ideal_ps": "int64",  # from start to delivery on the empty network
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
    "missing": {  # unless output.missing is off: packets in a row that a delivered message did without
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
        "trimmed": "int64",  # packets cut to their headers
        "pauses": "int64",  # pause frames that came for this port and stopped something
        "peak_queue_bytes": "int64",
    },
    "samples": {  # with output.queue_samples
        "time_ps": "int64",
        "port": "string",
        "queue_bytes": "int64",  # that wait
        "sent_bytes": "int64",  # since the beginning
        "rate_bps": "int64",  # of the link as it was built
    },
    "delays": {  # with output.delays
        "port": "string",
        "from_ps": "int64",  # so long or longer ...
        "to_ps": "int64",  # ... and less than that
        "packets": "int64",  # waited at the port
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
        "echo": "bool",  # it tells its sender of a mark
        "argument": "int32",  # what a control packet says; what it means is its transport's
        "lost": "bool",  # on this link
    },
}

KINDS = (
    "push", "pull", "reduce_scatter", "all_gather", "flow", "activations", "errors", "parameters", "tensor_parallel",
    "expert_parallel", "data_parallel", "collective", "point_to_point",
)  # fmt: skip
CAUSES = ("tail", "selective", "link_loss", "evicted", "link_down", "no_route")


class _Table:
    """A table of a Result: given as a `pyarrow.Table` or as `Kept` rows, it is a `pyarrow.Table` to whoever asks."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, result: Result | None, owner: type) -> pyarrow.Table:
        if result is None:
            raise AttributeError(self.name)  # so that the field has no default
        return result.kept(self.name).table()

    def __set__(self, result: Result, value: pyarrow.Table | Kept) -> None:
        vars(result)[self.name] = value


@dataclass(frozen=True, eq=False, repr=False)
class Result:
    """One run. The tables are `pyarrow.Table`s with the columns of `TABLES`.

    Of a long run they need not be in memory: a table is made when it is asked for first, and stays then. `select` and
    `parts` read some columns of it, without the others and without keeping them.
    """

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
    """Wall-clock figures of the run, such as packet-hops per second, and the command. Kept apart: they never repeat."""
    scenario: str = ""
    """The scenario that ran, as TOML; empty if it is not known."""

    @cached_property
    def tables(self) -> dict[str, Any]:
        """The tables of the scenario that ran, as `tomllib` returns them, to be read only; none if it is not known.
        Raises `ResultError` if it is no scenario."""
        from gradwire.scenarios.stored import tables_of

        return tables_of(self.scenario, SCENARIO_FILE) if self.scenario else {}

    @classmethod
    def build(
        cls,
        summary: Mapping[str, Any],
        tables: Mapping[str, Mapping[str, Any] | Kept],
        timing: Mapping[str, Any] | None = None,
        scenario: str = "",
    ) -> Result:
        """A Result from columns: `tables["ports"]["marks"]` is an array or list, one entry per row; or from
        `Kept` rows.

        A table not given is empty. Raises ValueError if columns are missing, unknown or of unequal length.
        """
        unknown = set(tables) - set(TABLES)
        if unknown:
            raise ValueError(f"no such table: {', '.join(sorted(unknown))}")
        given = {name: tables.get(name, {}) for name in TABLES}
        built = {name: each if isinstance(each, Kept) else make_table(name, each) for name, each in given.items()}
        return cls(dict(summary), **built, timing=dict(timing or {}), scenario=scenario)

    def __repr__(self) -> str:
        rows = ", ".join(
            f"{count:,} {'worker-iterations' if name == 'iterations' else name}" for name, count in self._rows().items()
        )
        return f"<Result: {self._what()}; {rows or 'empty'}>"

    def _repr_html_(self) -> str:
        """What notebooks show."""
        from html import escape

        lines = "".join(
            f"<tr><td>{escape(name)}</td><td>{count:,}</td><td>{escape(', '.join(TABLES[name]))}</td></tr>"
            for name, count in self._rows().items()
        )
        head = "<tr><th>table</th><th>rows</th><th>columns</th></tr>"
        return f"<p><b>Result</b>: {escape(self._what())}</p><table>{head}{lines}</table>"

    def _what(self) -> str:
        """What ran, how it ended."""
        totals = self.summary.get("totals", {})
        name, policy = (str(self.summary.get(key, "?")) for key in ("name", "policy"))
        where = "emulated" if self.summary.get("engine", {}).get("kind") == "emulation" else "simulated"
        end = "" if "simulated_ps" not in totals else f" {int(totals['simulated_ps']) / 1e9:.3g} ms"
        return f"{name} {policy}, {where}{end}, ended by {totals.get('ended_by', '?')}"

    def _rows(self) -> dict[str, int]:
        return {name: rows for name in TABLES if (rows := self.kept(name).num_rows)}

    def kept(self, table: str) -> Kept:
        """The rows of a table, as they are kept."""
        value = vars(self)[table]
        return value if isinstance(value, Kept) else Whole(value)

    def select(self, table: str, *columns: str) -> pyarrow.Table:
        """Some columns of a table, without the others being read. Texts may be encoded by dictionary."""
        return self.kept(table).select(columns)

    def parts(self, table: str, *columns: str) -> Iterator[pyarrow.Table]:
        """The same, about a million rows at a time."""
        return self.kept(table).parts(columns)

    def to_pandas(self, table: str = "messages") -> pandas.DataFrame:
        """One of the tables as a pandas DataFrame.

        Raises
        ------
        MissingExtraError
            pandas is not installed.
        ResultError
            There is no such table.
        """
        if table not in list(TABLES):
            raise ResultError(f"there is no table {table!r}", "to_pandas(table)", f"one of {', '.join(TABLES)}")
        return as_pandas(getattr(self, table))

    def write(self, directory: str | Path) -> Path:
        """Write everything to a new directory, which appears complete or not at all.

        Raises `ResultError` if something is there already, as results are never overwritten or mixed, and if it cannot
        be written.
        """
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
        """Read what `write` wrote. Raises `ResultError` for what is missing, damaged or of another format."""
        from gradwire.scenarios import stored
        from gradwire.scenarios.result_consistency import check_consistency

        folder = path_of(directory, "Result.read(directory)", "a Result directory", ResultError)
        if not folder.is_dir():
            raise ResultError("no such directory", str(folder), "a Result directory")
        summary, timing = stored.read_summary(folder), stored.read_timing(folder)
        tables = {name: stored.read_table(folder / f"{name}.parquet", schema_of(name)) for name in TABLES}
        check_consistency(summary, tables, folder)
        return cls(summary, **tables, timing=timing, scenario=stored.read_scenario(folder / SCENARIO_FILE))


def as_pandas(table: pyarrow.Table) -> pandas.DataFrame:
    """A pyarrow table for pandas. Raises MissingExtraError if that is not installed."""
    try:
        import pandas  # noqa: F401  # pyarrow's own message names no way to install it
    except ModuleNotFoundError as error:
        raise MissingExtraError("pandas", "pandas") from error
    return table.to_pandas()


def make_table(name: str, columns: Mapping[str, Any]) -> pyarrow.Table:
    """The table called `name` from its columns, empty without any. Raises ValueError if they do not fit."""
    import pyarrow

    from gradwire.scenarios.arrow import arrow_array

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
    """The summary of a run of `scenario`: what was run, by which versions, and its totals.

    It holds nothing that differs between two equal runs (no dates, no durations, no paths).
    """
    from gradwire.scenarios.record import input_digests

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
    """Versions of everything that may influence a Result."""
    import platform
    from importlib import metadata

    found = {"gradwire": __version__, "python": platform.python_version()}
    for package in ("numpy", "numba"):
        found[package] = metadata.version(package)
    return found


def schema_of(name: str) -> pyarrow.Schema:
    import pyarrow

    types = {"bool": pyarrow.bool_(), "string": pyarrow.string(), "float64": pyarrow.float64()}
    types |= {width: getattr(pyarrow, width)() for width in ("int8", "int32", "int64")}
    return pyarrow.schema([(column, types[kind]) for column, kind in TABLES[name].items()])


def _write_json(path: Path, data: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(data, indent=2, sort_keys=True) + "\n", encoding="utf-8")
