"""What a run needs besides its scenario, found and checked before it begins: traces, files, network, places, faults.

`gradwire check` does this and nothing else, and `simulate` begins with it, so what `check` accepts, `run` runs. A graph
file may be damaged, an override, a placement or a fault may name nodes that do not exist, jobs may need more hosts than
a file's network has, a trace may lack a phase, links may hold more packets than the engine counts.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradwire.experiment.limits import MAX_PACKETS
from gradwire.experiment.placement import Places, place
from gradwire.experiment.replay import captured_iterations
from gradwire.experiment.routing import Routing, build_routing
from gradwire.experiment.topology import Network, build_network
from gradwire.experiment.traffic import check_files, check_hosts
from gradwire.experiment.trips import RoundTrips
from gradwire.scenarios.checks_switch import carriers, too_long
from gradwire.scenarios.errors import Mistake, ScenarioError, TraceError
from gradwire.scenarios.schema_job import Ring
from gradwire.scenarios.schema_topology import MAX_CABLES, MAX_HOSTS, MAX_SWITCHES
from gradwire.scenarios.units import format_size, format_time
from gradwire.scenarios.wire import MIN_FRAME, frame_bytes, serialisation_ps, speed_of
from gradwire.sim.fabric.components import resolve
from gradwire.sim.fabric.parameters import Bound, check_settings
from gradwire.sim.fabric.room import link_room
from gradwire.sim.faults import Faults
from gradwire.sim.telemetry import ports_of
from gradwire.sim.transports import KINDS
from gradwire.sim.transports.base import check_streams

if TYPE_CHECKING:
    from gradwire.scenarios.schema import Scenario
    from gradwire.traces.trace import Trace


@dataclass(frozen=True)
class Needs:
    """What a run of a scenario needs. `traces` and `places`: one per job; `sampled`: int64[...], directed links."""

    network: Network
    traces: list[Trace]
    places: list[Places]
    faults: Faults
    sampled: Any


def check_variants(variants: Iterable[Scenario]) -> None:
    """Find what every variant needs.

    Raises
    ------
    ScenarioError, TraceError
        With every fault of the first part of the first variant that has any.
    """
    for variant in variants:
        needs = find_needs(variant)
        if variant.topology.host_count is None and any(t.switches_between is not None for t in variant.transports):
            # of the other kinds, `gradwire.scenarios.checks` knows it
            check_paths(variant, build_routing(needs.network))
        if any(getattr(transport, "ack_every", 1) > 1 for transport in variant.transports):
            check_windows(variant, needs.network)


def find_needs(scenario: Scenario, trace: Trace | None = None) -> Needs:
    """Everything that a run of the scenario needs; `trace` is replayed instead of those that its jobs name.

    Raises
    ------
    ScenarioError
        Something does not fit: with every fault of the first part that has any.
    TraceError
        A trace is missing or damaged.
    """
    traces = load_traces(scenario, trace)
    check_files(scenario)
    _check_components(scenario)
    network = build_network(scenario.topology, scenario.link, scenario.link_override)
    _check_size(network)
    _check_messages(scenario, traces)
    check_lookahead(scenario, network)
    longest = max(frame_bytes(each.payload, each.overhead) for each in scenario.transports)
    link_room(network, longest, scenario.host.software_latency)
    check_hosts(scenario, network)
    return Needs(
        network,
        traces,
        place(scenario.job, network, scenario.seed),
        Faults(scenario.fault, network),
        ports_of(scenario.output.sample_ports, network),
    )


def _check_components(scenario: Scenario) -> None:
    """Import transports and a balancer of the user's own, and look whether they are what they are named for."""
    for _, transport in carriers(scenario):
        if ":" in transport.kind:
            check_streams(resolve({}, transport.kind, "transport.kind", scenario.folder), transport)
    if ":" in scenario.load_balancing:
        resolve({}, scenario.load_balancing, "load_balancing", scenario.folder)


def _check_messages(scenario: Scenario, traces: list[Trace]) -> None:
    """Messages of jobs that have more packets than can be numbered; `check_files` looks at those of traffic."""
    mistakes = []
    for number, (job, trace) in enumerate(zip(scenario.job, traces, strict=True)):
        exchange, payload = job.exchange, (job.transport or scenario.transport).payload
        longest = max(tensor.bytes for tensor in trace.tensors)
        if isinstance(exchange, Ring):
            field, largest = "bucket", (exchange.bucket + longest) // job.workers
        else:
            field, largest = "partition", min(exchange.partition, longest)
        if largest > payload * MAX_PACKETS:
            what = f"makes messages of {-(-largest // payload)} packets of {format_size(payload)}"
            path = f"job[{number}].exchange.{field}"
            mistakes.append(Mistake(path, what, format_size(largest), f"at most {MAX_PACKETS} packets in a message"))
    if mistakes:
        raise ScenarioError("has messages that are too long:", scenario.name, mistakes=mistakes)


def _check_size(network: Network) -> None:
    """Networks from files: of the other kinds, `gradwire.scenarios.checks` knows it before they are built."""
    for what, count, most in (
        ("network cards of hosts", network.host_count, MAX_HOSTS),
        ("switches", network.switch_count, MAX_SWITCHES),
        ("cables", network.link_count // 2, MAX_CABLES),
    ):
        if count > most:
            raise ScenarioError(f"has {count} {what}", "topology", f"at most {most}")


def check_paths(scenario: Scenario, routing: Routing) -> None:
    """Raise ScenarioError if a path has more switches than a transport that carries something has room for.

    The scenario's own checks say this earlier for all topologies but files.
    """
    between = 1 + max(0, int(routing.distance.max()))
    mistakes = [
        Mistake(path, **too_long(transport, between))
        for path, transport in carriers(scenario)
        if transport.switches_between is not None and between > transport.switches_between
    ]
    if mistakes:
        raise ScenarioError("does not fit its network:", scenario.name, mistakes=mistakes)


def check_windows(scenario: Scenario, network: Network) -> None:
    """Raise ScenarioError if windows are too large for acknowledgements that tell of several packets."""
    routing = build_routing(network)
    tables = scenario.transports
    bounds = [Bound.to(resolve(KINDS, each.kind, "transport.kind", scenario.folder), each) for each in tables]
    check_settings(bounds, speed_of(network.link_rate[routing.up_link].astype(object)), RoundTrips(network, routing))


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
    """Raise ScenarioError if hosts react faster than the network can: see `gradwire.sim.coupling`.

    The scenario's own checks say this earlier for all topologies but graph files.
    """
    lookahead = min(
        int(latency) + serialisation_ps(MIN_FRAME, int(rate))
        for rate, latency in {*zip(network.link_rate.tolist(), network.link_latency.tolist(), strict=True)}
    )
    latency = scenario.host.software_latency
    if latency < lookahead:
        raise ScenarioError(
            f"{format_time(latency)} is below the time of the smallest packet on the fastest link",
            where="host.software_latency",
            expected=f"at least {format_time(lookahead)}",
        )
