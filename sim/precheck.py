"""What of a scenario only its network can tell: `gradwire check` asks it without simulating anything.

A graph file may be damaged, an override or a placement may name nodes that do not exist, and jobs may need more hosts
than a file's network has. `simulate` finds the same before it begins.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from sim.placement import place
from sim.telemetry import ports_of
from sim.topology import build_network

if TYPE_CHECKING:
    from scenarios.schema import Scenario


def check_networks(variants: Iterable[Scenario]) -> None:
    """Build the network of every variant, look up the ports to be sampled, and place its jobs.

    Raises
    ------
    ScenarioError
        With every fault of the first network that has any, or of the first placement.
    """
    for variant in variants:
        network = build_network(variant.topology, variant.link, variant.link_override)
        ports_of(variant.output.sample_ports, network)
        if variant.topology.host_count is None:  # of the other kinds, `scenarios.checks` knows the cables
            from sim.simulate import check_lookahead  # imports SimPy

            check_lookahead(variant, network)
        place(variant.job, network)
