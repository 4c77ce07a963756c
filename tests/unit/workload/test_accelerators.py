"""Accelerators: what is inside of machines, who is placed where, and how long collectives take over both kinds of links."""

from __future__ import annotations

import numpy as np
import pytest
from array_cases import Arrays, job_of, same
from sim_cases import US, make_trace, scenario

from gradwire.scenarios.errors import ScenarioError
from gradwire.sim.preparation import prepare_inputs
from gradwire.sim.simulate import simulate
from gradwire.topology import network_of
from gradwire.topology.placement import place_jobs
from gradwire.topology.routing import build_routing
from gradwire.workload.resolve import resolve

PAYLOAD, FRAME = 1000, 1058
RATES = {"net": 80, "up": 8, "pcie": 20}  # picoseconds a byte
HOST = {"scale_up_rate": "1Tbps", "scale_up_latency": "500ns", "pcie_rate": "400Gbps", "pcie_latency": "300ns"}
QUIET = {
    "switch": {"queues": 1, "buffer": "100MB"},
    "transport": {"kind": "constant_rate:ConstantRate", "payload": f"{PAYLOAD}B"},
}
SOFTWARE = 2 * US


def case(job=None, *, hosts=2, cards=4, gpus=4, spines=1, **fields):
    topology = {"kind": "rail", "hosts": hosts, "cards": cards, "spines": spines}
    return scenario(*([job] if job else []), topology=topology, host={"gpus": gpus, **HOST}, **fields)


def flow(src, dst, **fields):
    """A scenario in which one host sends to another."""
    return case(**fields, **QUIET, traffic=[{"name": "t", "kind": "permutation", "hosts": [src, dst], "size": "20KB"}])


def job(exchange, workers=8, **fields):
    return {"workers": workers, "exchange": {"bucket": "1GB", **exchange}, **fields}


def network(**fields):
    return network_of(case(job({"kind": "ring"}), **fields))


# --- what there is ---------------------------------------------------------------------------------------------------


def test_each_accelerator_has_its_own_card_on_its_rail():
    made = network()
    cards = made.cards
    assert cards.hosts[:5] == ("h0.gpu0", "h0.gpu1", "h0.gpu2", "h0.gpu3", "h1.gpu0") and len(cards.hosts) == 8
    assert cards.counts.tolist() == [2] * 8 and cards.network.tolist() == [1] * 8
    assert made.names[:4] == ("h0.gpu0.nic0", "h0.gpu0.up", "h0.gpu1.nic0", "h0.gpu1.up")
    above = {made.names[node]: made.names[made.edge_of[node]] for node in range(made.host_count)}
    assert above["h1.gpu2.nic0"] == "rail0_2" and above["h1.gpu2.up"] == "h1.up"
    assert cards.machines.tolist() == [0] * 4 + [1] * 4
    up = made.up_link[made.index["h0.gpu1.up"]]
    assert (made.link_rate[up], made.link_latency[up]) == (10**12, 500_000)
    assert sorted(made.order.tolist()) == list(range(made.node_count))


def test_shared_cards_connect_through_a_pcie_switch():
    made = network(cards=2)
    above = {made.names[node]: made.names[made.edge_of[node]] for node in range(made.host_count)}
    assert [above[f"h0.gpu{g}.nic0"] for g in range(4)] == ["h0.pcie0", "h0.pcie0", "h0.pcie1", "h0.pcie1"]
    (link,) = np.flatnonzero((made.link_src == made.index["h0.pcie1"]) & (made.link_dst == made.index["rail0_1"]))
    assert made.link_rate[link] == 10**11


def test_accelerator_uses_two_cards_if_machine_has_twice_as_many():
    made = network(cards=8)
    assert made.cards.network.tolist() == [2] * 8
    above = [made.names[made.edge_of[made.cards.node(1, number)]] for number in range(3)]
    assert above == ["rail0_2", "rail0_3", "rail0_2"]


def test_messages_inside_a_machine_use_scale_up_ports():
    cards = network().cards
    src, dst = cards.cards(np.array([0, 0]), np.array([3, 7]), np.array([5, 5]))
    names = network().names
    assert [names[node] for node in (*src, *dst)] == ["h0.gpu0.up", "h0.gpu0.nic0", "h0.gpu3.up", "h1.gpu3.nic0"]


def test_star_and_fat_tree_support_accelerators():
    for topology in ({"kind": "star", "hosts": 3}, {"kind": "fat_tree", "k": 4}):
        made = network_of(scenario(job({"kind": "ring"}, 4), topology=topology, host={"gpus": 2}))
        build_routing(made)
        machines = made.cards.machines
        assert len(made.cards.hosts) == 2 * (machines.max() + 1)
        assert made.cards.islands is None


# --- placement -------------------------------------------------------------------------------------------------------


def placed(workers=4, hosts=3, servers=0, **fields):
    exchange = {"kind": "parameter_server"} if servers else {"kind": "ring"}
    made = case({"workers": workers, "servers": servers, "exchange": exchange, **fields}, hosts=hosts, gpus=2, cards=2)
    found = network_of(made)
    (places,) = place_jobs(made.job, found, made.seed)
    return [[found.cards.hosts[host] for host in each] for each in places]


def test_placement_rules_order_accelerators():
    assert placed()[0] == ["h0.gpu0", "h0.gpu1", "h1.gpu0", "h1.gpu1"]
    assert placed(placement="rails")[0] == ["h0.gpu0", "h1.gpu0", "h2.gpu0", "h0.gpu1"]
    drawn = placed(placement="random")[0]
    assert [name[-1] for name in drawn] == ["0", "1"] * 2 and drawn[0][:2] == drawn[1][:2]
    named = ["h2.gpu1", "h0.gpu1", "h1.gpu0", "h0.gpu0"]
    assert placed(placement={"workers": named})[0] == named


def test_parameter_server_takes_a_separate_machine():
    assert placed(workers=3, servers=1) == [["h0.gpu0", "h0.gpu1", "h1.gpu0"], ["h2.gpu0"]]
    with pytest.raises(ValueError, match="4 workers and 2 servers need 8 accelerators, but the topology has 6"):
        placed(servers=2)


def test_jobs_share_machines_but_no_accelerators():
    made = case({"workers": 3, "exchange": {"kind": "ring"}}, hosts=3, gpus=2, cards=2)
    both = made.model_copy(update={"job": (made.job[0], made.job[0].model_copy(update={"name": "other"}))})
    first, second = place_jobs(both.job, network_of(both))
    assert first.workers == (0, 1, 2) and second.workers == (3, 4, 5)


def test_count_of_consecutive_workers_in_a_machine_follows_placement():
    def inside(**fields):
        return job_of({"kind": "ring"}, 4, gpus=2, cards=2, **fields).exchange.context.inside

    assert inside() == 2
    assert inside(placement="rails") == 1
    assert inside(placement={"workers": ["h0.gpu0", "h0.gpu1", "h1.gpu1", "h1.gpu0"]}) == 2
    assert inside(placement={"workers": ["h0.gpu0", "h1.gpu1", "h1.gpu0", "h0.gpu1"]}) == 1


# --- times -----------------------------------------------------------------------------------------------------------


def taken(exchange, packets, **fields):
    """Picoseconds from when all gradients are ready to when everybody has the sum, of a bucket of so many packets."""
    trace = make_trace([[packets * PAYLOAD // 4]], forward=US, backward=US)
    result = simulate(case(job(exchange), **fields, **QUIET), trace)
    return max(result.iterations["end_ps"].to_pylist()) - 2 * US


def message(packets, *hops):
    """So many packets over hops of (picoseconds a byte, latency): the slowest one's rate, and one packet at each other."""
    speeds = [FRAME * speed for speed, _ in hops]
    return SOFTWARE + sum(latency for _, latency in hops) + sum(speeds) + (packets - 1) * max(speeds)


UP = ((RATES["up"], US // 2),) * 2
NET = ((RATES["net"], US),) * 2


def test_hierarchical_all_reduce_uses_scale_up_and_network_links():
    """Two machines of 4 take 3 steps inside, 2 across on each accelerator's own rail, and 3 inside. A message carries
    a 4th of the bucket inside and an 8th across. No message leaves its rail, so the spines may be missing."""
    expected = 6 * message(200, *UP) + 2 * message(100, *NET)
    assert taken({"kind": "hierarchical"}, 800) == expected
    assert taken({"kind": "hierarchical"}, 800, spines=0) == expected


def test_ring_all_reduce_time_is_bounded_with_one_and_four_channels():
    """With one channel, the ring takes 14 steps of an 8th of the bucket at network speed. With four channels, a step
    carries a 32nd, and every scale-up port queues the messages of three rings."""
    assert taken({"kind": "ring", "channels": 1}, 800) < 14 * message(100, *NET)
    four = taken({"kind": "ring"}, 800, spines=0)
    assert 14 * message(25, *UP) < four < 14 * message(25, *NET) + 14 * 3 * 25 * FRAME * RATES["up"]


def test_flow_time_over_scale_up_network_and_pcie_links_matches_formula():
    for ends, hops in ((("h0.gpu0", "h0.gpu3"), UP), (("h0.gpu0", "h1.gpu0"), NET), (("h0.gpu0", "h1.gpu3"), NET * 2)):
        (row, _) = simulate(flow(*ends)).messages.to_pylist()
        assert row["end_ps"] - row["start_ps"] == message(20, *hops) - SOFTWARE
    (row, _) = simulate(flow("h0.gpu0", "h1.gpu0", cards=2)).messages.to_pylist()
    pcie = (RATES["pcie"], 300_000)
    assert row["end_ps"] - row["start_ps"] == message(20, pcie, *NET, pcie) - SOFTWARE


def test_two_accelerators_sharing_a_card_get_half_its_rate():
    """Two accelerators of a machine send to two of another, over one shared card or one card each."""
    names = {"hosts": ["h0.gpu0", "h0.gpu1", "h1.gpu0", "h1.gpu1"], "size": "2MB"}
    found = []
    for cards in (1, 2):
        traffic = [
            {"name": f"t{n}", "kind": "permutation", "size": "2MB", "hosts": [names["hosts"][n], names["hosts"][n + 2]]}
            for n in (0, 1)
        ]
        result = simulate(case(gpus=2, cards=cards, **QUIET, traffic=traffic))
        found.append(max(result.messages["end_ps"].to_pylist()))
    assert found[0] == pytest.approx(2 * found[1], rel=0.01)


# --- contents --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "workers", "gpus"), [
    ("ring", 8, 4), ("ring", 6, 2), ("ring", 6, 3), ("hierarchical", 8, 4), ("hierarchical", 6, 2), ("transpose", 4, 2),
])  # fmt: skip
def test_all_reduce_gives_every_accelerator_the_sum(kind, workers, gpus):
    made = job_of({"kind": kind, "bucket": "8KB"}, workers, gpus=gpus, cards=gpus)
    for seed in range(2):
        arrays = Arrays(made, np.random.default_rng(seed)).run()
        assert same(arrays.buffers, arrays.sums())
        lossy = Arrays(made, np.random.default_rng(seed), lose=0.2).run()
        assert same(lossy.buffers, lossy.predicted())


@pytest.mark.parametrize("kind", ["ring", "hierarchical"])
def test_all_reduce_loads_rails_equally_and_stays_on_them(kind):
    made = job_of({"kind": kind, "bucket": "8KB"}, 16, gpus=4, cards=4)
    rows = Arrays(made, np.random.default_rng(1)).program.messages
    cards, count = made.exchange.context.cards, made.exchange.context.cards.counts.sum()
    by_card = np.bincount(rows.src, weights=rows.nbytes, minlength=count).reshape(-1, 2)
    assert by_card[:, 0].std() == 0 and by_card[0, 0] > 0
    across = rows.src % 2 == 0
    rail = rows.src // 2 % 4, rows.dst // 2 % 4
    assert (rail[0][across] == rail[1][across]).all()
    assert cards.per_machine == 4


# --- what is wrong ---------------------------------------------------------------------------------------------------


def test_unevenly_shared_cards_are_refused():
    with pytest.raises(ScenarioError, match="machine h0 has 3 network cards, which 4 accelerators cannot share evenly"):
        network(cards=3)


def test_messages_between_unconnected_rails_are_refused():
    with pytest.raises(ScenarioError, match=r"h0\.gpu3 sends to h1\.gpu0, but their rails are not connected"):
        prepare_inputs(case(job({"kind": "transpose"}), spines=0), make_trace([[100]]))
    with pytest.raises(ScenarioError, match=r"traffic\[0\]\.hosts"):
        prepare_inputs(flow("h0.gpu0", "h1.gpu1", spines=0))


def test_bad_accelerator_names_and_worker_counts_are_refused():
    with pytest.raises(ValueError, match=r"h0\.gpu0 to h1\.gpu3"):
        case(job({"kind": "ring"}, 2, placement={"workers": ["h0", "h1"]}))
    with pytest.raises(ValueError, match="9 workers need 9 accelerators, but the topology has 8"):
        case(job({"kind": "ring"}, 9))
    with pytest.raises(ValueError, match="is absent, and 8 workers on hosts of 1 accelerator make no groups"):
        case(job({"kind": "hierarchical"}, 8), gpus=1, hosts=8)
    with pytest.raises(ValueError, match="does not divide 8 workers into groups"):
        case(job({"kind": "hierarchical", "group": 3}, 8), gpus=1, hosts=8)


def test_testbed_refuses_separate_accelerator_ports():
    with pytest.raises(ScenarioError, match=r"host\.gpus: are separate ports"):
        resolve(case(job({"kind": "ring"})), make_trace([[100]]))
