"""What of a scenario only its network can tell: `gradwire check` asks it without simulating anything.

A graph file may be damaged, an override, a placement or a fault may name nodes that do not exist, jobs may need more
hosts than a file's network has, and ways may be too long for a transport. `simulate` finds the same before it begins.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from scenarios.errors import ScenarioError
from sim.faults import Faults
from sim.placement import place
from sim.routing import Routing, build_routing
from sim.topology import build_network

if TYPE_CHECKING:
    from scenarios.schema import Scenario


def check_networks(variants: Iterable[Scenario]) -> None:
    """Build the network of every variant, place its jobs and find what its faults are about.

    Raises
    ------
    ScenarioError
        With every fault of the first network that has any, of the first placement, or of the first faults.
    """
    for variant in variants:
        network = build_network(variant.topology, variant.link, variant.link_override)
        if variant.topology.host_count is None:  # of the other kinds, `scenarios.checks` knows the cables
            from sim.simulate import check_lookahead  # imports SimPy

            check_lookahead(variant, network)
        place(variant.job, network)
        Faults(variant.fault, network)
        if any(table.switches_between is not None for table in variant.transports):
            check_paths(variant, build_routing(network))


def check_paths(scenario: Scenario, routing: Routing) -> None:
    """Raise ScenarioError if a packet may pass more switches than its transport can hear of."""
    longest = int(routing.distance.max()) + 1
    for table in scenario.transports:
        most = table.switches_between
        if most is not None and longest > most:
            raise ScenarioError(
                f"{table.kind} hears of {most} switches on the way of a packet, but here there may be {longest}",
                where="transport",
                expected="another transport, or a network of shorter ways",
            )
