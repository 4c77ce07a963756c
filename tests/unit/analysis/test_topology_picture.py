"""The drawn network: tiers, counts, rates and oversubscription by hand, a bounded number of elements, the busiest link."""

from __future__ import annotations

import re
from html import escape

import networkx
import pytest
from sim_cases import make_trace, ring_job, scenario

from gradwire.analysis.report.topology_picture import BusiestLink, Drawing, _svg, busiest_link, topology_picture
from gradwire.sim.simulate import simulate
from gradwire.topology import (
    Network,
    build_network,
    dragonfly,
    dumbbell,
    fat_tree,
    from_networkx,
    leaf_spine,
    network_of,
    rail,
    star,
    torus,
)
from gradwire.topology.cables import LinkSpec

LINK = LinkSpec(100_000_000_000, 1_000_000, 0.0)
GBPS = 1_000_000_000


def names_of(network: Network) -> list[str]:
    drawing = Drawing(network)
    return [drawing.tier_name(level) for level in range(len(drawing.tiers))]


@pytest.mark.parametrize(
    ("network", "names"),
    [
        (star(1, LINK), ["1 host", "1 switch"]),
        (leaf_spine(32, 8, 8, LINK), ["256 hosts", "32 leaves", "8 spines"]),
        (fat_tree(4, LINK), ["16 hosts", "8 edge switches", "8 aggregation", "4 core switches"]),
        (rail(8, 4, 2, LINK), ["8 hosts", "4 rail switches", "2 spines"]),
        (dumbbell(2, 3, LINK), ["5 hosts", "2 switches"]),
        (torus([4, 4], LINK), ["16 hosts", "16 switches"]),
        (from_networkx(networkx.path_graph(3), LINK, hosts_per_switch=1), ["3 hosts", "3 switches"]),
    ],
)
def test_tiers_are_counted_by_their_distance_from_hosts(network: Network, names: list[str]) -> None:
    assert names_of(network) == names


def test_cables_rates_and_oversubscription_of_tiers() -> None:
    """32 leaves with 16 hosts each and 8 uplinks of half the rate: 16 : 4 = 4 : 1."""
    drawing = Drawing(leaf_spine(32, 16, 8, LINK, uplink_rate=50 * GBPS))
    assert drawing.rates(0, 1) == {100 * GBPS: 512} and drawing.rates(1, 2) == {50 * GBPS: 256}
    assert drawing.oversubscription(1) == 4.0 and drawing.oversubscription(2) == 0.0
    assert Drawing(dumbbell(2, 3, LINK, bottleneck_rate=GBPS)).rates(1, 1) == {GBPS: 1}
    assert Drawing(rail(8, 4, 2, LINK)).rates(0, 1) == {100 * GBPS: 32}


@pytest.mark.parametrize(
    "network", [fat_tree(32, LINK), rail(1024, 8, 8, LINK, hosts_per_group=32), dragonfly(4, LINK)]
)
def test_large_networks_are_drawn_in_part(network: Network) -> None:
    """At most 16 nodes of a tier are drawn, connected ones, and the wanted ones."""
    drawing = Drawing(network)
    wanted = [drawing.tiers[0][-1], drawing.tiers[1][-1]]
    rows = drawing.drawn(wanted)
    assert all(len(row) <= 16 for row in rows) and wanted[0] in rows[0] and wanted[1] in rows[1]
    edges = set(rows[1])
    assert all(edges & set(drawing.neighbours[host]) for host in rows[0])


def test_lines_of_text_end_left_of_the_nodes() -> None:
    network = leaf_spine(32, 16, 8, LINK)
    network.link_rate[-2:] = 400 * GBPS  # one of the cables
    texts = re.findall(r"<text[^>]*>([^<]*)<", "".join(_svg(Drawing(network), "", (), "")))
    assert "255 × 100 Gbps, ..." in texts and max(map(len, texts)) <= 24


def test_a_long_chain_of_switches_has_few_tiers() -> None:
    """Switches at distance 8 and more share the last tier, so that the height of the picture is bounded."""
    chain = networkx.path_graph(500)
    chain.add_nodes_from(["a", "b"], kind="host")
    chain.add_edges_from([("a", 0), ("b", 0)])
    chain.add_nodes_from(range(500), kind="switch")
    drawing = Drawing(from_networkx(chain, LINK))
    assert [len(nodes) for nodes in drawing.tiers] == [2, *[1] * 7, 493]
    assert drawing.rates(7, 8) == {100 * GBPS: 1} and drawing.rates(8, 8) == {100 * GBPS: 492}


@pytest.mark.parametrize("several_gpus", [False, True])
def test_busiest_link_outside_of_machines_is_marked_and_named(several_gpus: bool) -> None:
    """In a ring of equal hosts the cable of a tenth of the rate is busiest; links inside machines do not count."""
    inside = {"host": {"gpus": 2, "scale_up_rate": "250Mbps"}} if several_gpus else {}
    slow = {"between": ["h1", "s0"], "rate": "1Gbps"}
    hosts = 2 if several_gpus else 4
    made = scenario(ring_job(4), hosts=hosts, link={"rate": "10Gbps"}, link_override=[slow], **inside)
    result = simulate(made, trace=make_trace([[20_000]]))
    drawing = Drawing(build_network(made.topology, made.link, made.link_override))
    busiest = busiest_link(drawing, network_of(made), result)
    assert busiest is not None and set(drawing.ends_of(busiest.port)) == set(drawing.ends_of("h1->s0"))
    text = topology_picture(result.tables, result)
    assert text.count('class="hot"') == 1 and f"<code>{escape(busiest.port)}</code>" in text
    assert ("2 GPUs each" in text) is several_gpus


def test_dropped_packets_of_the_busiest_link_are_in_the_caption() -> None:
    link = BusiestLink("s0->h8", 0.34, 1672)
    assert link.text == "Busiest link: `s0->h8` sends 34.0 % of the time; it dropped 1,672 packets."


def test_a_network_that_cannot_be_built_is_left_out() -> None:
    assert topology_picture({"name": "x", "topology": {"kind": "graph", "file": "/nowhere.graphml"}}) == ""
