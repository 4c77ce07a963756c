"""Topologies: shapes that their definitions demand, files, overrides, and every fault reported at once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import networkx
import numpy as np
import pytest

from gradwire.scenarios.errors import ScenarioError
from gradwire.scenarios.schema.network.network import Link, LinkOverride
from gradwire.scenarios.schema.scenario import Scenario
from gradwire.topology import (
    Cable,
    LinkSpec,
    Override,
    assemble,
    build_network,
    dragonfly,
    dumbbell,
    fat_tree,
    from_networkx,
    leaf_spine,
    read_graph,
    star,
    torus,
)

GBPS, US = 10**9, 10**6
LINK = LinkSpec(100 * GBPS, US)


def mistakes(error):
    return [str(mistake) for mistake in error.value.mistakes]


def cables(network):
    """All directed links; networkx keeps no order of edges."""
    fields = (network.link_src, network.link_dst, network.link_rate, network.link_latency, network.link_loss)
    return sorted(zip(*(field.tolist() for field in fields), strict=True))


def degrees(network):
    return np.bincount(network.link_src, minlength=network.node_count)


ALL = [
    star(5, LINK),
    dumbbell(3, 2, LINK),
    leaf_spine(3, 4, 2, LINK),
    fat_tree(4, LINK),
    fat_tree(6, LINK),
    fat_tree(8, LINK, oversubscription=3),
    fat_tree(8, LINK, oversubscription=0.6),
    fat_tree(6, LINK, tiers=2, oversubscription=2),
    dragonfly(2, LINK),
    dragonfly(3, LINK, a=2, h=2, groups=3),
    torus((4, 3), LINK),
    torus((2, 3, 2), LINK, hosts_per_switch=3),
]


@pytest.mark.parametrize("network", ALL, ids=lambda network: f"{network.title}{network.host_count}")
def test_every_network_is_well_formed(network):
    assert len(set(network.names)) == network.node_count
    assert network.names[: network.host_count] == tuple(f"h{n}" for n in range(network.host_count))
    assert (network.link_src[0::2] == network.link_dst[1::2]).all()
    assert (network.link_dst[0::2] == network.link_src[1::2]).all()
    assert (degrees(network)[: network.host_count] == 1).all()
    assert sorted(network.order) == list(range(network.node_count))
    graph = network.to_networkx()
    assert networkx.is_connected(graph)
    for host in range(network.host_count):
        edge = network.edge_of[host]
        assert graph.has_edge(network.names[host], network.names[edge])
        assert network.link_name(network.up_link[host]) == f"h{host}->{network.names[edge]}"
        assert network.link_name(network.up_link[host] ^ 1) == f"{network.names[edge]}->h{host}"


@pytest.mark.parametrize("network", ALL, ids=lambda network: f"{network.title}{network.host_count}")
def test_host_order_groups_hosts_by_switch(network):
    edges = network.edge_of[network.host_order]
    assert (np.diff(edges) != 0).sum() == len(set(edges.tolist())) - 1


@pytest.mark.parametrize("k", [2, 4, 6, 8])
def test_fat_tree_has_the_textbook_shape(k):
    network = fat_tree(k, LINK)
    assert network.host_count == k**3 // 4
    assert network.switch_count == k * k + (k // 2) ** 2
    assert (degrees(network)[network.host_count :] == k).all(), "every switch uses all its ports"
    assert network.link_count == 2 * 3 * network.host_count, "as many cables in every tier"


def test_fat_tree_node_order_spreads_core_switches_evenly():
    network = fat_tree(4, LINK)
    quarters = network.order.reshape(4, -1)
    cores = [sum(network.names[node].startswith("core") for node in quarter) for quarter in quarters]
    assert cores == [1, 1, 1, 1]


def test_oversubscription_is_the_ratio_of_host_rate_to_uplink_rate_of_a_leaf():
    network = leaf_spine(4, 6, 2, LINK, oversubscription=3.0)
    up = [n for n in range(network.link_count) if network.link_name(n).startswith("leaf0->spine")]
    assert sum(network.link_rate[up]) * 3 == 6 * LINK.rate
    explicit = leaf_spine(4, 6, 2, LINK, uplink_rate=40 * GBPS)
    assert set(explicit.link_rate.tolist()) == {100 * GBPS, 40 * GBPS}
    assert set(leaf_spine(4, 6, 2, LINK).link_rate.tolist()) == {LINK.rate}


def test_overrides_change_one_cable_in_both_directions():
    network = leaf_spine(2, 2, 2, LINK, overrides=[Override(("spine1", "leaf0"), loss=0.25, latency=7)])
    changed = {network.link_name(n) for n in np.flatnonzero(network.link_loss)}
    assert changed == {"leaf0->spine1", "spine1->leaf0"}
    assert {network.link_name(n) for n in np.flatnonzero(network.link_latency == 7)} == changed
    assert (network.link_rate == LINK.rate).all()


def test_build_network_accepts_scenario_tables_and_graphs():
    tables = {"name": "x", "job": [{"name": "j", "trace": "t", "workers": 2, "exchange": {"kind": "ring"}}]}
    kinds = [
        ({"kind": "star", "hosts": 3}, 3),
        ({"kind": "leaf_spine", "leaves": 2, "hosts_per_leaf": 3, "spines": 1, "oversubscription": 1.5}, 6),
        ({"kind": "fat_tree", "k": 4}, 16),
    ]
    for topology, hosts in kinds:
        scenario = Scenario.model_validate({**tables, "topology": topology})
        assert build_network(scenario.topology, scenario.link, scenario.link_override).host_count == hosts
    override = LinkOverride(between=("h0", "s0"), rate="10Gbps")
    graph = networkx.star_graph(3)
    network = build_network(networkx.relabel_nodes(graph, {0: "s0", 1: "h0"}), Link(), [override])
    assert network.host_count == 3
    assert network.link_rate[network.up_link[0]] == 10 * GBPS


# --- graphs ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("network", ALL, ids=lambda network: f"{network.title}{network.host_count}")
def test_network_round_trips_through_networkx(network):
    back = from_networkx(network.to_networkx(), LinkSpec(1, 1))
    assert back.names == network.names
    assert cables(back) == cables(network)
    assert (back.edge_of == network.edge_of).all()


def test_parallel_cables_round_trip_through_networkx():
    cables = [Cable(0, 1, 10, 1), Cable(1, 2, 10, 1), Cable(1, 2, 20, 1), Cable(3, 2, 10, 1)]
    network = assemble(["a"], ["s", "t", "u"], cables, title="parallel")
    back = from_networkx(network.to_networkx(), LinkSpec(1, 1))
    assert sorted(back.link_rate.tolist()) == sorted(network.link_rate.tolist())


@pytest.mark.parametrize("suffix", ["graphml", "gml", "txt"])
def test_graph_files_set_link_attributes_with_units(tmp_path, suffix):
    graph = networkx.Graph()
    graph.add_node("tor", kind="switch")
    graph.add_node("a", kind="host")
    graph.add_node("b", kind="host")
    graph.add_edge("a", "tor", rate="25Gbps", latency="3us", loss=0.5)
    graph.add_edge("b", "tor")
    path = tmp_path / f"net.{suffix}"
    write = {"graphml": networkx.write_graphml, "gml": networkx.write_gml, "txt": networkx.write_edgelist}
    write[suffix](graph, path)
    network = read_graph(path, LINK)
    a, b = (network.up_link[network.index[name]] for name in "ab")
    assert network.names[network.host_count :] == ("tor",)
    assert (network.link_rate[a], network.link_latency[a], network.link_loss[a]) == (25 * GBPS, 3 * US, 0.5)
    assert (network.link_rate[b], network.link_latency[b], network.link_loss[b]) == (LINK.rate, US, 0.0)


def test_node_of_degree_one_can_be_declared_a_switch():
    graph = networkx.path_graph(3)
    assert from_networkx(graph, LINK).host_count == 2
    graph.nodes[2]["kind"] = "switch"
    assert from_networkx(graph, LINK).host_count == 1


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("missing.gml", None, "no such file"),
        ("broken.graphml", "<graphml><node", "GraphML"),
        ("broken.gml", "graph [ node [", "GML"),
        ("empty.txt", "# nothing\n", "lists no edge"),
        ("bad.txt", "a b {'rate': }\n", "edge list"),
    ],
)
def test_unreadable_graph_file_gives_an_error_with_its_name(tmp_path, name, text, says):
    path = tmp_path / name
    if text is not None:
        path.write_text(text)
    with pytest.raises(ScenarioError, match=says) as error:
        read_graph(path, LINK)
    assert name in str(error.value)


def test_link_attribute_errors_name_the_edge_and_the_value(tmp_path):
    path = tmp_path / "net.txt"
    path.write_text(
        "a s {'rate': '25GB', 'latency': 'soon'}\nb s {'loss': 'often', 'rate': '-1Gbps'}\nc s {'loss': 1.0}"
    )
    with pytest.raises(ScenarioError) as error:
        read_graph(path, LINK)
    text = "\n".join(mistakes(error))
    assert len(error.value.mistakes) == 5
    for piece in ("net.txt.a-s: rate", '"25GB"', "latency", '"soon"', "net.txt.b-s", '"often"', "not positive", "c-s"):
        assert piece in text


# --- faults ---------------------------------------------------------------------------------------


def test_all_graph_errors_are_reported_together():
    graph = networkx.Graph()
    for name in ("lonely", "a", "b"):
        graph.add_node(name, kind="host")
    graph.add_node("odd", kind="router")
    graph.add_edges_from([("t", "s"), ("a", "b"), ("s", "s"), ("x", "y"), ("odd", "s")])
    with pytest.raises(ScenarioError) as error:
        from_networkx(graph, LINK)
    text = "\n".join(mistakes(error))
    for piece in (
        "topology.lonely: the host cannot be reached",
        "topology.a-b: the link joins two hosts",
        "topology.s-s: the link ends where it starts",
        'unknown kind of node (got "router")',
        "not connected",
    ):
        assert piece in text


def test_disconnected_network_error_lists_unreachable_nodes():
    graph = networkx.disjoint_union(networkx.star_graph(2), networkx.star_graph(2))
    with pytest.raises(ScenarioError, match="cannot reach 4, 5, 3"):
        from_networkx(graph, LINK)


def test_directed_graphs_are_refused():
    with pytest.raises(ScenarioError, match="directed"):
        from_networkx(networkx.DiGraph([("a", "b")]), LINK)


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (lambda: star(0, LINK), "topology.hosts: is too small"),
        (lambda: star(2, LinkSpec(0, US)), "link.rate: is not positive"),
        (lambda: star(2, LinkSpec(GBPS, -1)), "link.latency: is negative"),
        (lambda: star(2, LinkSpec(GBPS, US, 1.0)), "link.loss"),
        (lambda: fat_tree(5, LINK), "topology.k"),
        (lambda: leaf_spine(2, 0, 0, LINK), "topology.spines"),
        (lambda: leaf_spine(2, 2, 2, LINK, uplink_rate=1, oversubscription=2.0), "both given"),
        (lambda: leaf_spine(2, 2, 2, LINK, oversubscription=0.0), "oversubscription"),
        (lambda: leaf_spine(2, 2, 2, LINK, uplink_rate=0), "topology.leaf0-spine0: rate is not positive"),
        (lambda: star(2, LINK, [Override(("h0", "h9"), rate=1)]), 'unknown node (got "h9")'),
        (lambda: star(2, LINK, [Override(("h0", "h1"), rate=1)]), "unknown link"),
        (lambda: star(2, LINK, [Override(("h0", "s0"), rate=-5)]), "h0-s0: rate is not positive"),
        (lambda: assemble(["a", "a"], ["s"], [Cable(0, 2, 1, 1), Cable(1, 2, 1, 1)], title="x"), "same name"),
        (lambda: assemble([], ["s"], [], title="x"), "no host"),
    ],
)
def test_invalid_topology_parameters_are_rejected(build, says):
    with pytest.raises(ScenarioError) as error:
        build()
    assert says in str(error.value)


def test_invalid_default_link_gives_one_mistake_for_all_cables():
    with pytest.raises(ScenarioError) as error:
        fat_tree(8, LinkSpec(-1, US))
    assert len(error.value.mistakes) == 1


def test_importing_topology_loads_no_heavy_modules():
    heavy = "{'torch', 'numba', 'pyarrow', 'networkx'}"
    code = f"import sys, gradwire.topology; print(*({heavy} & set(sys.modules)))"
    root = Path(__file__).parents[3]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout == "\n"
