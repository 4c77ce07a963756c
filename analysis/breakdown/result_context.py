"""`ResultContext` rebuilds the traces, network, routes and jobs behind a Result from the scenario stored in it.

A Result holds its scenario and the digest of every trace. The traces must still be where they were.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from gradwire.analysis.breakdown.program_replay import HostSlowdowns, ReplayedProgram, message_columns
from gradwire.result_store.result import Result
from gradwire.result_store.table_schema import SCENARIO_FILE
from gradwire.scenarios.errors import GradwireError, ResultError
from gradwire.scenarios.json_data import Json
from gradwire.scenarios.loading.load import build_scenario
from gradwire.scenarios.schema.network.fault import HostFault
from gradwire.scenarios.validation.argument_checks import require_path
from gradwire.topology.routing import build_routing
from gradwire.traces.trace import Trace, resolve_trace
from gradwire.workload.jobs import Job
from gradwire.workload.prerequisites import find_prerequisites, make_jobs


class ResultContext:
    """A Result and the experiment it came from.

    where : the Result's name in messages.
    scenario, network, routing : the experiment.
    simulated : true if simulated, false if from real sockets.
    slow : periods in which hosts computed more slowly.
    columns : all messages, see `message_columns`.
    """

    def __init__(self, result: Result, trace: Trace | None = None, where: str = "") -> None:
        """`trace` : the trace that its jobs replayed, if it was passed to `simulate` and is not named in the scenario.
        Raises `ResultError` if it holds no scenario, or a trace has changed. Raises `TraceError`, `ScenarioError` if a
        trace or a file that the scenario names is missing."""
        self.result, self.where = result, where or str(result.summary.get("name", "the Result"))
        self.simulated = result.summary.get("engine", {}).get("kind") != "emulation"
        tables = {key: value for key, value in result.tables.items() if key != "policy"}
        if not tables:
            expected = "a Result that was simulated by gradwire 0.1.0 or later"
            raise ResultError("does not hold its scenario", self.where, expected)
        self.scenario = build_scenario(tables, f"{self.where}/{SCENARIO_FILE}").at(Path.cwd())
        jobs = [table.name for table in self.scenario.job]
        if trace is not None:  # a wrong trace is reported before the scenario is resolved with it
            _check_traces(result, [(job, trace.name, trace) for job in jobs], self.where)
        needs = find_prerequisites(self.scenario, trace)
        named = [table.trace for table in self.scenario.job]
        _check_traces(result, list(zip(jobs, named, needs.traces, strict=True)), self.where)
        self.network, self.places = needs.network, needs.places
        self.routing = build_routing(needs.network)
        self.traces = needs.traces
        self.jobs: list[Job] = make_jobs(self.scenario, needs)
        cards = self.network.cards
        self.slow = HostSlowdowns(
            tuple(
                (
                    cards.node(cards.index[table.host], 0),
                    int(table.at),
                    -1 if table.until is None else int(table.until),
                    table.slowness,
                )
                for table in self.scenario.fault
                if isinstance(table, HostFault) and table.slowness != 1.0
            )
        )
        self.columns = message_columns(result, self.network.index)
        self._by_job = {name: self.columns["job"] == n for n, name in enumerate(self.columns["jobs"])}

    @cached_property
    def replays(self) -> list[ReplayedProgram]:
        """Replays of every job. Raises ResultError if the Result is from real sockets (its clocks are not exact to the
        picosecond), or does not follow from its scenario."""
        if not self.simulated:
            what = "comes from real sockets, which do not record when messages were released"
            raise ResultError(what, self.where, "a simulated Result")
        return [ReplayedProgram(self, job) for job in self.jobs]

    @cached_property
    def workers(self) -> dict[str, list[int]]:
        """The hosts of the workers of every job, by its name; of a user's program those of its ranks."""
        hosts_by_job = {
            table.name: [int(host) for host in places.workers]
            for table, places in zip(self.scenario.job, self.places, strict=True)
        }
        programs = self.result.summary.get("programs", {})
        ranks = [self.network.cards.index[rank["host"]] for rank in programs.get("ranks", ())]
        return hosts_by_job | dict.fromkeys(set(self.result.iterations["job"].to_pylist()) - set(hosts_by_job), ranks)

    @cached_property
    def latency(self) -> int:
        """Software latency of the hosts between a message's release and its first packet, picoseconds."""
        return int(self.scenario.host.software_latency)

    def messages_of(self, job: str) -> dict[str, Any]:
        """Return the messages of one job."""
        rows = self._by_job.get(job, np.zeros(len(self.columns["number"]), dtype=np.bool_))
        return {name: column[rows] for name, column in self.columns.items() if name != "jobs"}

    def iterations_of(self, job: str) -> list[Json]:
        """Return the rows of a job in the table of iterations, by worker and iteration."""
        return [row for row in self.result.iterations.to_pylist() if row["job"] == job]


def _check_traces(result: Result, traces: list[tuple[str, str, Trace]], where: str) -> None:
    """Raise ResultError unless the traces of jobs, by (job, name, trace), are those the Result was made with."""
    before = str(result.summary.get("trace_hash", "")).split(",")
    for job, name, trace in traces:
        if trace.digest() not in before:
            expected = f"SHA-256 {', '.join(digest[:12] + '...' for digest in before)}"
            raise ResultError(f"the trace {name!r} of job {job} is not the one of the run", where, expected)


def result_context(
    source: Result | ResultContext | str | Path, trace: Trace | str | Path | None = None
) -> ResultContext:
    """Rebuild the context of a Result or a Result's directory, unless it is one. Errors as for `ResultContext`, and for
    other directories."""
    if isinstance(source, ResultContext):
        return source
    trace = resolve_trace(trace, "trace")
    if isinstance(source, Result):
        return ResultContext(source, trace)
    source = require_path(source, "source", "a Result, or the directory of one", ResultError)
    if not (source / "result.json").is_file():
        from gradwire.result_store.provenance import members

        several = [str(member) for member in members(source)]
        if several != [str(source)]:
            raise ResultError("holds several Results", str(source), f"one of them: {', '.join(several)}")
    try:
        return ResultContext(Result.read(source), trace, str(source))
    except ResultError:
        raise
    except GradwireError as error:
        what = f"its scenario cannot be resolved again: {error}"
        raise ResultError(what, str(source), "its scenario's files where they were") from None
