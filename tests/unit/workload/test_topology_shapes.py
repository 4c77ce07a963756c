"""Shapes that textbooks and papers give: counts, diameters, bisections and numbers of shortest paths."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise, product
from math import comb, factorial, prod

import networkx
import numpy as np
import pytest

from gradwire.scenarios.errors import ScenarioError
from gradwire.topology import LinkSpec, Network, Override, dragonfly, dumbbell, fat_tree, leaf_spine, torus
from gradwire.topology.routing import build_routing

GBPS, US = 10**9, 10**6
LINK = LinkSpec(100 * GBPS, US)
FAST = 400 * GBPS


def degrees(network: Network) -> np.ndarray:
    """Ports of every switch."""
    return np.bincount(network.link_src, minlength=network.node_count)[network.host_count :]


def between_switches(network: Network) -> networkx.MultiGraph:
    graph = networkx.MultiGraph(network.to_networkx())
    graph.remove_nodes_from(network.names[: network.host_count])
    return graph


def rates(network: Network, kind: str, other: str) -> set[tuple[int, int]]:
    """Rate and latency of the links between nodes whose names begin so."""
    names = [network.link_name(link).split("->") for link in range(network.link_count)]
    found = [n for n, (a, b) in enumerate(names) if a.startswith(kind) and b.startswith(other)]
    assert found
    return {(int(network.link_rate[n]), int(network.link_latency[n])) for n in found}


def bisection(network: Network) -> int:
    """Bits per second from the first half of the hosts to the second, as a maximum flow."""
    graph = networkx.DiGraph()
    for a, b, rate in zip(network.link_src, network.link_dst, network.link_rate, strict=True):
        old = graph.get_edge_data(int(a), int(b), {"capacity": 0})["capacity"]
        graph.add_edge(int(a), int(b), capacity=old + int(rate))
    half = network.host_count // 2
    for host in range(network.host_count):
        graph.add_edge("source" if host < half else host, host if host < half else "sink")
    return int(networkx.maximum_flow_value(graph, "source", "sink"))


def count_paths(network: Network, src: int, dst: int) -> int:
    return sum(1 for _ in build_routing(network).paths(src, dst))


# --- dumbbell ---------------------------------------------------------------------------------------------------------


def test_dumbbell_has_one_path_across_the_bottleneck():
    network = dumbbell(3, 2, LINK, bottleneck_rate=10 * GBPS, bottleneck_latency=5 * US)
    assert network.names == ("h0", "h1", "h2", "h3", "h4", "left", "right")
    assert [network.names[node] for node in network.edge_of] == ["left"] * 3 + ["right"] * 2
    assert rates(network, "left", "right") == rates(network, "right", "left") == {(10 * GBPS, 5 * US)}
    assert rates(network, "h", "left") == {(100 * GBPS, US)}
    assert count_paths(network, 0, 4) == 1 and build_routing(network).hops(0, 4) == 3
    assert bisection(dumbbell(4, 4, LINK, bottleneck_rate=10 * GBPS)) == 10 * GBPS


# --- fat-trees --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("k", "ratio", "up"), [(4, 1, 2), (4, 3, 1), (8, 1, 4), (8, 3, 2), (8, 1.667, 3), (8, 7, 1)])
def test_three_tier_fat_tree_counts_match_the_oversubscription(k, ratio, up):
    network = fat_tree(k, LINK, oversubscription=ratio)
    assert network.host_count == k * (k // 2) * (k - up)
    assert (degrees(network) == k).all()
    assert Counter(name.rstrip("0123456789") for name in network.names[network.host_count :]) == {
        "edge": k * k // 2, "agg": k * up, "core": up * k // 2,
    }  # fmt: skip
    last = network.host_count - 1
    graph = between_switches(network)
    for j in range(k * up):
        cores = {int(name[4:]) for name in graph[f"agg{j}"] if name.startswith("core")}
        assert cores == set(range(j % up * k // 2, (j % up + 1) * k // 2)), "each in turn has a range of its own"
    assert networkx.diameter(graph) == 4
    assert count_paths(network, 0, last) == up * k // 2, "one per core"
    assert count_paths(network, 0, k - up) == up, "within a pod, one per aggregation switch"
    assert build_routing(network).hops(0, last) == 6


@pytest.mark.parametrize(("k", "ratio", "up"), [(4, 1, 2), (8, 1, 4), (8, 3, 2), (6, 5, 1)])
def test_two_tier_fat_tree_counts_match_the_oversubscription(k, ratio, up):
    network = fat_tree(k, LINK, tiers=2, oversubscription=ratio)
    assert network.host_count == k * (k - up) and network.switch_count == k + up
    assert (degrees(network) == k).all()
    assert networkx.diameter(between_switches(network)) == 2
    assert count_paths(network, 0, network.host_count - 1) == up


@pytest.mark.parametrize("tiers", [2, 3])
@pytest.mark.parametrize(("k", "ratio"), [(4, 1), (4, 3), (8, 1), (8, 3)])
def test_fat_tree_bisection_is_host_bandwidth_over_oversubscription(k, ratio, tiers):
    network = fat_tree(k, LINK, tiers=tiers, oversubscription=ratio)
    assert bisection(network) * 2 * ratio == network.host_count * LINK.rate


def test_each_tier_has_its_own_rate_and_latency():
    tree = fat_tree(4, LINK, uplink_rate=2 * FAST, uplink_latency=7, core_rate=FAST, core_latency=9)
    assert rates(tree, "h", "edge") == {(LINK.rate, US)}
    assert rates(tree, "edge", "agg") == rates(tree, "agg", "edge") == {(2 * FAST, 7)}
    assert rates(tree, "agg", "core") == rates(tree, "core", "agg") == {(FAST, 9)}
    flat = fat_tree(4, LINK, tiers=2, uplink_rate=FAST)
    assert rates(flat, "edge", "core") == {(FAST, US)}
    leaves = leaf_spine(2, 2, 2, LINK, uplink_latency=3)
    assert rates(leaves, "leaf", "spine") == {(LINK.rate, 3)}
    changed = fat_tree(4, LINK, [Override(("agg0", "core0"), rate=GBPS)], core_rate=FAST)
    assert rates(changed, "agg", "core") == {(FAST, US), (GBPS, US)}


# --- dragonfly --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("p", "a", "h"), [(1, None, None), (2, None, None), (1, 3, 2), (2, 4, 1), (3, 1, 4)])
def test_full_size_dragonfly_joins_each_pair_of_groups_by_one_cable(p, a, h):
    """The paper's counts hold: a h + 1 groups, and a (a h + 1) switches of p + a - 1 + h ports."""
    network = dragonfly(p, LINK, a=a, h=h)
    a, h = a or 2 * p, h or p
    groups = a * h + 1
    assert network.switch_count == a * groups and network.host_count == p * a * groups
    assert (degrees(network) == p + a - 1 + h).all()
    graph = between_switches(network)
    group = {name: int(name[1:]) // a for name in graph}
    pairs = Counter(frozenset((group[x], group[y])) for x, y in graph.edges())
    inside = {frozenset((g,)): a * (a - 1) // 2 for g in range(groups)} if a > 1 else {}
    assert pairs == inside | {frozenset((x, y)): 1 for x in range(groups) for y in range(x)}


def test_balanced_dragonfly_matches_figure_5_of_the_paper():
    """Figure 5 of the paper [recalled]: p = h = 2, a = 4 makes 9 groups, 36 switches, 72 hosts, and any two hosts are
    at most local - global - local apart."""
    network = dragonfly(2, LINK)
    assert (network.host_count, network.switch_count) == (72, 36)
    assert networkx.diameter(between_switches(network)) == 3
    routing = build_routing(network)
    assert max(routing.hops(0, host) for host in range(72)) == 5


@pytest.mark.parametrize("groups", [2, 3, 5, 9])
def test_dragonfly_routes_cross_at_most_one_global_cable(groups):
    network = dragonfly(2, LINK, groups=groups)
    routing = build_routing(network)
    group = np.arange(network.switch_count) // 4
    for src, dst in product(range(0, network.host_count, 2), repeat=2):
        if src == dst:
            continue
        crossed = set()
        for path in routing.paths(src, dst):
            ends = [group[network.link_dst[link] - network.host_count] for link in path[:-1]]
            crossed.add(sum(x != y for x, y in pairwise(ends)))
            assert len(path) <= 5
        assert crossed == {int(group[src // 2] != group[dst // 2])}


@pytest.mark.parametrize(("groups", "each"), [(2, 8), (3, 4), (5, 2), (6, 1), (9, 1)])
def test_dragonfly_spreads_global_cables_evenly_over_group_pairs(groups, each):
    graph = between_switches(dragonfly(2, LINK, groups=groups))
    pairs = Counter(frozenset((int(x[1:]) // 4, int(y[1:]) // 4)) for x, y in graph.edges())
    assert {count for pair, count in pairs.items() if len(pair) == 2} == {each}
    assert len([pair for pair in pairs if len(pair) == 2]) == groups * (groups - 1) // 2
    assert max(dict(graph.degree()).values()) <= 3 + 2


def test_dragonfly_local_and_global_cables_have_separate_rates():
    network = dragonfly(1, LINK, local_rate=FAST, local_latency=3, global_rate=GBPS, global_latency=4)
    local = np.abs(network.link_src - network.link_dst) == 1
    switches = (network.link_src >= network.host_count) & (network.link_dst >= network.host_count)
    same = switches & local & ((network.link_src // 2) == (network.link_dst // 2))
    assert network.host_count % 2 == 0
    assert set(network.link_rate[same]) == {FAST} and set(network.link_latency[same]) == {3}
    assert set(network.link_rate[switches & ~same]) == {GBPS}
    assert set(network.link_latency[switches & ~same]) == {4}
    assert set(network.link_rate[~switches]) == {LINK.rate}


# --- torus ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dims", [(2, 2), (3, 5), (4, 4), (2, 7), (3, 3, 3), (2, 3, 4), (4, 4, 4), (5,), (2, 2, 2, 2)])
def test_torus_is_the_cartesian_product_of_rings(dims):
    network = torus(dims, LINK)
    rings = [networkx.cycle_graph(size) if size > 2 else networkx.path_graph(2) for size in dims]
    wanted = networkx.Graph(rings[0])
    for ring in rings[1:]:
        wanted = networkx.cartesian_product(wanted, ring)
    graph = between_switches(network)
    assert network.host_count == network.switch_count == prod(dims)
    assert graph.number_of_edges() == wanted.number_of_edges()
    assert networkx.is_isomorphic(networkx.Graph(graph), wanted)
    assert networkx.diameter(graph) == sum(size // 2 for size in dims)


@pytest.mark.parametrize("dims", [(4, 4), (5, 3), (2, 6), (3, 3, 4), (4, 4, 4)])
def test_torus_shortest_path_counts_are_multinomial(dims):
    """(d1 + d2 + ...)! / (d1! d2! ...), doubled for every dimension in which both directions are as short."""
    network = torus(dims, LINK)
    routing = build_routing(network)
    for dst, place in enumerate(product(*map(range, dims))):
        if dst == 0:
            continue
        steps = [min(x, size - x) for x, size in zip(place, dims, strict=True)]
        both = sum(2 * x == size > 2 for x, size in zip(place, dims, strict=True))
        wanted = 2**both * factorial(sum(steps)) // prod(map(factorial, steps))
        assert routing.hops(0, dst) == 2 + sum(steps)
        assert sum(1 for _ in routing.paths(0, dst)) == wanted
    assert comb(4, 2) * 4 == count_paths(torus((4, 4), LINK), 0, 10), "the two corners of a 4 x 4 torus"


@pytest.mark.parametrize(("dims", "cut"), [((4, 4), 8), ((6, 3), 6), ((4, 4, 4), 32)])
def test_torus_bisection_is_two_cables_per_line(dims, cut):
    """The cut halves the first dimension, and the hosts' own cables impose no limit."""
    network = torus(dims, LINK._replace(rate=100 * FAST), switch_rate=GBPS)
    assert bisection(network) == cut * GBPS


def test_torus_hosts_are_numbered_switch_by_switch():
    network = torus((2, 3), LINK, hosts_per_switch=4, switch_rate=FAST, switch_latency=8)
    assert [network.names[n] for n in network.edge_of[[0, 3, 4, 23]]] == ["s0_0", "s0_0", "s0_1", "s1_2"]
    assert rates(network, "s", "s") == {(FAST, 8)}
    assert rates(network, "h", "s") == {(LINK.rate, US)}


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (lambda: dumbbell(0, 1, LINK), "topology.left: is too small"),
        (lambda: dumbbell(1, 1, LINK, bottleneck_rate=0), "left-right: rate is not positive"),
        (lambda: fat_tree(8, LINK, oversubscription=2.0), "one of 0.1429, 0.3333, 0.6, 1, 1.667, 3, 7"),
        (lambda: fat_tree(8, LINK, oversubscription=-1.0), "topology.oversubscription"),
        (lambda: fat_tree(8, LINK, tiers=4), "topology.tiers"),
        (lambda: fat_tree(8, LINK, tiers=2, core_rate=GBPS), "need aggregation switches"),
        (lambda: dragonfly(0, LINK), "topology.p: is too small"),
        (lambda: dragonfly(2, LINK, h=0), "topology.h: is too small"),
        (lambda: dragonfly(2, LINK, groups=10), "topology.groups"),
        (lambda: dragonfly(2, LINK, groups=1), "2 to 9"),
        (lambda: torus((4, 1), LINK), "topology.dims"),
        (lambda: torus((), LINK), "topology.dims"),
        (lambda: torus((4, 4), LINK, hosts_per_switch=0), "topology.hosts_per_switch: is too small"),
    ],
)
def test_invalid_shape_parameters_are_rejected(build, says):
    with pytest.raises(ScenarioError) as error:
        build()
    assert says in str(error.value)
