"""What a simulation needs besides its scenario, found and checked before it begins.

`gradwire check` does this and nothing else, and `simulate` begins with it, so what `check` accepts, `run` runs. Beside
what both worlds need (`gradwire.experiment.needs`), a fault may name nodes that do not exist, a component of the user's
own may not be what it is named for, links may hold more packets than the engine counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gradwire.components.find import resolve
from gradwire.components.transports.base import check_streams
from gradwire.experiment.extent import MOST_NODES, Extent, extent_of
from gradwire.experiment.needs import Needs, find_needs
from gradwire.experiment.routing import Routing, build_routing
from gradwire.experiment.topology import Network
from gradwire.experiment.trips import RoundTrips
from gradwire.scenarios.arrays import Ints
from gradwire.scenarios.checks.switch import carriers, too_long
from gradwire.scenarios.errors import Mistake, ScenarioError, names_scenario
from gradwire.scenarios.inner_units import Bytes
from gradwire.scenarios.user_classes import table_for
from gradwire.scenarios.wire import MIN_FRAME, frame_bytes, speed_of
from gradwire.sim.fabric.parameters import Bound, check_settings
from gradwire.sim.fabric.room import link_room
from gradwire.sim.faults import Faults
from gradwire.sim.telemetry import ports_of

if TYPE_CHECKING:
    from gradwire.scenarios.schema.scenario import Scenario
    from gradwire.traces.trace import Trace


@dataclass(frozen=True)
class Simulated:
    """What a simulation needs. `sampled`: int64[...], directed links."""

    needs: Needs
    faults: Faults
    sampled: Ints


def check_variants(variants: Iterable[Scenario]) -> list[Network]:
    """Find what every variant needs, and return their networks.

    Raises
    ------
    ScenarioError, TraceError
        With every fault of the first part of the first variant that has any.
    """
    networks = []
    for variant in variants:
        network = find_all(variant).needs.network
        networks.append(network)
        if any(transport.switches_between is not None for transport in variant.transports):
            check_paths(variant, build_routing(network))
        if any(getattr(transport, "ack_every", 1) > 1 for transport in variant.transports):
            check_transports(variant, network)
    return networks


def extents(variants: Sequence[Scenario], networks: Sequence[Network]) -> list[tuple[list[str], Extent]]:
    """Every distinct network of variants, with the names of those that have it, in their order. `networks`: of each."""
    alike: list[tuple[Network, list[Scenario]]] = []
    for variant, network in zip(variants, networks, strict=True):
        for _, those in alike:
            if _network(those[0]) == _network(variant):
                those.append(variant)
                break
        else:
            alike.append((network, [variant]))
    return [
        ([each.policy_name for each in those], extent_of(network, [pair for each in those for pair in _frames(each)]))
        for network, those in alike
    ]


def _network(scenario: Scenario) -> tuple[object, ...]:
    """What a scenario says of its network."""
    return scenario.topology, scenario.link, scenario.link_override, scenario.host.inside


def _frames(scenario: Scenario) -> list[tuple[Bytes, Bytes]]:
    """Bytes on a link of a full packet and of its answer, of every transport."""
    owners = [resolve("transport", each.kind, scenario.folder) for each in scenario.transports]
    bounds = [Bound.to(owner, table) for owner, table in zip(owners, scenario.transports, strict=True)]
    return [(Bytes(bound.frame), Bytes(bound.owner.control_bytes)) for bound in bounds]


@names_scenario
def find_all(scenario: Scenario, trace: Trace | None = None) -> Simulated:
    """Everything that a simulation of the scenario needs; `trace` is replayed instead of those that its jobs name.

    Raises
    ------
    ScenarioError
        Something does not fit: with every fault of the first part that has any.
    TraceError
        A trace is missing or damaged.
    """
    needs = find_needs(scenario, trace)
    _check_components(scenario, needs.network)
    longest = max((frame_bytes(each.payload, each.overhead) for each in scenario.transports), default=MIN_FRAME)
    link_room(needs.network, longest, scenario.host.software_latency)
    faults = Faults(scenario.fault, needs.network)
    return Simulated(needs, faults, ports_of(scenario.output.sample_ports, needs.network))


def _check_components(scenario: Scenario, network: Network) -> None:
    """Import transports, a balancer and a queue policy of the user's own, and look whether they are what they are named
    for. Transports are asked for their parameters, where the network is not too large for a check to be quick."""
    for path, transport in carriers(scenario):
        if ":" in transport.kind:
            owner = resolve("transport", transport.kind, scenario.folder)
            check_streams(owner, table_for(owner, transport, path.removesuffix(".kind")))
    if any(":" in transport.kind for transport in scenario.transports) and 1 < network.host_count <= MOST_NODES:
        check_transports(scenario, network)
    if ":" in scenario.load_balancing:
        resolve("load_balancing", scenario.load_balancing, scenario.folder)
    if ":" in scenario.switch.queue_policy:
        resolve("queue", scenario.switch.queue_policy, scenario.folder)


def check_paths(scenario: Scenario, routing: Routing) -> None:
    """Raise ScenarioError if a path has more switches than a transport that carries something has room for.

    The scenario's own checks say this earlier of topologies whose paths they can count without building them; they
    count neither those of files nor the switches within hosts that have accelerators.
    """
    between = 1 + routing.farthest
    mistakes = [
        Mistake(path, **too_long(transport, between))
        for path, transport in carriers(scenario)
        if transport.switches_between is not None and between > transport.switches_between
    ]
    if mistakes:
        raise ScenarioError("does not fit its network:", scenario.called, mistakes=mistakes)


def check_transports(scenario: Scenario, network: Network) -> None:
    """Raise ScenarioError for settings of transports that do not fit the network, such as windows too large for
    acknowledgements that tell of several packets, and for parameters that cannot be had."""
    routing = build_routing(network)
    tables = scenario.transports
    bounds = [Bound.to(resolve("transport", each.kind, scenario.folder), each) for each in tables]
    check_settings(bounds, speed_of(network.link_rate[routing.up_link].astype(object)), RoundTrips(network, routing))


