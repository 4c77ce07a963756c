"""Routing against networkx, and the compactness of its tables."""

from __future__ import annotations

import random
from itertools import pairwise

import networkx
import numpy as np
import pytest

from gradwire.scenarios.errors import ScenarioError
from gradwire.topology import (
    Cable,
    LinkSpec,
    Network,
    assemble,
    dragonfly,
    fat_tree,
    from_networkx,
    leaf_spine,
    star,
    torus,
)
from gradwire.topology.routing import build_routing, routes

LINK = LinkSpec(10**11, 10**6)


def random_network(seed: int, costs: int = 1) -> Network:
    """A connected random graph of switches, some of them with hosts; cables cost 1 to `costs`."""
    rng = random.Random(seed)
    switches = rng.randint(1, 14)
    graph = networkx.gnm_random_graph(switches, rng.randint(0, 3 * switches), seed=seed)
    parts = [min(part) for part in networkx.connected_components(graph)]
    graph.add_edges_from(pairwise(parts))
    networkx.set_node_attributes(graph, "switch", "kind")
    networkx.set_edge_attributes(graph, {edge: rng.randint(1, costs) for edge in graph.edges}, "cost")
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
    for network in (
        star(4, LINK),
        leaf_spine(3, 2, 3, LINK),
        fat_tree(4, LINK),
        torus((4, 3), LINK),
        torus((2, 3, 2), LINK, hosts_per_switch=2),
    )
]
WITH_COSTS = [pytest.param(random_network(seed, costs=5), id=f"costs{seed}") for seed in range(25)]
WITH_COSTS += [pytest.param(random_network(99, costs=64), id="costs99")]
WITH_COSTS += [pytest.param(dragonfly(1, LINK), id="dragonfly1"), pytest.param(dragonfly(2, LINK), id="dragonfly2")]


@pytest.mark.parametrize("network", NETWORKS + WITH_COSTS)
def test_paths_are_the_shortest_paths_of_networkx(network):
    routing, graph = build_routing(network), network.to_networkx()
    weight = None if network.link_cost is None else "cost"
    for src in range(min(24, network.host_count)):
        for dst in range(network.host_count):
            if src == dst:
                continue
            found = [as_nodes(network, path) for path in routing.paths(src, dst)]
            ends = network.names[src], network.names[dst]
            wanted = networkx.all_shortest_paths(graph, *ends, weight=weight)
            assert sorted(found) == sorted(map(tuple, wanted))
            assert max(len(path) - 1 for path in found) == routing.hops(src, dst)


def groups_of(routing) -> list[list[int]]:
    first, links = routing.group_first.tolist(), routing.group_links.tolist()
    return [links[a:b] for a, b in pairwise(first)]


@pytest.mark.parametrize("network", NETWORKS + WITH_COSTS)
def test_routing_tables_are_consistent(network):
    routing, first = build_routing(network), network.host_count
    edges = set(routing.edge_of.tolist())
    assert routing.group_first[0] == 0 and routing.group_first[-1] == len(routing.group_links)
    assert sum(map(len, groups_of(routing))) == len(routing.group_links)
    everyone = np.arange(network.switch_count)
    assert (routing.distance(everyone[:, None], np.array(sorted(edges))) >= 0).all()
    groups = {edge: routing.groups_towards(edge).tolist() for edge in edges}
    used = {number for column in groups.values() for number in column}
    for number, group in enumerate(groups_of(routing)):
        owners = {int(network.link_src[link]) - first for link in group}
        assert len(owners) == 1 and group == sorted(set(group))
        owner = owners.pop()
        assert any(column[owner] == number for column in groups.values()), "no group is unused"
    assert used - {-1} == set(range(len(groups_of(routing))))
    for switch in range(network.switch_count):
        with_group = {edge for edge, column in groups.items() if column[switch] >= 0}
        assert with_group == edges - {switch}
        assert [routing.group(switch, edge) for edge in edges] == [groups[edge][switch] for edge in edges]
    for host in range(network.host_count):
        assert network.link_src[routing.up_link[host]] == host
        assert network.link_dst[routing.up_link[host]] - first == routing.edge_of[host]
        assert network.link_src[routing.down_link[host]] - first == routing.edge_of[host]
        assert network.link_dst[routing.down_link[host]] == host


@pytest.mark.parametrize("k", [4, 8])
def test_fat_tree_routing_group_count_matches_formula(k):
    """An edge switch has one group, all uplinks. An aggregation switch has all uplinks, or one of k/2 edges. A core
    switch has one of k pods."""
    routing = build_routing(fat_tree(k, LINK))
    edges = aggs = k * k // 2
    assert len(groups_of(routing)) == edges + aggs * (k // 2 + 1) + (k // 2) ** 2 * k


def test_parallel_cables_are_distinct_paths():
    cables = [Cable(0, 2, 1, 1), Cable(1, 3, 1, 1), Cable(2, 3, 1, 1), Cable(2, 3, 1, 1)]
    routing = build_routing(assemble(["a", "b"], ["s", "t"], cables, title="parallel"))
    assert [path[1:-1] for path in routing.paths(0, 1)] == [(4,), (6,)]


@pytest.mark.parametrize("ports", [8, 9, 16, 17, 63, 64, 65, 130])
def test_routing_distinguishes_link_sets_of_switches_with_many_ports(ports):
    """Link sets of any width are distinct and numbered by the first switch that uses them. A hub has `ports` spokes,
    which form a ring, and a second hub connects to every other spoke."""
    spokes = range(1, ports + 1)
    graph = networkx.Graph([(0, spoke) for spoke in spokes])
    graph.add_edges_from([(-1, spoke) for spoke in spokes[::2]])
    networkx.add_cycle(graph, spokes)
    graph.add_edge(-2, -1)
    graph.add_edges_from([(-2 - spoke, spoke) for spoke in reversed(spokes)])  # the same sets again, backwards
    network = from_networkx(graph, LINK, hosts_per_switch=1)
    routing, first = build_routing(network), network.host_count
    hub = network.index["0"] - first
    lengths = dict(networkx.all_pairs_shortest_path_length(graph))
    used = []
    for edge in range(network.switch_count):
        if edge == hub:
            assert routing.group(hub, hub) == -1
            continue
        there = lengths[int(network.names[first + edge])]
        wanted = {spoke for spoke in graph[0] if there[spoke] == there[0] - 1}
        group = routing.group(hub, edge)
        links = groups_of(routing)[group]
        assert {int(network.names[network.link_dst[link]]) for link in links} == wanted
        assert routing.distance(hub, edge) == there[0]
        used.append(group)
    new = list(dict.fromkeys(used))
    assert new == list(range(new[0], new[0] + len(new))), "in order of first use"
    assert len(new) == ports + 1


def test_routing_handles_distances_that_overflow_16_bits():
    """The far end of 1025 switches in a row is 65,535 away, which 16 bits read as -1. Every cable costs 64 except the
    last one."""
    cables = [Cable(0, 2, 1, 1), Cable(1, 1026, 1, 1)]
    cables += [Cable(node, node + 1, 1, 1, cost=64) for node in range(2, 1025)]
    cables.append(Cable(1025, 1026, 1, 1, cost=63))
    network = assemble(["a", "b"], [f"s{n}" for n in range(1025)], cables, title="row")
    routing = build_routing(network)
    assert routing.hops(0, 1) == 1026
    assert routing.distance(300, 0) == 300
    assert (np.diff(routing.group_first) == 1).all()


def test_equal_cost_paths_may_differ_in_hop_count():
    graph = networkx.Graph()
    graph.add_edges_from([("a", "s"), ("b", "t"), ("s", "m"), ("m", "t"), ("s", "t")])
    networkx.set_node_attributes(graph, {"s": "switch", "t": "switch", "m": "switch"}, "kind")
    graph.edges["s", "t"]["cost"] = 2
    network = from_networkx(graph, LINK)
    routing = build_routing(network)
    assert sorted(len(path) for path in routing.paths(0, 1)) == [3, 4]
    assert routing.hops(0, 1) == 4, "the longest"


def test_oversized_routing_tables_are_refused(monkeypatch):
    monkeypatch.setattr(routes, "LARGEST_TABLE", 4 * 4 * 16 - 1)
    with pytest.raises(ScenarioError, match=r"16 switches, 16 of them with hosts, .* 256 entries"):
        build_routing(torus((4, 4), LINK))


def test_routing_error_names_unreachable_switches():
    src = np.array([0, 2, 1, 3], dtype=np.int32)
    ones = np.ones(4, dtype=np.int64)
    order = np.arange(4, dtype=np.int32)
    network = Network(("a", "b", "s", "t"), 2, src, src[[1, 0, 3, 2]], ones, ones, np.zeros(4), order)
    with pytest.raises(ScenarioError, match="s cannot be reached from t"):
        build_routing(network)


def test_path_from_a_host_to_itself_is_refused():
    routing = build_routing(star(2, LINK))
    assert routing.hops(1, 1) == 0
    with pytest.raises(ValueError, match="the same host, h1"):
        next(routing.paths(1, 1))
