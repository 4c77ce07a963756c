"""What `check` says of a network: its size, and round trips between the cards that messages use."""

from __future__ import annotations

from gradwire.scenarios.loading.load import build_scenario
from gradwire.sim.preparation import check_variants, extents
from gradwire.topology import base_rtt
from gradwire.topology.base_rtt import NetworkSize

US = 10**6
TRAFFIC = {"name": "t", "kind": "permutation", "size": "10kB"}


def found(*policies, **fields):
    tables = {
        "name": "x",
        "traffic": [TRAFFIC],
        "policy": [{"name": f"p{n}", "set": each} for n, each in enumerate(policies)],
    }
    variants = build_scenario(tables | fields).variants()
    return extents(variants, check_variants(variants))


def test_policies_with_equal_networks_share_one_network_size():
    star, larger = ({"kind": "star", "hosts": hosts} for hosts in (4, 5))
    ((first, one), (second, other)) = found({}, {"topology": larger}, {"transport": "cubic"}, topology=star)
    there = 2 * 80 * (4162 + 66) + 4 * US
    assert (first, one) == (["p0", "p2"], NetworkSize(4, 4, 1, 4, (there, there)))
    assert (second, other) == (["p1"], NetworkSize(5, 5, 1, 5, (there, there)))


def test_policies_with_different_link_latency_have_separate_networks():
    override = [{"between": ["h0", "s0"], "latency": "5us"}]
    ((_, one), (_, other)) = found({}, {"link_override": override}, topology={"kind": "star", "hosts": 3})
    assert one.round_trips[1] + 8 * US == other.round_trips[1] and one.round_trips[0] == other.round_trips[0]


def test_rail_round_trips_cover_only_cards_of_equal_number():
    """Without spines, only cards of the same rail can reach each other."""
    ((_, rails),) = found(topology={"kind": "rail", "hosts": 4, "cards": 2, "spines": 0})
    there = 2 * 80 * (4162 + 66) + 4 * US
    assert rails == NetworkSize(4, 8, 2, 8, (there, there))


def test_accelerators_are_counted_beside_their_hosts():
    host = {"gpus": 4, "scale_up_rate": "3600Gbps", "scale_up_latency": "500ns"}
    ((_, extent),) = found({"host": host}, topology={"kind": "rail", "hosts": 2, "cards": 4, "spines": 2})
    assert (extent.machines, extent.hosts) == (2, 8)


def test_large_networks_have_no_round_trips(monkeypatch):
    monkeypatch.setattr(base_rtt, "MAX_NODES", 3)
    ((_, large),) = found(topology={"kind": "star", "hosts": 4})
    assert large == NetworkSize(4, 4, 1, 4, None)
