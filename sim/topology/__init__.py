"""Networks: from a scenario's topology tables to checked arrays of nodes and links.

`build_network` is what the simulator calls; the generators and readers below it are public as well, for
people who build networks in Python.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from scenarios.errors import ScenarioError
from sim.topology.generators import LinkSpec, Override, fat_tree, leaf_spine, star
from sim.topology.graph import from_networkx, read_graph
from sim.topology.network import HOST, SWITCH, Cable, Network, assemble

__all__ = [
    "HOST",
    "SWITCH",
    "TOPOLOGIES",
    "Cable",
    "LinkSpec",
    "Network",
    "Override",
    "assemble",
    "build_network",
    "fat_tree",
    "from_networkx",
    "leaf_spine",
    "read_graph",
    "star",
]

TOPOLOGIES: dict[str, Callable[[Any, LinkSpec, list[Override]], Network]] = {
    "star": lambda table, link, overrides: star(table.hosts, link, overrides),
    "leaf_spine": lambda table, link, overrides: leaf_spine(
        table.leaves,
        table.hosts_per_leaf,
        table.spines,
        link,
        uplink_rate=table.uplink_rate,
        oversubscription=table.oversubscription,
        overrides=overrides,
    ),
    "fat_tree": lambda table, link, overrides: fat_tree(table.k, link, overrides),
    "graph": lambda table, link, overrides: read_graph(table.file, link, overrides=overrides),
}
"""From the `kind` of a scenario's [topology] table to the network; one line per kind."""


def build_network(topology: Any, link: Any, overrides: Iterable[Any] = ()) -> Network:
    """The network of a scenario.

    Parameters
    ----------
    topology : the scenario's [topology] table (its `kind` chooses the generator), or a networkx graph.
    link : its [link] table: rate (bits/s), latency (ps), loss.
    overrides : its [[link_override]] tables: between, rate, latency, loss.

    Raises
    ------
    ScenarioError
        With every fault of the network.
    """
    spec = LinkSpec(link.rate, link.latency, link.loss)
    changes = [
        Override((entry.between[0], entry.between[1]), entry.rate, entry.latency, entry.loss)
        for entry in overrides
    ]
    if hasattr(topology, "is_directed"):  # a networkx graph, told without importing networkx
        return from_networkx(topology, spec, overrides=changes)
    try:
        build = TOPOLOGIES[topology.kind]
    except KeyError:
        what, known = f"unknown kind {topology.kind!r}", ", ".join(TOPOLOGIES)
        raise ScenarioError(what, where="topology.kind", expected=f"one of {known}") from None
    return build(topology, spec, changes)
