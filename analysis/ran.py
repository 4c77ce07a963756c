"""Ran: what a Result came from, made again from what it keeps - scenario, traces, network, routes, jobs.

A Result holds its scenario, and the digest of every trace. The traces themselves have to be where they were.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gradwire.analysis.played import Played, Slow, message_columns
from gradwire.experiment.needs import find_needs
from gradwire.experiment.resolve import jobs_of
from gradwire.experiment.routing import build_routing
from gradwire.scenarios.errors import GradwireError, ResultError
from gradwire.scenarios.given import path_of
from gradwire.scenarios.json_data import Json
from gradwire.scenarios.load import build_scenario
from gradwire.scenarios.result import SCENARIO_FILE, Result
from gradwire.scenarios.schema.fault import HostFault
from gradwire.traces.trace import trace_of

if TYPE_CHECKING:
    from gradwire.experiment.jobs import Job
    from gradwire.scenarios.schema.scenario import Scenario
    from gradwire.traces.trace import Trace


class Ran:
    """One Result, with what it came from.

    Attributes
    ----------
    where : the Result in words, for messages.
    scenario, network, routing : what ran.
    simulated : whether it was, and is not of real sockets.
    left_out : whether iterations of it were not simulated, but are others once more (`simulation.approximate`).
    slow : where computing took longer.
    columns : all messages, see `message_columns`.
    """

    def __init__(self, result: Result, trace: Trace | None = None, where: str = "") -> None:
        """`trace` : what its jobs replayed, if that was given to `simulate` and not named by the scenario.

        Raises
        ------
        ResultError
            It holds no scenario, or a trace is another one now.
        TraceError, ScenarioError
            A trace or a file that it names is not there any more.
        """
        self.result, self.where = result, where or str(result.summary.get("name", "the Result"))
        self.simulated = result.summary.get("engine", {}).get("kind") != "emulation"
        self.left_out = bool(result.summary.get("approximate", {}).get("left_out"))
        self.scenario = _scenario_of(result, self.where)
        jobs = [table.name for table in self.scenario.job]
        if trace is not None:  # before what the scenario asks for is looked for in another one
            _check_traces(result, [(job, trace.name, trace) for job in jobs], self.where)
        needs = find_needs(self.scenario, trace)
        named = [table.trace for table in self.scenario.job]
        _check_traces(result, list(zip(jobs, named, needs.traces, strict=True)), self.where)
        self.network, self.places = needs.network, needs.places
        self.routing = build_routing(needs.network)
        self.traces = needs.traces
        self.jobs: list[Job] = jobs_of(self.scenario, needs)
        self.slow = Slow(tuple(
            (self._node(table.host), int(table.at), -1 if table.until is None else int(table.until), table.slowness)
            for table in self.scenario.fault
            if isinstance(table, HostFault) and table.slowness != 1.0
        ))  # fmt: skip
        self.columns = message_columns(result, self.network.index)
        self._by_job = {name: self.columns["job"] == n for n, name in enumerate(self.columns["jobs"])}

    def _node(self, host: str) -> int:
        """Where a host computes: its first network card."""
        cards = self.network.cards
        return cards.node(cards.index[host], 0)

    @cached_property
    def played(self) -> list[Played]:
        """Every job. ResultError if the Result is of real sockets, whose clocks nothing follows from to the picosecond,
        has iterations that follow from none before, or does not follow from its scenario."""
        if not self.simulated:
            what = "was made on real sockets, which do not tell when messages were released"
            raise ResultError(what, self.where, "a simulated Result")
        if self.left_out:
            what = "has iterations that were not simulated, but are others once more (simulation.approximate)"
            raise ResultError(what, self.where, "a Result of a run that leaves out none of them")
        return [Played(self, job) for job in self.jobs]

    @cached_property
    def workers(self) -> dict[str, list[int]]:
        """The hosts of the workers of every job, by its name; of a program of the user's own those of its ranks."""
        found = {
            table.name: [int(host) for host in places.workers]
            for table, places in zip(self.scenario.job, self.places, strict=True)
        }
        programs = self.result.summary.get("programs", {})
        ranks = [self.network.cards.index[rank["host"]] for rank in programs.get("ranks", ())]
        return found | dict.fromkeys(set(self.result.iterations["job"].to_pylist()) - set(found), ranks)

    @cached_property
    def latency(self) -> int:
        """Picoseconds of the hosts' software, between a message's release and its first packet."""
        return int(self.scenario.host.software_latency)

    def messages_of(self, job: str) -> dict[str, Any]:
        """The messages of one job."""
        mine = self._by_job.get(job, np.zeros(len(self.columns["number"]), dtype=np.bool_))
        return {name: column[mine] for name, column in self.columns.items() if name != "jobs"}

    def iterations_of(self, job: str) -> list[Json]:
        """Rows of the table of iterations of one job, by worker and iteration."""
        return [row for row in self.result.iterations.to_pylist() if row["job"] == job]


def _scenario_of(result: Result, where: str) -> Scenario:
    tables = {key: value for key, value in result.tables.items() if key != "policy"}
    if not tables:
        raise ResultError("does not hold its scenario", where, "a Result that was simulated by gradwire 0.1.0 or later")
    return build_scenario(tables, f"{where}/{SCENARIO_FILE}").at(Path.cwd())


def _check_traces(result: Result, traces: list[tuple[str, str, Trace]], where: str) -> None:
    """Raise ResultError unless the traces of jobs, by (job, name, trace), are those that they replayed."""
    before = str(result.summary.get("trace_hash", "")).split(",")
    for job, name, trace in traces:
        if trace.digest() not in before:
            raise ResultError(
                f"the trace {name!r} of job {job} is another one than that which it was made with", where,
                f"SHA-256 {', '.join(each[:12] + '...' for each in before)}",
            )  # fmt: skip


def ran(source: Result | str | Path, trace: Trace | str | Path | None = None) -> Ran:
    """A Result, or the directory of one, with what it came from. Errors as `Ran`, and of a directory that is none."""
    trace = trace_of(trace, "trace")
    if isinstance(source, Result):
        return Ran(source, trace)
    source = path_of(source, "source", "a Result, or the directory of one", ResultError)
    if not (source / "result.json").is_file():
        from gradwire.scenarios.record import members

        several = [str(each) for each in members(source)]
        if several != [str(source)]:
            raise ResultError("holds several Results", str(source), f"one of them: {', '.join(several)}")
    try:
        return Ran(Result.read(source), trace, str(source))
    except ResultError:
        raise
    except GradwireError as error:
        raise ResultError(f"cannot be made again: {error}", str(source), "what it was made of, where it was") from None
