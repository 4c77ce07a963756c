"""Networks from files: topology.txt of HPCC, graphs of switches alone, costs; and what is refused, with its line."""

from __future__ import annotations

import math

import networkx
import numpy as np
import pytest

from gradwire.scenarios.errors import ScenarioError
from gradwire.scenarios.loading.load import build_scenario, load_scenario
from gradwire.topology import LinkSpec, Override, build_network, from_networkx, read_graph, read_hpcc
from gradwire.topology.kinds.htsim import read_htsim
from gradwire.topology.routing import build_routing

GBPS, US = 10**9, 10**6
LINK = LinkSpec(100 * GBPS, US)

TWO_RACKS = """\
8 4 10
4 5
7 2

0 4 25Gbps 1000ns 0.000000
1 4 25Gbps 0.001ms 0
5 3 25Gb/s 1us 0.5   # the switch first
6 5 25Gbps 1us 0
4 2 100Gbps 2us 0
4 7 100Gbps 2us 0
5 2 100Gbps 2us 0
5 7 100Gbps 2us 0
2 7 40Gbps 2us 0
2 7 40Gbps 2us 0
"""


def write(tmp_path, text, name="topology.txt"):
    path = tmp_path / name
    path.write_text(text)
    return path


def test_hpcc_topology_nodes_keep_their_numbers(tmp_path):
    network = read_hpcc(write(tmp_path, TWO_RACKS))
    assert network.names == ("h0", "h1", "h3", "h6", "s2", "s4", "s5", "s7")
    assert [network.names[node] for node in network.edge_of] == ["s4", "s4", "s5", "s5"]
    assert network.link_count == 20 and network.title == "topology"
    up = network.up_link[network.index["h3"]]
    assert network.link_name(up) == "h3->s5"
    assert (network.link_rate[up], network.link_latency[up], network.link_loss[up]) == (25 * GBPS, US, 0.5)
    assert set(network.link_latency[network.up_link]) == {US}, "ns, ms and us are the same time"
    assert build_routing(network).hops(0, 3) == 4


def test_hpcc_topology_ignores_text_after_the_last_cable(tmp_path):
    """HPCC's simulator also reads only the announced lines; its default topology ends with such text."""
    text = TWO_RACKS + "\nFirst line: total node #, switch node #, link #\nsrc0 dst0 rate delay error_rate\n...\n"
    assert read_hpcc(write(tmp_path, text)).link_count == read_hpcc(write(tmp_path, TWO_RACKS)).link_count


def test_hpcc_topology_reads_the_number_of_cables_in_its_first_line(tmp_path):
    network = read_hpcc(write(tmp_path, TWO_RACKS + "2 7 40Gbps 2us 0\n0 7 40Gbps 2us 0\n"))
    assert network.link_count == 2 * 10


def test_hpcc_topology_cable_without_loss_value_is_lossless(tmp_path):
    network = read_hpcc(write(tmp_path, lines({7: "5 3 25Gbps 1000ns"})))
    assert network.link_loss[network.up_link[network.index["h3"]]] == 0
    assert read_hpcc(write(tmp_path, TWO_RACKS)).link_loss[network.up_link[network.index["h3"]]] == 0.5


def test_overrides_of_hpcc_topologies_use_node_numbers(tmp_path):
    network = read_hpcc(write(tmp_path, TWO_RACKS), overrides=[Override(("s2", "s7"), rate=GBPS)])
    assert (network.link_rate == GBPS).sum() == 4, "both parallel cables, both directions"


def lines(changed: dict[int, str]) -> str:
    text = TWO_RACKS.splitlines()
    for number, line in changed.items():
        text[number - 1] = line
    return "\n".join(text)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", ["topology.txt: line 1: is not a valid first line"]),
        ("8 4\n", ["line 1", '"8 4"', "nodes switches links"]),
        ("8 4 0 10 2 A100 8\n", ["line 1: is not a valid first line"]),
        ("4 5 1\n0 1\n", ["more switches than nodes"]),
        (lines({3: "7 4"}), ["line 3: names a switch twice", '"4"']),
        (lines({3: "7 9"}), ["line 3: is not a node", "0 to 7"]),
        (lines({3: "7 2 0"}), ["line 2: lists 5 switches", "expected 4"]),
        (lines({1: "8 4 11"}), ["line 1: announces 11 links, but 10 follow"]),
        ("999999999 1 1\n0\n0 1 25Gbps 1us 0\n", ["line 1: announces 999999999 nodes, more than its cables have ends"]),
        ("9" * 5000 + " 1 1\n", ["line 1: is not a valid first line"]),
        (lines({5: "0 " + "9" * 5000 + " 25Gbps 1us 0"}), ["line 5: is not a node"]),
        (lines({5: "0 4 25Gbps"}), ["line 5: has 3 entries"]),
        (lines({6: "1 8 25Gbps 1us 0"}), ["line 6: is not a node", '"8"']),
        (lines({7: "5 3 fast 1us 0", 8: "6 5 25Gbps soon no"}), ["line 7", '"fast"', "line 8", '"soon"', '"no"']),
        (lines({5: "0 4 25Gbps 1us 1.0"}), ["topology.txt.h0-s4: loss is not a probability"]),
        (lines({5: "0 4 25Gbps -1us 0"}), ["topology.txt.h0-s4: latency is negative"]),
        (lines({5: "0 1 25Gbps 1us 0"}), ["h0-h1: the link joins two hosts"]),
    ],
)
def test_invalid_hpcc_topology_lines_are_rejected_with_line_numbers(tmp_path, text, says):
    with pytest.raises(ScenarioError) as error:
        read_hpcc(write(tmp_path, text))
    for piece in says:
        assert piece in str(error.value)


def test_long_hpcc_topology_error_list_is_truncated(tmp_path):
    rows = "\n".join(f"{host} 40 25Gbps" for host in range(40))
    with pytest.raises(ScenarioError) as error:
        read_hpcc(write(tmp_path, f"41 1 40\n40\n{rows}"))
    assert len(error.value.mistakes) == 9 and "32 more lines are wrong" in str(error.value)


def test_missing_and_binary_hpcc_topology_files_are_rejected(tmp_path):
    with pytest.raises(ScenarioError, match="no such file"):
        read_hpcc(tmp_path / "none.txt")
    (tmp_path / "binary.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(ScenarioError, match="is not UTF-8 text"):
        read_hpcc(tmp_path / "binary.txt")


# --- graphs -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", ["graphml", "gml", "txt"])
def test_hosts_per_switch_adds_hosts_to_a_switch_graph(tmp_path, suffix):
    """A random regular graph (Jellyfish, NSDI 2012), three hosts on each switch."""
    graph = networkx.random_regular_graph(4, 10, seed=1)
    graph = networkx.relabel_nodes(graph, {node: f"tor{node}" for node in graph})
    path = tmp_path / f"jellyfish.{suffix}"
    write = {"graphml": networkx.write_graphml, "gml": networkx.write_gml, "txt": networkx.write_edgelist}
    write[suffix](graph, path)
    network = read_graph(path, LINK, hosts_per_switch=3)
    assert network.host_count == 30 and network.switch_count == 10
    assert network.names[:3] == ("h0", "h1", "h2")
    assert (np.bincount(network.edge_of)[30:] == 3).all()
    assert (network.link_rate == LINK.rate).all()
    inner = network.to_networkx().subgraph(network.names[30:])
    assert networkx.is_isomorphic(inner, graph)


def test_hosts_attribute_sets_the_number_of_hosts_of_a_switch(tmp_path):
    graph = networkx.path_graph(4)
    graph.nodes[1]["hosts"] = 2
    graph.nodes[2]["hosts"] = 0
    network = from_networkx(graph, LINK)
    assert network.names == ("0", "3", "h0", "h1", "1", "2"), "nodes of degree one are hosts all the same"
    with_default = from_networkx(graph, LINK, hosts_per_switch=5)
    counts = np.bincount(with_default.edge_of, minlength=with_default.node_count)[with_default.host_count :]
    assert counts.tolist() == [5, 2, 0, 5], "and switches if a number of hosts is given"
    path = tmp_path / "path.graphml"
    networkx.write_graphml(graph, path)
    assert read_graph(path, LINK, hosts_per_switch=5).names == with_default.names


def test_link_costs_of_a_graph_file_determine_routes(tmp_path):
    path = tmp_path / "net.txt"
    path.write_text("a s {'cost': 1}\nb t\ns t {'cost': '5'}\ns u {'cost': 2}\nu t {'cost': 2}\n")
    network = read_graph(path, LINK)
    routing = build_routing(network)
    names = [
        [network.names[network.link_dst[link]] for link in path]
        for path in routing.paths(network.index["a"], network.index["b"])
    ]
    assert names == [["s", "u", "t", "b"]]
    assert read_graph(path, LINK).link_cost is not None
    back = from_networkx(network.to_networkx(), LINK)
    assert sorted(back.link_cost.tolist()) == sorted(network.link_cost.tolist())


@pytest.mark.parametrize(
    ("node", "edge", "says"),
    [
        ({"hosts": -1}, {}, "1.hosts: is not a number of hosts"),
        ({"hosts": 1.5}, {}, "1.hosts: is not a number of hosts"),
        ({"hosts": "many"}, {}, '"many"'),
        ({"kind": "host", "hosts": 1}, {}, "1.hosts: adds hosts to a host"),
        ({}, {"cost": 0}, "cost is out of range (got 0)"),
        ({}, {"cost": 65}, "1 to 64"),
        ({}, {"cost": "cheap"}, "cost is not a whole number"),
        ({}, {"rate": math.nan}, "rate is not a whole number"),
        ({}, {"latency": math.inf}, "latency is not a whole number"),
        ({}, {"rate": 10**30}, "rate is too large"),
        ({}, {"rate": True}, "rate is not a whole number"),
        ({}, {"loss": math.nan}, "loss is not a probability"),
    ],
)
def test_invalid_graph_attributes_are_rejected(node, edge, says):
    graph = networkx.path_graph(3)
    graph.nodes[1].update(node)
    graph.edges[0, 1].update(edge)
    with pytest.raises(ScenarioError) as error:
        from_networkx(graph, LINK)
    assert says in str(error.value)


def test_added_hosts_with_existing_node_names_are_rejected():
    graph = networkx.relabel_nodes(networkx.path_graph(3), {1: "h0"})
    with pytest.raises(ScenarioError, match="several nodes have the same name"):
        from_networkx(graph, LINK, hosts_per_switch=1)


@pytest.mark.parametrize(
    ("kind", "text"), [("graph", "h0 s0\nh1 s0\n"), ("hpcc", "3 1 2\n2\n0 2 100Gbps 0.001ms 0\n1 2 1Gbps 0.001ms 0\n")]
)
def test_topology_files_accept_a_byte_order_mark_and_reject_invalid_utf8(tmp_path, kind, text):

    def network(data):
        (tmp_path / "net.txt").write_bytes(data)
        table = {"name": "n", "topology": {"kind": kind, "file": str(tmp_path / "net.txt")}}
        scenario = build_scenario({**table, "traffic": [{"name": "t", "kind": "permutation", "size": "10kB"}]})
        return build_network(scenario.topology, scenario.link, scenario.link_override)

    assert network(b"\xef\xbb\xbf" + text.encode()).names == network(text.encode()).names
    with pytest.raises(ScenarioError, match=r"net.txt: is not UTF-8 text; expected a "):
        network(text.encode() + b"# \xe4\n")


def test_directory_as_topology_file_is_rejected(tmp_path):
    file = tmp_path / "s.toml"
    file.write_text(
        f'name="n"\ntopology={{kind="graph", file="{tmp_path}"}}\n[[traffic]]\nname="t"\nkind="permutation"\nsize="1kB"\n'
    )
    with pytest.raises(ScenarioError, match=r"topology.file: is not a regular file"):
        load_scenario(file)


SIMAI = """\
14 2 4 2 20 H100
8 9 10 11 12 13
"""
SIMAI += "".join(
    f"{gpu} {8 + gpu // 2} 2880Gbps 0.000025ms 0\n{gpu} {12 + gpu % 2} 400Gbps 0.0005ms 0\n" for gpu in range(8)
)
SIMAI += "".join(f"{12 + one} {other} 400Gbps 0.0005ms 0\n" for one, other in ((0, 13), (0, 13), (0, 13), (0, 13)))


def test_simai_topology_has_scale_up_ports(tmp_path):
    network = read_hpcc(write(tmp_path, SIMAI))
    assert network.cards.hosts == tuple(f"h{gpu}" for gpu in range(8))
    assert network.cards.machines.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    rates = dict(zip(network.link_src.tolist(), network.link_rate.tolist(), strict=False))
    by_card = {network.names[node]: rate for node, rate in rates.items() if node < network.host_count}
    assert by_card["h3.nic0"] == 400 * GBPS and by_card["h3.up"] == 2880 * GBPS
    build_routing(network)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("14 2 4 2 20 H100", "14 2 4 x 20 H100", "is not a valid first line"),
        ("14 2 4 2 20 H100", "14 2 3 3 20 H100", "has 8 GPUs and 3 NVLink switches"),
        ("3 9 2880Gbps", "3 8 2880Gbps", "do not join the consecutive GPUs of a server"),
    ],
)
def test_invalid_simai_topologies_are_rejected(tmp_path, old, new, says):
    with pytest.raises(ScenarioError, match=says):
        read_hpcc(write(tmp_path, SIMAI.replace(old, new)))


HTSIM = """\
# a fat tree of two pods
Nodes 8
Tiers 3
Podsize 4
Tier 0
Downlink_speed_Gbps 200
Radix_Down 2
Radix_Up 2
Downlink_Latency_ns 1000
Switch_Latency_ns 100
Queue_Down 500
Tier 1
Downlink_speed_Gbps 200
Radix_Down 2
radix_up 4
Downlink_Latency_ns 1000
Switch_Latency_ns 300
Tier 2
Downlink_speed_Gbps 100
Radix_Down 4
Downlink_Latency_ns 500
Bundle 2
"""


def test_htsim_topology_by_hand(tmp_path):
    network = read_htsim(write(tmp_path, HTSIM, "a.topo"))
    assert network.names[8:] == (
        *(f"edge{n}" for n in range(4)),
        *(f"agg{n}" for n in range(4)),
        *(f"core{n}" for n in range(4)),
    )
    cables = {}
    for link in range(0, network.link_count, 2):
        ends = tuple(network.names[int(node)] for node in (network.link_src[link], network.link_dst[link]))
        cables.setdefault(ends, []).append((int(network.link_rate[link]) // GBPS, int(network.link_latency[link])))
    assert cables["h0", "edge0"] == [(200, 1_050_000)]  # half of the edge switch's latency
    assert cables["edge0", "agg0"] == cables["edge1", "agg1"] == [(200, 1_200_000)] and ("edge0", "agg2") not in cables
    assert cables["agg0", "core0"] == cables["agg0", "core2"] == cables["agg3", "core1"] == [(100, 650_000)] * 2
    assert network.link_count // 2 == 8 + 8 + 16
    assert (
        build_scenario(
            {
                "name": "a",
                "topology": {"kind": "htsim", "file": str(tmp_path / "a.topo")},
                "traffic": [{"kind": "permutation", "name": "p", "size": "1KB"}],
            }
        )
        .topology.network(LINK, ())
        .host_count
        == 8
    )


def test_two_tiers_of_htsim_join_every_edge_switch_to_every_core(tmp_path):
    text = (
        "Nodes 32\nTiers 2\nPodsize 32\nTier 0\nDownlink_speed_Gbps 100\nRadix_Down 8\nRadix_Up 2\nOversubscribed 4\n"
    )
    text += "Tier 1\nDownlink_speed_Gbps 100\nRadix_Down 4\n"
    network = read_htsim(write(tmp_path, text, "b.topo"))
    assert (network.host_count, network.link_count // 2) == (32, 40)
    assert {name.rstrip("0123456789") for name in network.names} == {"h", "edge", "core"}


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("Nodes 8", "Hosts 8", "line 2.*is not a setting.*Hosts"),
        ("Nodes 8", "", "has no nodes"),
        ("Tiers 3", "Tiers 4", "is not a number of tiers"),
        ("Tier 2", "Tier 1", "is not a new tier"),
        ("Podsize 4", "Podsize 3", "nodes is not a multiple of podsize"),
        ("Radix_Up 2", "Radix_Up two", "is not a setting and a number"),
        ("Radix_Up 2", "Oversubscribed 3", "tier 0 has no radix_up"),
        ("Switch_Latency_ns 100", "Oversubscribed 3", "tier 0 has 400 Gbit/s down"),
        ("Queue_Down 500", "Radix_Down 2", "repeats Radix_Down"),
        ("Bundle 2", "Bundle 1", "has 4 switches of tier 2"),
    ],
)
def test_invalid_htsim_topologies_are_rejected(tmp_path, old, new, says):
    with pytest.raises(ScenarioError, match=says):
        read_htsim(write(tmp_path, HTSIM.replace(old, new, 1), "bad.topo"))
