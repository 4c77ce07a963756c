"""Networks: from a scenario's topology tables to checked arrays of nodes and links.

`network_of` is what both worlds call; the generators and readers that the tables in `kinds` stand for are public as
well, for people who build networks in Python. Every name is imported at its first use, so that whoever reads a
scenario, and with it the tables, needs no NumPy.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from gradwire.scenarios.asked import asked
from gradwire.scenarios.lazily import names_from

if TYPE_CHECKING:
    from gradwire.experiment.topology.cables import Cable, LinkSpec, Override
    from gradwire.experiment.topology.cards import Cards
    from gradwire.experiment.topology.graph import from_networkx, read_graph
    from gradwire.experiment.topology.hpcc import read_hpcc
    from gradwire.experiment.topology.kinds.dragonfly import dragonfly
    from gradwire.experiment.topology.kinds.dumbbell import dumbbell
    from gradwire.experiment.topology.kinds.fat_tree import fat_tree
    from gradwire.experiment.topology.kinds.leaf_spine import leaf_spine
    from gradwire.experiment.topology.kinds.rail import rail
    from gradwire.experiment.topology.kinds.star import star
    from gradwire.experiment.topology.kinds.torus import torus
    from gradwire.experiment.topology.network import HOST, SWITCH, Network, assemble

__all__ = [
    "HOST",
    "SWITCH",
    "Cable",
    "Cards",
    "LinkSpec",
    "Network",
    "Override",
    "assemble",
    "build_network",
    "dragonfly",
    "dumbbell",
    "fat_tree",
    "from_networkx",
    "leaf_spine",
    "network_of",
    "rail",
    "read_graph",
    "read_hpcc",
    "star",
    "torus",
]

__getattr__ = names_from(
    __name__,
    {
        "cables": ("Cable", "LinkSpec", "Override"),
        "cards": ("Cards",),
        "graph": ("from_networkx", "read_graph"),
        "hpcc": ("read_hpcc",),
        "network": ("HOST", "SWITCH", "Network", "assemble"),
        "kinds.dragonfly": ("dragonfly",),
        "kinds.dumbbell": ("dumbbell",),
        "kinds.fat_tree": ("fat_tree",),
        "kinds.leaf_spine": ("leaf_spine",),
        "kinds.rail": ("rail",),
        "kinds.star": ("star",),
        "kinds.torus": ("torus",),
    },
)


def network_of(scenario: Any) -> Network:
    """The network of a scenario, with the accelerators of its machines. Errors as `build_network`."""
    network = build_network(scenario.topology, scenario.link, scenario.link_override)
    inside = scenario.host.inside
    if inside is None:
        return network
    from gradwire.experiment.topology.accelerators import Inside, with_accelerators

    return with_accelerators(network, Inside(*inside))


def build_network(topology: Any, link: Any, overrides: Iterable[Any] = ()) -> Network:
    """The network of a scenario's topology.

    Parameters
    ----------
    topology : the scenario's [topology] table, or a networkx graph.
    link : its [link] table: rate (bits/s), latency (ps), loss.
    overrides : its [[link_override]] tables: between, rate, latency, loss.

    Raises
    ------
    ScenarioError
        With every fault of the network.
    """
    from gradwire.experiment.topology.cables import LinkSpec, Override

    spec = LinkSpec(link.rate, link.latency, link.loss)
    changes = [
        Override((entry.between[0], entry.between[1]), entry.rate, entry.latency, entry.loss)
        for entry in overrides
    ]
    if hasattr(topology, "is_directed"):  # a networkx graph, told without importing networkx
        from gradwire.experiment.topology.graph import from_networkx

        return from_networkx(topology, spec, overrides=changes)
    with asked(topology, "network", "topology"):
        network: Network = topology.network(spec, changes)
    return network
