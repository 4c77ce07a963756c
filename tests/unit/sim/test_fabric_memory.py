"""The engine's array: its tables of routes say what the routing says."""

from __future__ import annotations

from dataclasses import replace

import networkx
import numpy as np
import pytest

from gradwire.components import layout as at
from gradwire.experiment.routing import build_routing
from gradwire.experiment.topology import LinkSpec, fat_tree, from_networkx, leaf_spine, star, torus
from gradwire.scenarios.schema.network import Switch
from gradwire.sim.fabric.memory import build
from gradwire.sim.fabric.regions import Wanted
from gradwire.sim.fabric.room import link_room

LINK = LinkSpec(10**11, 10**6)
NETWORKS = {
    "star": lambda: star(3, LINK),  # no groups at all
    "leaf_spine": lambda: leaf_spine(3, 2, 4, LINK),
    "one spine": lambda: leaf_spine(3, 2, 1, LINK),  # groups of one link only
    "fat_tree": lambda: fat_tree(4, LINK),
    "torus": lambda: torus((3, 4), LINK, hosts_per_switch=1),  # every switch has hosts
    "mixed": lambda: from_networkx(networkx.barbell_graph(4, 2), LINK, hosts_per_switch=2),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_routes_read_back(name: str) -> None:
    network = NETWORKS[name]()
    routing = build_routing(network)
    memory = build(
        network, routing, Switch(), Wanted(threads=1), longest_frame=1500, host_latency=2 * 10**6, seed=1,
    )  # fmt: skip
    M, hosts = memory.M, network.host_count
    edges = np.unique(routing.edge_of).tolist()
    seen = 0
    for switch in range(network.switch_count):
        row = int(M[memory.node_base[hosts + switch] + at.N_ROUTE])
        for column, edge in enumerate(edges):
            group = int(routing.group_of[switch, edge])
            wanted = [] if group < 0 else [int(memory.port_base[link]) for link in routing.groups[group]]
            word = int(M[row + column])
            count, value = word >> 40, word & (1 << 40) - 1
            if count > 1:
                first = int(M[at.H_GROUPS]) + value
                found = M[first : first + count].tolist()
            else:
                found = [value] * count
            assert found == wanted
            seen += count
    assert seen == sum(
        len(routing.groups[group]) for group in routing.group_of[:, edges].ravel().tolist() if group >= 0
    )


def test_a_node_may_see_what_each_of_its_links_can_bring() -> None:
    """A fast link at one host does not count for the slow ones of a large switch."""
    network = star(50, LINK)
    slow = link_room(network, 1500, 2 * 10**6)
    each = slow.per_window // network.link_count
    assert slow.arrivals == 50 * each
    rates = network.link_rate.copy()
    rates[:2] *= 10
    fast = link_room(replace(network, link_rate=rates), 1500, 2 * 10**6)
    assert 50 * each < fast.arrivals < 60 * each + 20
