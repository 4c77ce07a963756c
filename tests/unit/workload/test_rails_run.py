"""Jobs and traffic on hosts with several network cards: who takes which card, and how long it takes."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from sim_cases import MS, US, Ideal, make_trace, ps_job, ring_job, rows, scenario

from gradwire.protocols.transports.tcp.dctcp import Dctcp
from gradwire.result_store.loss_bound_check import check_loss_invariant
from gradwire.result_store.result import Result
from gradwire.scenarios.errors import ScenarioError, StallError
from gradwire.scenarios.loading.load import build_scenario
from gradwire.scenarios.schema.network.network import Switch
from gradwire.sim.simulate import simulate
from gradwire.testing.oracle import Case, MessageSpec, first_difference, run_engine, run_oracle
from gradwire.topology import LinkSpec, build_network, rail
from gradwire.workload.traffic.base import Flows
from gradwire.workload.traffic.flow_part import flow_ends
from gradwire.workload.traffic.tables import flows_of

h, l, BYTE = 2 * US, US, 80  # noqa: E741
FRAME = BYTE * (4096 + 66)


def rails(hosts: int, cards: int, **fields: Any) -> dict[str, Any]:
    return {"kind": "rail", "hosts": hosts, "cards": cards, "spines": 0, **fields}


def run(job: dict[str, Any], trace: Any, topology: dict[str, Any], **fields: Any) -> Result:
    fabric = fields.pop("fabric", None)
    threads = fields.pop("threads", 1)
    result = simulate(scenario(job, topology=topology, **fields), trace, fabric=fabric, threads=threads)
    assert check_loss_invariant(result) == []
    return result


def cards_of(result: Result) -> set[tuple[str, str]]:
    """(card at the sender, card at the receiver) of all messages."""
    return {tuple(row[end].partition(".")[2] for end in ("src", "dst")) for row in rows(result.messages)}


def exposed(result: Result) -> list[int]:
    return [row["exposed_ps"] for row in rows(result.iterations)]


# --- rings ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [2, 3])
@pytest.mark.parametrize("cards", [1, 2, 3, 6])
def test_cards_share_a_ring_segment_equally(workers, cards):
    """Every card sends n = 6 / cards packets of a six-packet segment back to back. One switch stores and forwards
    them. They fit the initial window and are sent before a worker has to acknowledge any. So each of the 2(N-1) steps
    takes h + (n + 1) F + 2 l."""
    trace = make_trace([[workers * 6 * 1024]])
    result = run(ring_job(workers), trace, rails(4, cards), transport="dctcp")
    step = h + (6 // cards + 1) * FRAME + 2 * l
    assert exposed(result) == [2 * (workers - 1) * step] * workers
    found = rows(result.messages)
    assert len(found) == 2 * (workers - 1) * workers * cards
    assert sorted(row["part"] for row in found if row["src"].split(".")[0] == "h0" and row["kind"] == "all_gather") == (
        sorted(n * cards + card for n in [(1 - step) % workers for step in range(workers - 1)] for card in range(cards))
    )
    nics = {f"nic{card}" for card in range(cards)} if cards > 1 else {""}
    assert cards_of(result) == {(nic, nic) for nic in nics}


def test_two_cards_halve_the_time_of_a_ring():
    """Two cards halve the time of 16 MB around a ring of four, except latencies and window growth. Headers and the
    acknowledgements in the same direction add 1.6 % each."""
    trace = make_trace([[4_000_000]])
    one, two = (max(exposed(run(ring_job(4), trace, rails(4, cards), transport="dctcp"))) for cards in (1, 2))
    assert 0.5 < two / one < 0.53
    line = 2 * 3 * 4_000_000 * BYTE  # six segments of 4 MB at 100 Gbps
    assert line < one < 1.06 * line


def test_ring_runs_on_hosts_with_different_numbers_of_cards(tmp_path):
    """Three workers have two cards and one has one card, so two rings share the card of h3. Each ring has its own
    join."""
    edges = [f"h{host} r{card}" for host in range(3) for card in (0, 1)] + ["h3 r0", "r0 r1"]
    nodes = "".join(f'<node id="h{n}"><data key="k">host</data></node>' for n in range(4))
    nodes += '<node id="r0"/><node id="r1"/>'
    links = "".join('<edge source="{}" target="{}"/>'.format(*edge.split()) for edge in edges)
    path = tmp_path / "mixed.graphml"
    path.write_text(
        '<graphml xmlns="http://graphml.graphdrawing.org/xmlns">'
        '<key id="k" for="node" attr.name="kind" attr.type="string"/>'
        f'<graph edgedefault="undirected">{nodes}{links}</graph></graphml>'
    )
    result = run(ring_job(4), make_trace([[40_000]]), {"kind": "graph", "file": str(path)}, transport="dctcp")
    pairs = Counter((row["src"], row["dst"]) for row in rows(result.messages))
    assert pairs == {
        ("h0.nic0", "h1.nic0"): 6, ("h0.nic1", "h1.nic1"): 6, ("h1.nic0", "h2.nic0"): 6,
        ("h1.nic1", "h2.nic1"): 6, ("h2.nic0", "h3"): 6, ("h2.nic1", "h3"): 6,
        ("h3", "h0.nic0"): 6, ("h3", "h0.nic1"): 6,
    }  # fmt: skip
    assert result.summary["totals"]["finished"]


def test_ring_messages_stay_on_their_rail_for_any_thread_count():
    """Messages inside a group use no spine; messages between groups stay on their rail."""
    trace = make_trace([[100_000], [40_000]])
    job = ring_job(4, placement="packed", jitter=0.1)
    inside = rails(8, 4, hosts_per_group=4, spines=2)
    between = rails(8, 4, hosts_per_group=2, spines=2)
    switch = {"ecn_threshold": "96KiB"}
    for topology, quiet in ((inside, True), (between, False)):
        results = [run(job, trace, topology, switch=switch, threads=threads) for threads in (1, 2)]
        for name in ("iterations", "messages", "ports"):
            assert getattr(results[0], name).equals(getattr(results[1], name))
        sent = {row["port"]: row["packets"] for row in rows(results[0].ports)}
        assert all(count == 0 for port, count in sent.items() if "spine" in port) == quiet
        assert cards_of(results[0]) == {(f"nic{card}",) * 2 for card in range(4)}


def test_engine_matches_oracle_on_a_rail_network():
    """Flows run within and across rails; small buffers cause packet losses."""
    network = rail(6, 2, 2, LinkSpec(10**11, US), hosts_per_group=3)
    transports = [Dctcp.model_validate({"kind": "dctcp", "payload": "1000B"})]
    rng = np.random.default_rng(5)
    pairs = [rng.choice(12, 2, replace=False).tolist() for _ in range(40)] + [[card, 4] for card in (0, 2, 6, 8, 1)]
    letters = [MessageSpec(int(rng.integers(3 * US)), a, b, int(rng.integers(1, 60_000))) for a, b in pairs]
    switch = Switch.model_validate({"buffer": "30KB", "ecn_threshold": "15KB"})
    made = Case(network, transports, sorted(letters, key=lambda letter: letter.time), switch)
    outcome = run_engine(made)
    assert outcome.drops and first_difference(outcome, run_oracle(made)) == ""


# --- parameter servers ------------------------------------------------------------------------------------------------


def test_partitions_are_balanced_over_servers_and_cards():
    """Partitions of 5, 4, 3, 3 and 3 go to two servers with two cards each. Server 0 gets 5 on card 0. Server 1 gets
    4 on card 1: both of its cards are empty, and card 1 has less in all. Server 1 gets 3 on card 0, then server 0
    gets 3 on card 1. The last 3 goes to the lighter server, 1 with 7: its card 0 has 3, its card 1 has 4."""
    trace = make_trace([[5000, 4000, 3000, 3000, 3000]])
    result = run(ps_job(1, 2), trace, rails(3, 2), fabric=Ideal())
    pushes = {row["tensor"]: row for row in rows(result.messages) if row["kind"] == "push"}
    assert [pushes[tensor]["src"] for tensor in range(5)] == [f"h0.nic{card}" for card in (0, 1, 0, 1, 0)]
    assert [pushes[tensor]["dst"] for tensor in range(5)] == [
        "h1.nic0", "h2.nic1", "h2.nic0", "h1.nic1", "h2.nic0",
    ]  # fmt: skip


@pytest.mark.parametrize("order", ["fifo", "layer"])
def test_worker_pushes_through_both_cards_in_parallel(order):
    """Two equal tensors are pushed one after the other by one card, and in parallel by two. There are one worker and
    one server, and the network takes size/rate and l."""
    size = 4 * 1000
    for cards, turns in ((1, 2), (2, 1)):
        result = run(ps_job(1, order=order), make_trace([[1000, 1000]]), rails(2, cards), fabric=Ideal())
        (row,) = rows(result.iterations)
        # the second push is pulled while nothing else is under way
        assert row["exposed_ps"] == 2 * (h + l) + (turns + 1) * size * BYTE
        assert row["compute_ps"] == 2 * MS


def test_colocated_worker_and_server_exchange_through_memory():
    result = run(ps_job(2, 2, exchange={"colocated": True}), make_trace([[1000, 1000]]), rails(2, 2), fabric=Ideal())
    hosts = {(row["src"][:2], row["dst"][:2]) for row in rows(result.messages)}
    assert hosts == {("h0", "h1"), ("h1", "h0")} and len(rows(result.messages)) == 4


def test_stall_error_names_host_and_cards_of_a_push():
    case = scenario(ps_job(2), topology=rails(3, 2))
    with pytest.raises(
        StallError, match=r"worker 0 on h0 waits.*push of tensor 1 part 0, h0.nic1 -> h2.nic1 \(under way\)"
    ):
        simulate(case, make_trace([[10, 10]]), fabric=Ideal(swallow=lambda number: number > 0))


def test_stall_error_names_host_and_cards_of_a_ring_segment():
    case = scenario(ring_job(3), topology=rails(3, 2), transport="dlcp", link={"loss": 0.9999999})
    says = r"worker 0 on h0 waits for all layers .*reduce_scatter of part 1, h0.nic1 -> h1.nic1 \(under way\)"
    with pytest.raises(StallError, match=says):
        simulate(case, make_trace([[1000]]))


# --- traffic ----------------------------------------------------------------------------------------------------------


def case(*traffic: dict[str, Any], **fields: Any) -> Any:
    named = [{"name": f"t{number}", **table} for number, table in enumerate(traffic)]
    return build_scenario({"name": "case", "topology": rails(4, 2), "traffic": named, **fields})


def by_card(made: Any, network: Any) -> tuple[Flows, list[str], list[str]]:
    """All flows in one batch, and the names of the cards they go from and to."""
    (flows,) = flows_of(made, 0, network)
    src, dst = flow_ends(flows, network.cards)
    return flows, [network.names[card] for card in src], [network.names[card] for card in dst]


def network_of(made: Any) -> Any:
    return build_network(made.topology, made.link, made.link_override)


def test_flow_number_selects_the_cards_of_a_flow():
    made = case({"kind": "incast", "size": "1MB", "fan_in": 3, "receiver": "h1", "rounds": 2, "period": "1ms"})
    flows, src, dst = by_card(made, network_of(made))
    assert flows.dst.tolist() == [1] * 6 and flows.src.tolist() == [0, 2, 3] * 2, "hosts, not cards"
    assert src == ["h0.nic0", "h2.nic1", "h3.nic0", "h0.nic1", "h2.nic0", "h3.nic1"]
    assert dst == [f"h1.nic{number % 2}" for number in range(6)]


def test_all_to_all_uses_every_card_equally():
    """Each of seven hosts with three cards sends and receives two flows per card in every round."""
    made = case({"kind": "all_to_all", "size": "1kB", "rounds": 2, "period": "1us"}, topology=rails(7, 3))
    _, src, dst = by_card(made, network_of(made))
    both = Counter(src), Counter(dst)
    assert set(both[0].values()) == set(both[1].values()) == {2 * 6 // 3} and len(both[0]) == 21


def test_dependent_flows_stay_on_one_card():
    made = case({"kind": "all_to_all", "size": "1kB", "order": "shifts"}, topology=rails(5, 2))
    flows, src, dst = by_card(made, network_of(made))
    assert all(dst[before] == src[after] for before, after in flows.edges.tolist()) and len(flows.edges) == 15
    assert {name[-4:] for name in src} == {"nic0", "nic1"}
    assert simulate(made).summary["totals"]["finished"]


def test_triggered_matrix_flows_use_the_card_of_the_first_flow(tmp_path):
    """Flows 11 and 12 fire the barrier that starts 13, which starts 14; all use the card of flow 11."""
    (tmp_path / "a.cm").write_text(
        "Nodes 4\nConnections 5\nTriggers 2\n3->0 id 14 trigger 7 size 5000\n0->2 id 20 start 0 size 9000\n"
        "0->1 id 11 start 0 size 2000 recv_done_trigger 1\n2->1 id 12 start 50000000 size 3000 recv_done_trigger 1\n"
        "1->3 id 13 trigger 1 size 4000 recv_done_trigger 7\ntrigger id 1 barrier 2\ntrigger id 7 oneshot\n"
    )
    result = simulate(case({"kind": "matrix", "file": str(tmp_path / "a.cm"), "start_unit": "ps"}))
    found = {row["part"]: row for row in rows(result.messages)}
    assert {part: (row["src"], row["dst"]) for part, row in found.items()} == {
        11: ("h0.nic1", "h1.nic1"), 12: ("h2.nic1", "h1.nic1"), 13: ("h1.nic1", "h3.nic1"),
        14: ("h3.nic1", "h0.nic1"), 20: ("h0.nic0", "h2.nic0"),
    }  # fmt: skip
    assert found[13]["start_ps"] == found[12]["end_ps"] + h
    ideal = dict(zip(result.messages["part"].to_pylist(), result.flows["ideal_ps"].to_pylist(), strict=True))
    assert {part: row["end_ps"] - row["start_ps"] for part, row in found.items()} == ideal


def test_poisson_load_counts_all_cards_of_a_host():
    """At the same load, two cards double the flow rate, and a ten times slower card adds a tenth."""
    web = {"kind": "poisson", "sizes": "100kB", "load": 0.5}
    override = [{"between": ["h0.nic1", "rail0_1"], "rate": "10Gbps"}]
    counts = []
    for cards, more in ((1, {}), (2, {}), (2, {"link_override": override})):
        made = case(web, topology=rails(4, cards), duration="20ms", **more)
        counts.append(
            np.bincount(np.concatenate([flows.src for flows in flows_of(made, 0, network_of(made))]), minlength=4)
        )
    expected = 0.5 * 100e9 / 8 / 100e3 * 0.02  # 1250 flows of one card; five standard deviations are 177
    assert np.abs(counts[0] - expected).max() < 5 * expected**0.5
    assert np.abs(counts[1] - 2 * expected).max() < 5 * (2 * expected) ** 0.5
    assert abs(counts[2][0] - 1.1 * expected) < 5 * (1.1 * expected) ** 0.5


def test_traffic_refuses_card_names_as_hosts():
    with pytest.raises(ScenarioError, match=r'traffic\[0\].hosts: names unknown hosts \(got "h1.nic0"\)'):
        case({"kind": "permutation", "size": "1kB", "hosts": ["h0", "h1.nic0"]})
    made = case({"kind": "permutation", "size": "1kB", "hosts": ["h0", "h3"]})
    (flows,) = flows_of(made, 0, network_of(made))
    assert sorted(flows.src.tolist()) == [0, 3]
