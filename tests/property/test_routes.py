"""Routes of all topologies, whole and with links down, against a search that treats every destination by itself.

Tables hold what is alike once (switches, destinations, groups of links); here nothing is: each switch and destination is
asked for, and must have the very links, in the very order, and the very distance.
"""

from __future__ import annotations

from itertools import pairwise

import networkx
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gradwire.topology import (
    LinkSpec,
    Network,
    dragonfly,
    dumbbell,
    fat_tree,
    from_networkx,
    leaf_spine,
    rail,
    star,
    torus,
)
from gradwire.topology.accelerators import MachineSpec, with_accelerators
from gradwire.topology.routing import build_routing

LINK = LinkSpec(10**11, 10**6)
FAR = 1 << 40


def drawn_graph(draw: st.DrawFn) -> Network:
    """Switches in a few sets, every two sets joined in full or not at all, at one cost, or else by single cables; some
    have hosts. So many switches are joined alike, or nearly."""
    sets = [
        [f"{number}.{i}" for i in range(size)]
        for number, size in enumerate(draw(st.lists(st.integers(1, 4), min_size=1, max_size=5)))
    ]
    graph = networkx.Graph()
    graph.add_nodes_from((name, {"kind": "switch"}) for names in sets for name in names)
    for number, names in enumerate(sets):
        for other in sets[number + 1 :]:
            cost = draw(st.sampled_from((0, 1, 1, 2, 3)))
            graph.add_edges_from(((a, b) for a in names for b in other if cost), cost=cost)
    switches = list(graph)
    for a, b in draw(st.lists(st.tuples(st.sampled_from(switches), st.sampled_from(switches)), max_size=4)):
        if a != b:
            graph.add_edge(a, b, cost=draw(st.integers(1, 4)))
    parts = [min(part) for part in networkx.connected_components(graph)]
    graph.add_edges_from(pairwise(parts), cost=1)
    for host, switch in enumerate(draw(st.lists(st.sampled_from(switches), min_size=1, max_size=8))):
        graph.add_node(f"h{host}", kind="host")
        graph.add_edge(f"h{host}", switch)
    return from_networkx(graph, LINK)


@st.composite
def networks(draw: st.DrawFn) -> Network:
    """Any kind of topology, small."""
    kind = draw(st.sampled_from(("graph",) * 3 + tuple(KINDS)))
    return drawn_graph(draw) if kind == "graph" else KINDS[kind](draw)


KINDS = {
    "star": lambda draw: star(draw(st.integers(2, 4)), LINK),
    "dumbbell": lambda draw: dumbbell(draw(st.integers(1, 3)), draw(st.integers(1, 3)), LINK),
    "leaf_spine": lambda draw: leaf_spine(
        draw(st.integers(1, 24)), draw(st.integers(1, 2)), draw(st.integers(1, 4)), LINK
    ),
    "fat_tree": lambda draw: fat_tree(draw(st.sampled_from((2, 4, 8))), LINK, tiers=draw(st.sampled_from((2, 3)))),
    "dragonfly": lambda draw: dragonfly(draw(st.integers(1, 2)), LINK, groups=draw(st.sampled_from((None, 2, 3)))),
    "rail": lambda draw: rail(
        8, draw(st.integers(2, 3)), draw(st.integers(1, 3)), LINK, hosts_per_group=draw(st.sampled_from((2, 4)))
    ),
    "rails apart": lambda draw: rail(4, 2, 0, LINK),
    "accelerators": lambda draw: with_accelerators(
        rail(4, 2, draw(st.integers(0, 2)), LINK), MachineSpec(2, (10**12, 10**5), (10**11, 10**5))
    ),
    "torus": lambda draw: torus(tuple(draw(st.lists(st.integers(2, 5), min_size=2, max_size=3))), LINK),
}


def reference(network: Network, down: set[int]) -> dict[int, list[tuple[int, tuple[int, ...]]]]:
    """For every edge switch: hops (of the longest of the cheapest paths, -1 without one) and next links of each switch,
    by relaxing until nothing changes."""
    hosts = network.host_count
    costs = network.link_cost if network.link_cost is not None else np.ones(network.link_count, dtype=np.int64)
    links = [
        (link, int(network.link_src[link]) - hosts, int(network.link_dst[link]) - hosts, int(costs[link]))
        for link in range(network.link_count)
        if network.link_src[link] >= hosts and network.link_dst[link] >= hosts and link not in down
    ]
    found = {}
    for edge in set((network.edge_of - hosts).tolist()):
        least = [FAR] * network.switch_count
        least[edge] = 0
        before: list[int] = []
        while least != before:
            before = list(least)
            for _, a, b, cost in links:
                least[a] = min(least[a], least[b] + cost)
        best = [(link, a, b) for link, a, b, cost in links if a != edge and least[a] == least[b] + cost < FAR]
        hops = [0 if cost < FAR else -1 for cost in least]
        before = []
        while hops != before:
            before = list(hops)
            for _, a, b in best:
                hops[a] = max(hops[a], hops[b] + 1)
        found[edge] = [
            (hops[switch], tuple(link for link, a, _ in best if a == switch)) for switch in range(network.switch_count)
        ]
    return found


def check(network: Network, down: set[int]) -> None:
    routing, wanted = build_routing(network, down), reference(network, down)
    for edge, column in wanted.items():
        hops = routing.distance(np.arange(network.switch_count), edge).tolist()
        assert [(hops[switch], routing.next_links(switch, edge)) for switch in range(network.switch_count)] == column
        assert [routing.group(s, edge) for s in range(network.switch_count)] == routing.groups_towards(edge).tolist()
    assert routing.longest_path == max(hops for column in wanted.values() for hops, _ in column)


def inner(network: Network) -> list[int]:
    hosts = network.host_count
    return np.flatnonzero((network.link_src >= hosts) & (network.link_dst >= hosts)).tolist()


@given(networks())
def test_routes_equal_a_search_per_destination(network: Network) -> None:
    check(network, set())


@given(networks(), st.data())
def test_routes_with_links_down_equal_a_search_per_destination(network: Network, data: st.DataObject) -> None:
    """Links are down in one direction, or in both."""
    links = inner(network)
    down = set(data.draw(st.lists(st.sampled_from(links), max_size=5))) if links else set()
    check(network, down | {link ^ 1 for link in down} if data.draw(st.booleans()) else down)
