"""Finds and checks the inputs of a simulation before it starts, for `simulate` and `gradwire check`.

`gradwire check` does this and nothing else, and `simulate` begins with it, so what `check` accepts, `run` runs. Beyond
the prerequisites of both worlds (`gradwire.workload.prerequisites`), it checks the nodes that faults name, user-defined
components, and the number of packets on a link.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gradwire.protocols.registry import resolve_component
from gradwire.protocols.transports.base import check_streams
from gradwire.scenarios.arrays import Ints
from gradwire.scenarios.errors import Mistake, ScenarioError, with_scenario_location
from gradwire.scenarios.inner_units import Bytes
from gradwire.scenarios.loading.user_classes import validate_user_table
from gradwire.scenarios.validation.switch import path_too_long, used_transports
from gradwire.scenarios.wire import MIN_FRAME, frame_bytes, ps_per_byte
from gradwire.sim.engine.memory.link_capacity import link_capacity
from gradwire.sim.engine.memory.parameters import BoundTransport, check_settings
from gradwire.sim.faults import Faults
from gradwire.sim.telemetry import find_ports
from gradwire.topology import Network
from gradwire.topology.base_rtt import MAX_NODES, NetworkSize, RoundTrips, network_size
from gradwire.topology.routing import Routing, build_routing
from gradwire.workload.prerequisites import Prerequisites, find_prerequisites

if TYPE_CHECKING:
    from gradwire.scenarios.schema.scenario import Scenario
    from gradwire.traces.trace import Trace


@dataclass(frozen=True)
class SimulationInputs:
    """Inputs of a simulation. `sampled`: int64[...], directed links."""

    needs: Prerequisites
    faults: Faults
    sampled: Ints


def check_variants(variants: Iterable[Scenario]) -> list[Network]:
    """Prepare every variant, and return their networks. Raises ScenarioError or TraceError with every mistake of the
    first invalid part of the first invalid variant."""
    networks = []
    for variant in variants:
        network = prepare_inputs(variant).needs.network
        networks.append(network)
        if any(transport.switches_between is not None for transport in variant.transports):
            check_paths(variant, build_routing(network))
        if any(getattr(transport, "ack_every", 1) > 1 for transport in variant.transports):
            check_transports(variant, network)
    return networks


def extents(variants: Sequence[Scenario], networks: Sequence[Network]) -> list[tuple[list[str], NetworkSize]]:
    """Return each distinct network of the variants with the names of the variants that use it, in order. `networks`:
    one per variant."""
    groups: list[tuple[Network, list[Scenario]]] = []
    for variant, network in zip(variants, networks, strict=True):
        for _, members in groups:
            if _network(members[0]) == _network(variant):
                members.append(variant)
                break
        else:
            groups.append((network, [variant]))
    return [
        (
            [variant.policy_name for variant in members],
            network_size(network, [pair for variant in members for pair in _frames(variant)]),
        )
        for network, members in groups
    ]


def _network(scenario: Scenario) -> tuple[object, ...]:
    """Return the settings that determine a scenario's network."""
    return scenario.topology, scenario.link, scenario.link_override, scenario.host.inside


def _frames(scenario: Scenario) -> list[tuple[Bytes, Bytes]]:
    """Return, for each transport, the bytes on a link of a full packet and of its answer."""
    owners = [resolve_component("transport", transport.kind, scenario.folder) for transport in scenario.transports]
    bounds = [BoundTransport.bind(owner, table) for owner, table in zip(owners, scenario.transports, strict=True)]
    return [(Bytes(bound.frame), Bytes(bound.owner.control_bytes)) for bound in bounds]


@with_scenario_location
def prepare_inputs(scenario: Scenario, trace: Trace | None = None) -> SimulationInputs:
    """Return all inputs of a simulation; `trace` replaces those that the jobs name. Raises ScenarioError with every
    mistake of the first invalid part. Raises TraceError if a trace is missing or damaged."""
    needs = find_prerequisites(scenario, trace)
    _check_components(scenario, needs.network)
    longest = max(
        (frame_bytes(transport.payload, transport.overhead) for transport in scenario.transports), default=MIN_FRAME
    )
    link_capacity(needs.network, longest, scenario.host.software_latency)
    faults = Faults(scenario.fault, needs.network)
    return SimulationInputs(needs, faults, find_ports(scenario.output.sample_ports, needs.network))


def _check_components(scenario: Scenario, network: Network) -> None:
    """Import and check the user-defined transports, load balancer and queue policy. The parameters of transports are
    computed, too, if the network is small enough for a quick check."""
    for path, transport in used_transports(scenario):
        if ":" in transport.kind:
            owner = resolve_component("transport", transport.kind, scenario.folder)
            check_streams(owner, validate_user_table(owner, transport, path.removesuffix(".kind")))
    if any(":" in transport.kind for transport in scenario.transports) and 1 < network.host_count <= MAX_NODES:
        check_transports(scenario, network)
    if ":" in scenario.load_balancing:
        resolve_component("load_balancing", scenario.load_balancing, scenario.folder)
    if ":" in scenario.switch.queue_policy:
        resolve_component("queue", scenario.switch.queue_policy, scenario.folder)


def check_paths(scenario: Scenario, routing: Routing) -> None:
    """Raise ScenarioError if a path has more switches than a transport in use can record. The scenario's own checks
    find this earlier for topologies whose paths they can count without building them; they count neither paths of
    topology files nor switches within hosts that have accelerators."""
    between = 1 + routing.longest_path
    mistakes = [
        Mistake(path, **path_too_long(transport, between))
        for path, transport in used_transports(scenario)
        if transport.switches_between is not None and between > transport.switches_between
    ]
    if mistakes:
        raise ScenarioError("does not fit its network:", scenario.display_name, mistakes=mistakes)


def check_transports(scenario: Scenario, network: Network) -> None:
    """Raise ScenarioError if transport settings do not fit the network, or parameters cannot be computed. An example is
    a window too large for acknowledgements that cover several packets."""
    routing = build_routing(network)
    tables = scenario.transports
    bounds = [
        BoundTransport.bind(resolve_component("transport", table.kind, scenario.folder), table) for table in tables
    ]
    check_settings(bounds, ps_per_byte(network.link_rate[routing.up_link].astype(object)), RoundTrips(network, routing))
