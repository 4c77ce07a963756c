"""Networks: from a scenario's topology tables to checked arrays of nodes and links.

`build_network` is what the simulator calls; the generators and readers below it are public as well, for
people who build networks in Python.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from gradwire.experiment.topology.cables import LinkSpec, Override
from gradwire.experiment.topology.cards import Cards
from gradwire.experiment.topology.direct import dragonfly, torus
from gradwire.experiment.topology.generators import dumbbell, fat_tree, leaf_spine, rail, star
from gradwire.experiment.topology.graph import from_networkx, read_graph
from gradwire.experiment.topology.hpcc import read_hpcc
from gradwire.experiment.topology.network import HOST, SWITCH, Cable, Network, assemble
from gradwire.scenarios.errors import ScenarioError

__all__ = [
    "HOST",
    "SWITCH",
    "TOPOLOGIES",
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
    "rail",
    "read_graph",
    "read_hpcc",
    "star",
    "torus",
]


def _given(table: Any, *leave_out: str) -> dict[str, Any]:
    """The fields of a table that a generator takes by the same names."""
    return {
        name: getattr(table, name) for name in type(table).model_fields if name not in (*leave_out, "kind")
    }


TOPOLOGIES: dict[str, Callable[[Any, LinkSpec, list[Override]], Network]] = {
    "star": lambda table, link, overrides: star(table.hosts, link, overrides),
    "dumbbell": lambda table, link, overrides: dumbbell(
        table.left,
        table.left if table.right is None else table.right,
        link,
        overrides=overrides,
        **_given(table, "left", "right"),
    ),
    "leaf_spine": lambda table, link, overrides: leaf_spine(link=link, overrides=overrides, **_given(table)),
    "rail": lambda table, link, overrides: rail(link=link, overrides=overrides, **_given(table)),
    "fat_tree": lambda table, link, overrides: fat_tree(link=link, overrides=overrides, **_given(table)),
    "dragonfly": lambda table, link, overrides: dragonfly(link=link, overrides=overrides, **_given(table)),
    "torus": lambda table, link, overrides: torus(link=link, overrides=overrides, **_given(table)),
    "graph": lambda table, link, overrides: read_graph(
        table.file, link, hosts_per_switch=table.hosts_per_switch, overrides=overrides
    ),
    "hpcc": lambda table, link, overrides: read_hpcc(table.file, overrides=overrides),
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
