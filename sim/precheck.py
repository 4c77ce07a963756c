"""What of a scenario only its network can tell: `gradwire check` asks it without simulating anything.

A graph file may be damaged, an override, a placement or a fault may name nodes that do not exist, jobs may need more
hosts than a file's network has, and its paths may have more switches than a transport can do with. `simulate` finds the
same before it begins.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from scenarios.checks_switch import carriers, too_long
from scenarios.errors import Mistake, ScenarioError
from sim.faults import Faults
from sim.placement import place
from sim.routing import build_routing
from sim.telemetry import ports_of
from sim.topology import build_network

if TYPE_CHECKING:
    from scenarios.schema import Scenario
    from sim.routing import Routing


def check_networks(variants: Iterable[Scenario]) -> None:
    """Build the network of every variant, place its jobs, and look up what faults and samples are about.

    Raises
    ------
    ScenarioError
        With every fault of the first network that has any, of the first placement, or of the first faults.
    """
    for variant in variants:
        network = build_network(variant.topology, variant.link, variant.link_override)
        ports_of(variant.output.sample_ports, network)
        if variant.topology.host_count is None:  # of the other kinds, `scenarios.checks` knows the cables
            from sim.simulate import check_lookahead  # imports SimPy

            check_lookahead(variant, network)
            if any(table.switches_between is not None for table in variant.transports):
                check_paths(variant, build_routing(network))
        place(variant.job, network)
        Faults(variant.fault, network)


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
