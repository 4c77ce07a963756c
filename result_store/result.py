"""`Result` holds, reads and writes a run's summary and nine tables, in the same form from simulator and testbed.

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
from gradwire.result_store.table_schema import FORMAT, SCENARIO_FILE, TABLES, as_pandas, make_table, schema_of, versions
from gradwire.scenarios.errors import ResultError
from gradwire.scenarios.validation.argument_checks import require_path

if TYPE_CHECKING:
    import pandas
    import pyarrow

    from gradwire.scenarios.schema.scenario import Scenario


class _Table:
    """A table of a Result, set as a `pyarrow.Table` or as `LazyTable` rows and read as a `pyarrow.Table`."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, result: Result | None, owner: type) -> pyarrow.Table:
        if result is None:
            raise AttributeError(self.name)  # the dataclass field must have no default
        return result.stored_rows(self.name).table()

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
        return f"<Result: {self._summary_text()}; {rows or 'empty'}>"

    def _repr_html_(self) -> str:
        """Return the HTML that notebooks show."""
        from html import escape

        lines = "".join(
            f"<tr><td>{escape(name)}</td><td>{count:,}</td><td>{escape(', '.join(TABLES[name]))}</td></tr>"
            for name, count in self._rows().items()
        )
        head = "<tr><th>table</th><th>rows</th><th>columns</th></tr>"
        return f"<p><b>Result</b>: {escape(self._summary_text())}</p><table>{head}{lines}</table>"

    def _summary_text(self) -> str:
        """Return a summary: scenario, policy, duration and end."""
        totals = self.summary.get("totals", {})
        name, policy = (str(self.summary.get(key, "?")) for key in ("name", "policy"))
        where = "emulated" if self.summary.get("engine", {}).get("kind") == "emulation" else "simulated"
        end = "" if "simulated_ps" not in totals else f" {int(totals['simulated_ps']) / 1e9:.3g} ms"
        return f"{name} {policy}, {where}{end}, ended by {totals.get('ended_by', '?')}"

    def _rows(self) -> dict[str, int]:
        return {name: rows for name in TABLES if (rows := self.stored_rows(name).num_rows)}

    def stored_rows(self, table: str) -> LazyTable:
        """Return the stored rows of a table."""
        value = vars(self)[table]
        return value if isinstance(value, LazyTable) else InMemoryTable(value)

    def select(self, table: str, *columns: str) -> pyarrow.Table:
        """Return some columns of a table, without reading the others. Texts may be dictionary-encoded."""
        return self.stored_rows(table).select(columns)

    def parts(self, table: str, *columns: str) -> Iterator[pyarrow.Table]:
        """Yield some columns of a table, about a million rows at a time."""
        return self.stored_rows(table).parts(columns)

    def to_pandas(self, table: str = "messages") -> pandas.DataFrame:
        """Return one of the tables as a pandas DataFrame. Raises MissingExtraError if pandas is not installed. Raises
        ResultError if the table does not exist."""
        if table not in list(TABLES):
            raise ResultError(f"no table {table!r}", "to_pandas(table)", f"one of {', '.join(TABLES)}")
        return as_pandas(getattr(self, table))

    def write(self, directory: str | Path) -> Path:
        """Write everything to a new directory, which appears complete or not at all. Raises `ResultError` if the
        directory exists, as results are never overwritten or mixed, or cannot be written."""
        with new_folder(directory) as folder:
            for name in TABLES:
                self.stored_rows(name).write(folder / f"{name}.parquet")
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


def _write_json(path: Path, data: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(data, indent=2, sort_keys=True) + "\n", encoding="utf-8")
