"""Routing against networkx, and the compactness of its tables."""

from __future__ import annotations

import random
from itertools import pairwise

import networkx
import numpy as np
import pytest

from scenarios.errors import ScenarioError
from sim.routing import build_routing
from sim.topology import Cable, LinkSpec, Network, assemble, fat_tree, from_networkx, leaf_spine, star

LINK = LinkSpec(10**11, 10**6)


def random_network(seed: int) -> Network:
    """A connected random graph of switches, some of them with hosts."""
    rng = random.Random(seed)
    switches = rng.randint(1, 14)
    graph = networkx.gnm_random_graph(switches, rng.randint(0, 3 * switches), seed=seed)
    parts = [min(part) for part in networkx.connected_components(graph)]
    graph.add_edges_from(pairwise(parts))
    networkx.set_node_attributes(graph, "switch", "kind")
    for host in range(rng.randint(2, 8)):
        graph.add_node(f"h{host}", kind="host")
        graph.add_edge(f"h{host}", rng.randrange(switches))
    return from_networkx(graph, LINK)


def as_nodes(network: Network, path: tuple[int, ...]) -> tuple[str, ...]:
    names = [network.names[network.link_src[link]] for link in path]
    assert [network.names[network.link_dst[link]] for link in path[:-1]] == names[1:], "links join up"
    return (*names, network.names[network.link_dst[path[-1]]])


NETWORKS = [pytest.param(random_network(seed), id=f"random{seed}") for seed in range(25)]
NETWORKS += [
    pytest.param(network, id=network.title)
    for network in (star(4, LINK), leaf_spine(3, 2, 3, LINK), fat_tree(4, LINK))
]


@pytest.mark.parametrize("network", NETWORKS)
def test_paths_are_exactly_the_shortest_ones(network):
    routing, graph = build_routing(network), network.to_networkx()
    for src in range(network.host_count):
        for dst in range(network.host_count):
            if src == dst:
                continue
            found = [as_nodes(network, path) for path in routing.paths(src, dst)]
            wanted = networkx.all_shortest_paths(graph, network.names[src], network.names[dst])
            assert sorted(found) == sorted(map(tuple, wanted))
            assert {len(path) - 1 for path in found} == {routing.hops(src, dst)}


@pytest.mark.parametrize("network", NETWORKS)
def test_tables_are_consistent(network):
    routing, first = build_routing(network), network.host_count
    edges = set(routing.edge_of.tolist())
    for number, group in enumerate(routing.groups):
        owners = {int(network.link_src[link]) - first for link in group}
        assert len(owners) == 1 and list(group) == sorted(set(group))
        assert (routing.group_of[owners.pop()] == number).any(), "no group is unused"
    for switch in range(network.switch_count):
        with_group = set(np.flatnonzero(routing.group_of[switch] >= 0).tolist())
        assert with_group == edges - {switch}
    for host in range(network.host_count):
        assert network.link_src[routing.up_link[host]] == host
        assert network.link_dst[routing.up_link[host]] - first == routing.edge_of[host]
        assert network.link_src[routing.down_link[host]] - first == routing.edge_of[host]
        assert network.link_dst[routing.down_link[host]] == host


@pytest.mark.parametrize("k", [4, 8])
def test_a_fat_tree_needs_few_groups(k):
    """Edge switch: all uplinks.  Aggregation: all uplinks, or one of k/2 edges.  Core: one of k pods."""
    routing = build_routing(fat_tree(k, LINK))
    edges = aggs = k * k // 2
    assert len(routing.groups) == edges + aggs * (k // 2 + 1) + (k // 2) ** 2 * k


def test_parallel_cables_are_different_ways():
    cables = [Cable(0, 2, 1, 1), Cable(1, 3, 1, 1), Cable(2, 3, 1, 1), Cable(2, 3, 1, 1)]
    routing = build_routing(assemble(["a", "b"], ["s", "t"], cables, title="parallel"))
    assert [path[1:-1] for path in routing.paths(0, 1)] == [(4,), (6,)]


def test_unreachable_switches_are_named():
    src = np.array([0, 2, 1, 3], dtype=np.int32)
    ones = np.ones(4, dtype=np.int64)
    order = np.arange(4, dtype=np.int32)
    network = Network(("a", "b", "s", "t"), 2, src, src[[1, 0, 3, 2]], ones, ones, np.zeros(4), order)
    with pytest.raises(ScenarioError, match="s cannot be reached from t"):
        build_routing(network)


def test_a_path_needs_two_hosts():
    routing = build_routing(star(2, LINK))
    assert routing.hops(1, 1) == 0
    with pytest.raises(ValueError, match="h1 twice"):
        next(routing.paths(1, 1))
