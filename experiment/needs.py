"""What a scenario needs besides itself, found and checked before anything begins: traces, files, network, places.

A graph file may be damaged, an override or a placement may name nodes that do not exist, jobs may need more hosts than
a file's network has, a trace may lack a phase.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from gradwire.components.limits import MAX_PACKETS
from gradwire.experiment.collectives.groups import Groups
from gradwire.experiment.collectives.staged_table import MOST_WORKERS, StagedTable
from gradwire.experiment.placement import Places, place
from gradwire.experiment.replay import captured_iterations
from gradwire.experiment.topology import Network, network_of
from gradwire.experiment.traffic.tables import check_files, check_hosts, hosts_of
from gradwire.experiment.volume import check_volume
from gradwire.scenarios.errors import Mistake, ScenarioError, TraceError, names_scenario
from gradwire.scenarios.schema.topology import MAX_CABLES, MAX_HOSTS, MAX_SWITCHES
from gradwire.scenarios.units import Bps, format_size, format_time
from gradwire.scenarios.wire import MIN_FRAME, serialisation_ps

if TYPE_CHECKING:
    from gradwire.scenarios.schema.job import Job
    from gradwire.scenarios.schema.scenario import Scenario
    from gradwire.traces.trace import Trace


@dataclass(frozen=True)
class Needs:
    """What a scenario needs. `traces` and `places`: one per job."""

    network: Network
    traces: list[Trace]
    places: list[Places]


@names_scenario
def find_needs(scenario: Scenario, trace: Trace | None = None) -> Needs:
    """Everything that a scenario needs; `trace` is replayed instead of those that its jobs name.

    Raises
    ------
    ScenarioError
        Something does not fit: with every fault of the first part that has any.
    TraceError
        A trace is missing or damaged.
    """
    traces = load_traces(scenario, trace)
    _check_groups(scenario, traces)
    check_files(scenario)
    network = network_of(scenario)
    _check_size(network)
    _check_messages(scenario, traces)
    check_lookahead(scenario, network)
    check_hosts(scenario, network)
    found = Needs(network, traces, place(scenario.job, network, scenario.seed))
    check_volume(scenario, traces, found.places, network.cards)
    _check_schedules(scenario, traces, network)
    for number, (job, its, places) in enumerate(zip(scenario.job, traces, found.places, strict=True)):
        if job.parallel is not None:
            Groups.of(job, its).check_machines(places.workers, network.cards, f"job[{number}]")
    if network.cards.islands is not None:
        _check_reached(scenario, found)
    return found


def _check_reached(scenario: Scenario, found: Needs) -> None:
    """Jobs and traffic that would send between rails that nothing joins."""
    from gradwire.experiment.resolve import jobs_of

    jobs_of(scenario, found)  # an exchange looks which way its messages go
    cards = found.network.cards
    for number, table in enumerate(scenario.traffic):
        hosts = hosts_of(table, f"traffic[{number}]", found.network)
        pairs = np.repeat(hosts, len(hosts)), np.tile(hosts, len(hosts))
        try:
            cards.ends(*pairs, np.zeros(1, dtype=np.int64))
        except ScenarioError as error:
            raise ScenarioError(error.what, f"traffic[{number}].hosts", "spines, or hosts of one rail") from None


def exchanging(job: Job, trace: Trace) -> Job:
    """A job as its exchange sees it: of a split model, with the workers of one group that exchanges gradients, of all
    parameters where there are several kinds of groups."""
    if job.parallel is None:
        return job
    return job.model_copy(update={"workers": Groups.of(job, trace).data, "parallel": None})


def _check_groups(scenario: Scenario, traces: list[Trace]) -> None:
    """Exchanges that do not fit a trace; of split models sizes, and exchanges that do not go among so many."""
    mistakes: list[Mistake] = []
    for number, (job, trace) in enumerate(zip(scenario.job, traces, strict=True)):
        mistakes += [each.under(f"job[{number}]") for each in job.exchange.against(job, trace)]
        if job.parallel is None:
            continue
        groups = Groups.of(job, trace, f"job[{number}]")
        mistakes += groups.misfits(job, trace, f"job[{number}]")
        sizes = {groups.data} | {groups.size(info.group) for info in trace.tensors if groups.expert > 1}
        for size in sorted(sizes - {1}):
            one = job.model_copy(update={"workers": size, "parallel": None})
            inside = max(scenario.host.gpus // groups.tensor, 1)
            found = [*job.exchange.misfits(one), *job.exchange.unfit(one, inside)]
            mistakes += [
                replace(each.under(f"job[{number}]"), what=f"{each.what} (in groups of {size} that have the same part)")
                for each in found
            ]
    if mistakes:
        raise ScenarioError("the exchange does not fit its trace:", scenario.called, mistakes=mistakes)


def _check_messages(scenario: Scenario, traces: list[Trace]) -> None:
    """Messages of jobs that have more packets than can be numbered; `check_files` looks at those of traffic."""
    mistakes = []
    for number, (job, trace) in enumerate(zip(scenario.job, traces, strict=True)):
        payload = (job.transport or scenario.transport).payload
        tensor = max(tensor.bytes for tensor in trace.tensors)
        field, largest = job.exchange.longest(tensor, exchanging(job, trace).workers)
        path = f"job[{number}].exchange.{field}"
        if job.scheduler is not None and (own := job.scheduler.longest(tensor)) is not None:
            path, largest = f"job[{number}].scheduler", own
        if job.parallel is not None and (most := _longest_call(job, trace)) > largest:
            path, largest = f"job[{number}].parallel", most
        if largest > payload * MAX_PACKETS:
            what = f"makes messages of {-(-largest // payload)} packets of {format_size(payload)}"
            mistakes.append(Mistake(path, what, format_size(largest), f"at most {MAX_PACKETS} packets in a message"))
    if mistakes:
        raise ScenarioError("has messages that are too long:", scenario.called, mistakes=mistakes)


def _longest_call(job: Job, trace: Trace) -> int:
    """Bytes of the longest message of what passes wait for, at most."""
    groups = Groups.of(job, trace)
    found = [0]
    for each in trace.communications:
        members = groups.size(each.group)
        whole = each.kind == "broadcast" or members == 1
        parts = 1 if whole else 2 if job.parallel and job.parallel.algorithm == "halving" else members
        found.append(each.bytes // parts if members > 1 else 0)
    return max(found)


def _check_schedules(scenario: Scenario, traces: list[Trace], network: Network) -> None:
    """Ask collectives for their schedules, among few enough workers for a check to be quick."""
    for job, trace in zip(scenario.job, traces, strict=True):
        workers = exchanging(job, trace).workers
        if isinstance(job.exchange, StagedTable) and workers <= MOST_WORKERS:
            from gradwire.experiment.collectives.staged import transfers_of

            transfers_of(job.exchange, workers, int(network.cards.network.max()))


def _check_size(network: Network) -> None:
    """Networks from files: of the other kinds, `gradwire.scenarios.checks.scenario` knows it before they are built."""
    for what, count, most in (
        ("network cards of hosts", network.host_count, MAX_HOSTS),
        ("switches", network.switch_count, MAX_SWITCHES),
        ("cables", network.link_count // 2, MAX_CABLES),
    ):
        if count > most:
            raise ScenarioError(f"has {count} {what}", "topology", f"at most {most}")


def load_traces(scenario: Scenario, trace: Trace | None) -> list[Trace]:
    """The trace of every job; a trace that several jobs name is loaded once.

    Raises
    ------
    TraceError
        A trace is missing or damaged.
    ScenarioError
        A job wants a phase that its trace does not have, or has a `compute_scale` meant for another trace than the one
        that is put in; all such jobs are named.
    """
    from gradwire.traces.trace import load_trace

    loaded: dict[str, Trace] = {}
    traces = []
    for job in scenario.job:
        if trace is None and job.trace not in loaded:
            loaded[job.trace] = load_trace(job.trace)
        traces.append(trace if trace is not None else loaded[job.trace])
    mistakes = []
    for number, (job, its) in enumerate(zip(scenario.job, traces, strict=True)):
        try:
            captured_iterations(its, job.phase, f"job[{number}]")
        except ScenarioError as error:
            mistakes.append(Mistake(error.where, error.what, expected=error.expected))
        if trace is not None and job.compute_scale not in (0, 1) and not _same(trace, job.trace):
            what = f"is meant for the trace {job.trace}, not for {trace.name}"
            expected = f'1, or trace = "{trace.name}" in the job that has it'
            mistakes.append(Mistake(f"job[{number}].compute_scale", what, job.compute_scale, expected))
    if mistakes:
        raise ScenarioError("the trace does not have what the scenario asks for", mistakes=mistakes)
    return traces


def _same(trace: Trace, named: str) -> bool:
    """Whether a job names this trace: by its name, or as the directory that it was read from."""
    from gradwire.traces.trace import load_trace

    if Path(named).name == trace.name:
        return True
    try:
        return load_trace(named).digest() == trace.digest()
    except TraceError:
        return False


def check_lookahead(scenario: Scenario, network: Network) -> None:
    """Raise ScenarioError if hosts react faster than the network can: between a delivery
    and what follows from it lies the software latency.

    The scenario's own checks say this earlier for all topologies but graph files.
    """
    lookahead = min(
        int(latency) + serialisation_ps(MIN_FRAME, Bps(int(rate)))
        for rate, latency in {*zip(network.link_rate.tolist(), network.link_latency.tolist(), strict=True)}
    )
    latency = scenario.host.software_latency
    if latency < lookahead:
        raise ScenarioError(
            f"{format_time(latency)} is below the time of the smallest packet on the fastest link",
            where="host.software_latency",
            expected=f"at least {format_time(lookahead)}",
        )
