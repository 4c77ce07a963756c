"""Loads and checks a scenario's traces, files, network and placement before the run, and makes its jobs.

A graph file may be damaged, an override or a placement may name nodes that do not exist, jobs may need more hosts than
a file's network has, a trace may lack a phase.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from gradwire.jit.limits import MAX_PACKETS
from gradwire.scenarios.errors import Mistake, ScenarioError, TraceError, with_scenario_location
from gradwire.scenarios.schema.job.job import Job
from gradwire.scenarios.schema.network.topology import MAX_CABLES, MAX_HOSTS, MAX_SWITCHES
from gradwire.scenarios.schema.scenario import Scenario
from gradwire.scenarios.units import Bps, format_size, format_time
from gradwire.scenarios.wire import MIN_FRAME, serialisation_ps
from gradwire.topology import Network, network_of
from gradwire.topology.placement import HostAssignment, place_jobs
from gradwire.traces.trace import Trace, load_trace
from gradwire.workload.collectives.common.groups import ModelGroups
from gradwire.workload.collectives.common.staged_table import MOST_WORKERS, StagedTable
from gradwire.workload.message_count import check_volume
from gradwire.workload.replay import captured_iterations
from gradwire.workload.traffic.tables import check_files, check_hosts, hosts_of

if TYPE_CHECKING:
    from gradwire.workload.jobs import Job as TrainingJob


@dataclass(frozen=True)
class Prerequisites:
    """Prerequisites of a scenario. `traces` and `places`: one per job."""

    network: Network
    traces: list[Trace]
    places: list[HostAssignment]


@with_scenario_location
def find_prerequisites(scenario: Scenario, trace: Trace | None = None) -> Prerequisites:
    """Load and check the prerequisites of a scenario; `trace` replaces the traces of its jobs.

    Raises ScenarioError with every mistake of the first part that has any, TraceError if a trace is missing or damaged.
    """
    traces = load_traces(scenario, trace)
    _check_groups(scenario, traces)
    check_files(scenario)
    network = network_of(scenario)
    _check_size(network)
    _check_messages(scenario, traces)
    check_lookahead(scenario, network)
    check_hosts(scenario, network)
    needs = Prerequisites(network, traces, place_jobs(scenario.job, network, scenario.seed))
    check_volume(scenario, traces, needs.places, network.cards)
    _check_schedules(scenario, traces, network)
    for number, (job, job_trace, places) in enumerate(zip(scenario.job, traces, needs.places, strict=True)):
        if job.parallel is not None:
            ModelGroups.of(job, job_trace).check_machines(places.workers, network.cards, f"job[{number}]")
    if network.cards.islands is not None:
        _check_reached(scenario, needs)
    return needs


def _check_reached(scenario: Scenario, needs: Prerequisites) -> None:
    """Raise ScenarioError if jobs or traffic would send between rails that are not connected."""
    make_jobs(scenario, needs)  # an exchange looks up the rails of its messages
    cards = needs.network.cards
    for number, table in enumerate(scenario.traffic):
        hosts = hosts_of(table, f"traffic[{number}]", needs.network)
        pairs = np.repeat(hosts, len(hosts)), np.tile(hosts, len(hosts))
        try:
            cards.cards(*pairs, np.zeros(1, dtype=np.int64))
        except ScenarioError as error:
            raise ScenarioError(error.what, f"traffic[{number}].hosts", "spines, or hosts of one rail") from None


def make_jobs(scenario: Scenario, needs: Prerequisites) -> list[TrainingJob]:
    """Return the jobs of a scenario, in its order."""
    if not scenario.job:  # avoids imports that traffic does not need
        return []
    from gradwire.workload.jobs import Job as TrainingJob

    jobs, traces = [], list(dict.fromkeys(needs.traces))
    for number, row in enumerate(zip(scenario.job, needs.traces, needs.places, strict=True)):
        source, where = traces.index(row[1]), f"job[{number}]"
        jobs.append(
            TrainingJob.in_scenario(scenario, *row, needs.network.cards, number=number, source=source, where=where)
        )
    return jobs


def exchange_job(job: Job, trace: Trace) -> Job:
    """Return a job as its exchange sees it: for a split model, with the workers of one group that exchanges gradients.

    With several kinds of groups, it is the group of all parameters.
    """
    if job.parallel is None:
        return job
    return job.model_copy(update={"workers": ModelGroups.of(job, trace).data, "parallel": None})


def _check_groups(scenario: Scenario, traces: list[Trace]) -> None:
    """Raise ScenarioError for exchanges that do not fit a trace, or the group sizes of a split model."""
    mistakes: list[Mistake] = []
    for number, (job, trace) in enumerate(zip(scenario.job, traces, strict=True)):
        mistakes += [mistake.under(f"job[{number}]") for mistake in job.exchange.trace_conflicts(job, trace)]
        if job.parallel is None:
            continue
        groups = ModelGroups.of(job, trace, f"job[{number}]")
        mistakes += groups.misfits(job, trace, f"job[{number}]")
        sizes = {groups.data} | {groups.size(info.group) for info in trace.tensors if groups.expert > 1}
        for size in sorted(sizes - {1}):
            one = job.model_copy(update={"workers": size, "parallel": None})
            inside = max(scenario.host.gpus // groups.tensor, 1)
            for item in (*job.exchange.misfits(one), *job.exchange.gpu_conflicts(one, inside)):
                what = f"{item.what} (in groups of {size} with the same part of the model)"
                mistakes.append(replace(item.under(f"job[{number}]"), what=what))
    if mistakes:
        raise ScenarioError("the exchange does not fit its trace:", scenario.display_name, mistakes=mistakes)


def _check_messages(scenario: Scenario, traces: list[Trace]) -> None:
    """Raise ScenarioError if messages of jobs have too many packets; `check_files` checks those of traffic."""
    mistakes = []
    for number, (job, trace) in enumerate(zip(scenario.job, traces, strict=True)):
        payload = (job.transport or scenario.transport).payload
        tensor = max(tensor.bytes for tensor in trace.tensors)
        field, largest = job.exchange.longest(tensor, exchange_job(job, trace).workers)
        path = f"job[{number}].exchange.{field}"
        if job.scheduler is not None and (longest := job.scheduler.longest(tensor)) is not None:
            path, largest = f"job[{number}].scheduler", longest
        if job.parallel is not None and (most := _longest_call(job, trace)) > largest:
            path, largest = f"job[{number}].parallel", most
        if largest > payload * MAX_PACKETS:
            what = f"creates messages of {-(-largest // payload)} packets of {format_size(payload)}"
            mistakes.append(Mistake(path, what, format_size(largest), f"at most {MAX_PACKETS} packets in a message"))
    if mistakes:
        raise ScenarioError("has messages that are too long:", scenario.display_name, mistakes=mistakes)


def _longest_call(job: Job, trace: Trace) -> int:
    """Return an upper bound of the bytes of a message that a pass waits for."""
    groups, longest = ModelGroups.of(job, trace), 0
    for call in trace.communications:
        if (members := groups.size(call.group)) > 1:
            halving = job.parallel is not None and job.parallel.algorithm == "halving"
            longest = max(longest, call.bytes // (1 if call.kind == "broadcast" else 2 if halving else members))
    return longest


def _check_schedules(scenario: Scenario, traces: list[Trace], network: Network) -> None:
    """Raise ScenarioError for invalid schedules of collectives, if workers are few enough for a quick check."""
    for job, trace in zip(scenario.job, traces, strict=True):
        workers = exchange_job(job, trace).workers
        if isinstance(job.exchange, StagedTable) and workers <= MOST_WORKERS:
            job.exchange.checked_transfers(workers, int(network.cards.network.max()))


def _check_size(network: Network) -> None:
    """Raise ScenarioError if a network from a file is too large; others are checked before they are built."""
    for what, count, most in (
        ("NICs", network.host_count, MAX_HOSTS),
        ("switches", network.switch_count, MAX_SWITCHES),
        ("cables", network.link_count // 2, MAX_CABLES),
    ):
        if count > most:
            raise ScenarioError(f"has {count} {what}", "topology", f"at most {most}")


def load_traces(scenario: Scenario, trace: Trace | None) -> list[Trace]:
    """Return the trace of every job; a trace that several jobs name is loaded once.

    Raises TraceError if a trace is missing or damaged, ScenarioError if jobs name a phase that their trace lacks, or
    have a `compute_scale` for another trace than `trace`.
    """
    loaded: dict[str, Trace] = {}
    traces = []
    for job in scenario.job:
        if trace is None and job.trace not in loaded:
            loaded[job.trace] = load_trace(job.trace)
        traces.append(trace if trace is not None else loaded[job.trace])
    mistakes = []
    for number, (job, job_trace) in enumerate(zip(scenario.job, traces, strict=True)):
        try:
            captured_iterations(job_trace, job.phase, f"job[{number}]")
        except ScenarioError as error:
            mistakes.append(Mistake(error.where, error.what, expected=error.expected))
        if trace is not None and job.compute_scale not in (0, 1) and not _same(trace, job.trace):
            what = f"is meant for the trace {job.trace}, not for {trace.name}"
            expected = f'1, or trace = "{trace.name}" in the job that has it'
            mistakes.append(Mistake(f"job[{number}].compute_scale", what, job.compute_scale, expected))
    if mistakes:
        raise ScenarioError("the trace does not fit the scenario:", mistakes=mistakes)
    return traces


def _same(trace: Trace, named: str) -> bool:
    """Return True if `named` is this trace, by name or as the directory that it was read from."""
    if Path(named).name == trace.name:
        return True
    try:
        return load_trace(named).digest() == trace.digest()
    except TraceError:
        return False


def check_lookahead(scenario: Scenario, network: Network) -> None:
    """Raise ScenarioError if a host's software latency is below the engine's lookahead window.

    The scenario's own checks report this earlier for all topologies except graph files.
    """
    lookahead = min(
        int(latency) + serialisation_ps(MIN_FRAME, Bps(int(rate)))
        for rate, latency in {*zip(network.link_rate.tolist(), network.link_latency.tolist(), strict=True)}
    )
    latency = scenario.host.software_latency
    if latency < lookahead:
        raise ScenarioError(
            f"{format_time(latency)} is below the latency of the shortest link and the time of its smallest packet",
            where="host.software_latency",
            expected=f"at least {format_time(lookahead)}",
        )
