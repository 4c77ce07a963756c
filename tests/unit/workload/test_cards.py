"""Hosts with several network cards as a network: the rail-optimised topology, files, overrides, shortest paths."""

from __future__ import annotations

from collections import Counter
from itertools import permutations
from types import SimpleNamespace

import networkx
import numpy as np
import pytest

from gradwire.scenarios.errors import ScenarioError
from gradwire.topology import (
    Cable,
    LinkSpec,
    Network,
    Override,
    assemble,
    from_networkx,
    leaf_spine,
    rail,
    read_graph,
    read_hpcc,
    star,
)
from gradwire.topology.placement import host_sequence, place_jobs
from gradwire.topology.routing import build_routing
from gradwire.workload.collectives.allreduce.ring import Ring

GBPS, US = 10**9, 10**6
LINK = LinkSpec(100 * GBPS, US)

RAILS = [
    rail(4, 2, 1, LINK),
    rail(3, 3, 0, LINK),
    rail(7, 3, 2, LINK, hosts_per_group=3),
    rail(4, 1, 2, LINK, hosts_per_group=2),
]


def neighbours(network: Network) -> dict[str, str]:
    """The switch of every card, by names."""
    return {network.names[card]: network.names[switch] for card, switch in enumerate(network.edge_of)}


def shape(network: Network) -> tuple[object, ...]:
    """Everything but the order of cables, which networkx does not keep."""
    fields = (network.link_src, network.link_dst, network.link_rate, network.link_latency, network.link_loss)
    cables = sorted(zip(*(field.tolist() for field in fields), strict=True))
    return network.names, network.cards.hosts, network.cards.first.tolist(), cables


# --- the generator ----------------------------------------------------------------------------------------------------


def test_superpod_of_128_hosts_has_the_cables_of_its_reference_architecture():
    """Four scalable units of 32 DGX B200 have 32 leaves, 16 spines and 1024 cables below the leaves. The reference
    also has 1024 cables above the leaves, which here are 512 of twice the rate (docs.nvidia.com, reference
    architecture with B200, table of larger component counts)."""
    network = rail(128, 8, 16, LINK, hosts_per_group=32, uplink_rate=200 * GBPS)
    assert network.host_count == 1024 and len(network.cards.hosts) == 128
    names = Counter(name.rstrip("0123456789_") for name in network.names[1024:])
    assert names == {"rail": 32, "spine": 16}
    ports = np.bincount(network.link_src, minlength=network.node_count)
    assert (ports[1024 : 1024 + 32] == 32 + 16).all() and (ports[-16:] == 32).all()
    up = network.link_rate[2048::2]
    assert len(up) == 512 and up.sum() == 1024 * LINK.rate


def test_card_i_of_every_host_of_a_group_connects_to_rail_switch_i():
    network = rail(5, 3, 2, LINK, hosts_per_group=2)
    assert network.cards.hosts == ("h0", "h1", "h2", "h3", "h4")
    expected = {f"h{host}.nic{card}": f"rail{host // 2}_{card}" for host in range(5) for card in range(3)}
    assert neighbours(network) == expected
    up = [network.link_name(link) for link in network.up_link[:4]]
    assert up == ["h0.nic0->rail0_0", "h0.nic1->rail0_1", "h0.nic2->rail0_2", "h1.nic0->rail0_0"]
    assert (network.up_link % 2 == 0).all(), "a cable's even link leads up"


def test_rail_topology_with_one_card_equals_leaf_spine():
    one, other = rail(6, 1, 2, LINK, hosts_per_group=3), leaf_spine(2, 3, 2, LINK)
    assert one.names[:6] == other.names[:6] and one.grouped is None
    for name in ("link_src", "link_dst", "link_rate", "order"):
        assert (getattr(one, name) == getattr(other, name)).all()


def test_node_order_keeps_hosts_and_switches_of_a_group_adjacent():
    network = rail(6, 2, 2, LINK, hosts_per_group=2)
    assert sorted(network.order) == list(range(network.node_count))
    names = [network.names[node] for node in network.order]
    assert names[:6] == ["h0.nic0", "h0.nic1", "h1.nic0", "h1.nic1", "rail0_0", "rail0_1"]
    assert network.host_order.tolist() == list(range(6))


@pytest.mark.parametrize("network", RAILS, ids=lambda network: f"{network.cards.hosts[-1]}x{network.host_count}")
def test_paths_between_cards_are_the_shortest_paths_of_networkx(network):
    """There is one path within a rail of a group and otherwise one path per spine."""
    routing, graph = build_routing(network), network.to_networkx()
    spines = sum(name.startswith("spine") for name in network.names)
    for src, dst in permutations(range(network.host_count), 2):
        ends = network.names[src], network.names[dst]
        if not networkx.has_path(graph, *ends):
            assert not spines and neighbours(network)[ends[0]] != neighbours(network)[ends[1]]
            continue
        found = [
            [network.names[network.link_src[path[0]]], *(network.names[network.link_dst[link]] for link in path)]
            for path in routing.paths(src, dst)
        ]
        assert sorted(found) == sorted(networkx.all_shortest_paths(graph, *ends))
        assert len(found) == (1 if network.edge_of[src] == network.edge_of[dst] else spines)


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (lambda: rail(4, 0, 1, LINK), "topology.cards: is too small"),
        (lambda: rail(0, 2, 1, LINK), "topology.hosts: is too small"),
        (lambda: rail(4, 2, 0, LINK, hosts_per_group=2), "topology.spines: are too few"),
        (lambda: rail(4, 2, -1, LINK), "topology.spines: are too few"),
        (lambda: rail(4, 2, 1, LINK, hosts_per_group=0), "topology.hosts_per_group: is too small"),
    ],
)
def test_rail_topology_refuses_bad_parameters(build, says):
    with pytest.raises(ScenarioError) as error:
        build()
    assert says in str(error.value)


# --- any network ------------------------------------------------------------------------------------------------------


def test_host_with_several_cables_gets_one_card_per_cable():
    """Host h has cables to t, s and s; its cards are on s (10), s (20) and t (30). The order of the cables does not
    matter. The expected values are worked out by hand."""
    cables = [Cable(1, 4, 30, 3), Cable(0, 3, 7, 7, 0.5), Cable(3, 1, 10, 1), Cable(1, 3, 20, 2), Cable(3, 4, 9, 9)]
    network = assemble(["a", "h", "b"], ["s", "t"], [*cables, Cable(2, 4, 8, 8)], title="x")
    assert network.names == ("a", "h.nic0", "h.nic1", "h.nic2", "b", "s", "t")
    assert network.cards.hosts == ("a", "h", "b") and network.cards.first.tolist() == [0, 1, 4, 5]
    names = [network.link_name(link) for link in range(0, network.link_count, 2)]
    assert names == ["h.nic2->t", "a->s", "s->h.nic0", "h.nic1->s", "s->t", "b->t"]
    assert network.link_rate[network.up_link].tolist() == [7, 10, 20, 30, 8]
    assert network.link_loss.tolist() == [0, 0, 0.5, 0.5] + [0] * 8
    assert [network.cards.node(1, number) for number in range(5)] == [1, 2, 3, 1, 2]
    ends = network.cards.cards(np.array([0, 1, 1, 2]), np.array([1, 0, 1, 1]), np.array([5, 5, 4, 1]))
    assert [each.tolist() for each in ends] == [[0, 3, 2, 4], [3, 0, 2, 2]]
    assert not network.cards.single and star(2, LINK).cards.single


@pytest.mark.parametrize("network", RAILS[:1] + RAILS[2:], ids=lambda network: f"{network.host_count}")
def test_multi_card_network_round_trips_through_networkx(network):
    assert shape(from_networkx(network.to_networkx(), LINK)) == shape(network)


def test_graph_file_describes_a_host_as_one_node_or_as_cards(tmp_path):
    whole = tmp_path / "whole.graphml"
    graph = networkx.Graph()
    graph.add_nodes_from([("a", {"kind": "host"}), ("b", {"kind": "host"})])
    graph.add_edges_from([("b", "r1"), ("a", "r1"), ("b", "r0"), ("a", "r0"), ("r0", "top"), ("top", "r1")])
    networkx.write_graphml(graph, whole)
    network = read_graph(whole, LINK)
    assert neighbours(network) == {"a.nic0": "r1", "a.nic1": "r0", "b.nic0": "r1", "b.nic1": "r0"}
    networkx.write_graphml(network.to_networkx(), tmp_path / "cards.graphml")
    assert shape(read_graph(tmp_path / "cards.graphml", LINK)) == shape(network)


def test_hpcc_topology_file_allows_two_cards_per_host(tmp_path):
    """HPCC's own network has 320 hosts, each on two switches."""
    rows = [f"{host} {switch} 25Gbps 1us 0" for host in range(20) for switch in (21, 20)]
    path = tmp_path / "topology.txt"
    path.write_text("\n".join(["23 3 42", "20 21 22", *rows, "20 22 100Gbps 1us 0", "21 22 100Gbps 1us 0"]))
    network = read_hpcc(path)
    assert network.cards.hosts == tuple(f"h{host}" for host in range(20))
    assert neighbours(network) == {f"h{h}.nic{card}": f"s{20 + card}" for h in range(20) for card in (0, 1)}
    path.write_text("\n".join(["22 2 40", "20 21", *rows]))
    assert build_routing(read_hpcc(path)).hops(0, 2) == 2, "two networks of their own, one per card"


def test_unreachable_cards_are_refused():
    """Two unconnected rails are two valid networks because messages never change rails. But if c is on one of them
    only, or d on the wrong ones, some messages of c or d cannot arrive."""
    rails = [("a", "r0"), ("a", "r1"), ("b", "r0"), ("b", "r1")]
    kinds = {name: {"kind": "host"} for name in "abcd"}
    for further, joined in (([], True), ([("c", "r0")], False), ([("d", "r0"), ("d", "r2"), ("r1", "r2")], True),
                            ([("d", "r0"), ("d", "s"), ("s", "r0")], False)):  # fmt: skip
        graph = networkx.Graph()
        graph.add_nodes_from((name, kinds[name]) for name in sorted({a for a, _ in rails + further} & set("abcd")))
        graph.add_edges_from(rails + further)
        if joined:
            assert build_routing(from_networkx(graph, LINK)).hops(0, 2) == 2
            continue
        with pytest.raises(ScenarioError, match=r"not connected: a\.nic0 cannot reach a\.nic1"):
            from_networkx(graph, LINK)


def test_single_card_host_on_two_unconnected_rails_is_refused():
    """The host is the first one, and the cards of all other hosts reach each other rail by rail."""
    cables = [Cable(0, 2, 1, 1), Cable(1, 2, 1, 1), Cable(1, 3, 1, 1)]
    with pytest.raises(ScenarioError, match=r"not connected: c cannot reach a\.nic1, r1"):
        assemble(["c", "a"], ["r0", "r1"], cables, title="x")


def test_card_name_equal_to_a_host_name_is_refused():
    cables = [Cable(0, 2, 1, 1), Cable(0, 3, 1, 1), Cable(1, 2, 1, 1), Cable(2, 3, 1, 1)]
    with pytest.raises(ScenarioError, match=r'several nodes have the same name \(got "a.nic1"\)'):
        assemble(["a", "a.nic1"], ["s", "t"], cables, title="x")


def test_host_without_a_link_is_refused_in_a_multi_card_network():
    with pytest.raises(ScenarioError, match=r"topology\.a: the host cannot be reached"):
        assemble(["a", "b"], ["s", "t"], [Cable(1, 2, 1, 1), Cable(1, 3, 1, 1), Cable(2, 3, 1, 1)], title="x")


@pytest.mark.parametrize(
    ("between", "changed"),
    [
        (("h1", "rail0_1"), {"h1.nic1->rail0_1", "rail0_1->h1.nic1"}),
        (("rail0_0", "h1.nic0"), {"h1.nic0->rail0_0", "rail0_0->h1.nic0"}),
        (("spine0", "rail0_1"), {"rail0_1->spine0", "spine0->rail0_1"}),
    ],
)
def test_link_override_names_a_host_or_a_card(between, changed):
    network = rail(3, 2, 1, LINK, overrides=[Override(between, rate=GBPS)])
    assert {network.link_name(link) for link in np.flatnonzero(network.link_rate == GBPS)} == changed


@pytest.mark.parametrize(
    ("between", "says"),
    [
        (("h1.nic2", "rail0_1"), "unknown node"),
        (("h1.nic0", "rail0_1"), "unknown link"),
        (("h1", "spine0"), "unknown link"),
    ],
)
def test_link_override_without_matching_cable_is_refused(between, says):
    with pytest.raises(ScenarioError, match=says):
        rail(3, 2, 1, LINK, overrides=[Override(between, rate=GBPS)])


# --- placing jobs -----------------------------------------------------------------------------------------------------


def job(workers: int, placement: object = "packed") -> SimpleNamespace:
    return SimpleNamespace(name="j", workers=workers, servers=0, exchange=Ring(kind="ring"), placement=placement)


def test_jobs_are_placed_on_hosts_not_on_cards():
    network = rail(6, 4, 2, LINK, hosts_per_group=2)
    assert host_sequence(network, "packed") == [0, 1, 2, 3, 4, 5]
    assert host_sequence(network, "spread") == [0, 2, 4, 1, 3, 5], "dealt over the groups"
    assert sorted(host_sequence(network, "random")) == list(range(6))
    assert place_jobs([job(6)], network)[0].workers == tuple(range(6))
    with pytest.raises(ScenarioError, match=r"7 workers need 7 hosts.*at most 6"):
        place_jobs([job(7)], network)
    named = SimpleNamespace(workers=("h5", "h0"), servers=())
    assert place_jobs([job(2, named)], network)[0].workers == (5, 0)


@pytest.mark.parametrize(
    ("name", "says"),
    [("h1.nic0", "is one network card of a host"), ("rail0_1", "is a switch"), ("h9", "is not a node of the network")],
)
def test_placement_refuses_names_of_cards_switches_and_unknown_nodes(name, says):
    with pytest.raises(ScenarioError, match=says):
        place_jobs([job(1, SimpleNamespace(workers=(name,), servers=()))], rail(2, 2, 1, LINK))
