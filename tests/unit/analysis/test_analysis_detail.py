"""Details of runs, worked by hand: useful share of links, time-outs and the tail, classes, completion from release."""

from __future__ import annotations

from typing import Any

import pytest

from gradwire.analysis.comparison.detailed_metrics import detail_rows, detailed_metrics
from gradwire.analysis.links import bundles, busiest_upstream
from gradwire.result_store.result import Result
from gradwire.result_store.table_schema import TABLES
from gradwire.sim.simulate import simulate
from tests.support.analysis_cases import messages, small_result
from tests.support.sim_cases import make_trace, ring_job, scenario


def _table(name: str, rows: list[dict[str, Any]]) -> dict[str, list[Any]]:
    return {column: [row[column] for row in rows] for column in TABLES[name]} if rows else {}


def _two_racks(**engine: Any) -> Result:
    """h0 and h1 on leaf0, h2 on leaf1, two spines. Message 0, h0 to h2: 10 packets, sent 14 times: one dropped at h0
    itself, two at the spine for leaf1, one lost on the link to h2; one packet is never delivered. Message 1, h1 to h0:
    10 packets, sent once."""
    common = {"job": "j", "iteration": 0, "tensor": 0, "layer": 0, "part": 0, "kind": "push", "bytes": 1000, "packets": 10,
              "priority": 0, "start_ps": 0, "released_ps": 0, "end_ps": 100, "bound": 0.1, "share": 0.1, "marked": 0, "trimmed": 0,
              "timeouts": 0}  # fmt: skip
    rows = [
        {**common, "message": 0, "src": "h0", "dst": "h2", "received_bytes": 900, "lost_bytes": 100, "retransmitted": 4,
         "sent_packets": 14},
        {**common, "message": 1, "src": "h1", "dst": "h0", "received_bytes": 1000, "lost_bytes": 0, "retransmitted": 0,
         "sent_packets": 10},
    ]  # fmt: skip
    places = [("h0->leaf0", "tail"), ("spine0->leaf1", "tail"), ("spine1->leaf1", "tail"), ("leaf1->h2", "link_loss")]
    drops = [
        {"message": 0, "packet": 3, "port": port, "time_ps": 1, "cause": cause, "important": True, "priority": 0}
        for port, cause in places
    ]
    drops.append({**drops[1], "packet": -1})  # an acknowledgement
    sizes = {"h0->leaf0": 14, "h1->leaf0": 10, "h2->leaf1": 1, "leaf0->spine0": 9, "leaf0->spine1": 5, "leaf0->h0": 10,
             "spine0->leaf1": 4, "spine1->leaf1": 7, "leaf1->h2": 11}  # fmt: skip
    ports = [{**dict.fromkeys(TABLES["ports"], 0), "port": port, "bytes": size} for port, size in sizes.items()]
    missing = [{"message": 0, "packet": 9, "packets": 1, "offset": 900, "bytes": 100}]
    tables = {"messages": rows, "drops": drops, "ports": ports, "missing": missing}
    return Result.build({"name": "r", "engine": engine}, {name: _table(name, each) for name, each in tables.items()})


def test_useful_share_of_links_matches_hand_computed_values():
    """Of message 0, 13 packets leave h0, 11 reach h2's link, and 9 are useful."""
    found = {each.name: (each.sent, each.useful, each.busiest, each.upstream) for each in bundles(_two_racks())}
    assert found == {
        "h0->leaf0": (13, 9, "h0->leaf0", True),
        "leaf0->*": (13, 9, "leaf0->spine0", True),
        "*->leaf1": (11, 9, "spine1->leaf1", True),
        "leaf1->h2": (11, 9, "leaf1->h2", False),
        "h1->leaf0": (10, 10, "h1->leaf0", True),
        "leaf0->h0": (10, 10, "leaf0->h0", False),
    }
    busiest = busiest_upstream(_two_racks())
    assert busiest is not None and (busiest.busiest, busiest.share) == ("leaf0->spine0", 9 / 13)


def test_useful_share_is_unknown_on_the_testbed():
    """Not all drops of a real network are known."""
    assert bundles(_two_racks(kind="emulation")) == []


def test_detailed_metrics_match_hand_computed_values():
    """Messages 2 and 4 had time-outs, message 2 is the slowest push, and the pull is the slowest message."""
    found = detailed_metrics(Result.build({"name": "r"}, {"messages": messages()}), "j")
    assert dict(found.again) == {"push": pytest.approx(3 / 30), "pull": 0.0}
    assert (found.timed_out, found.messages, found.timeouts) == (2, 5, 3)
    assert found.tail_timed_out == 0.0
    assert (found.from_ready.count, found.from_ready.mean_ps, found.from_ready.max_ps) == (4, 25.0, 40)
    assert (found.from_release.mean_ps, found.from_release.p50_ps, found.from_release.max_ps) == (19.5, 10, 40)


def test_tail_share_counts_slowest_messages_with_timeouts():
    """The slowest message had a time-out; completion times are split by priority class."""
    table = messages(timeouts=[0, 0, 0, 1, 0], priority=[0, 0, 3, 3, 0])
    found = detailed_metrics(Result.build({"name": "r"}, {"messages": table}), "j")
    assert found.tail_timed_out == 1.0
    assert {each: times.max_ps for each, times in found.by_class.items()} == {0: 20, 3: 40}
    cells = {row.label: row.cells for row in detail_rows([found])}
    assert cells["  of the slowest 1 %"] == ["100 %"] and cells["messages with a time-out"] == ["1"]


def test_unknown_timeouts_are_printed_as_dash():
    """The kernel does not report time-outs."""
    found = detailed_metrics(
        Result.build({"name": "r"}, {"messages": messages(timeouts=[-1] * 5, released_ps=[-1] * 5)}), "j"
    )
    assert (found.timed_out, found.timeouts, found.from_release.count) == (-1, -1, 0)
    assert {row.label: row.cells for row in detail_rows([found])}["messages with a time-out"] == ["-"]


def test_bus_bandwidth_counts_time_under_way_once():
    """Two ranks send 6,000 bytes: under way for 30 ps from 0, with overlaps, and for 10 ps from 100."""
    rows = messages(kind=["all_gather"] * 5, src=["h0", "h1"] * 2 + ["h0"], bytes=[1000, 2000, 1000, 2000, 9], start_ps=[0, 10, 12, 100, 0],
                    end_ps=[20, 30, 15, 110, -1])  # fmt: skip
    details = detailed_metrics(small_result(rows), "j")
    assert details.busbw == {"all_gather": pytest.approx(6000 / 2 / 40e-12)}
    (row,) = [row for row in detail_rows([details]) if "busbw" in row.label]
    assert (row.label, row.cells) == ("all-gather busbw", ["75,000 GB/s"])
    assert detailed_metrics(small_result(messages()), "j").busbw == {}, "parameter servers have no bus bandwidth"


def test_bus_bandwidth_of_a_ring_is_that_of_nccl_tests():
    """A reduce-scatter of S bytes over n ranks in time t: S / t * (n - 1) / n."""
    ranks, elements = 4, 20_000
    result = simulate(scenario(ring_job(ranks), link={"rate": "10Gbps"}), trace=make_trace([[elements]]))
    rows = [row for row in result.messages.to_pylist() if row["kind"] == "reduce_scatter"]
    seconds = (max(row["end_ps"] for row in rows) - min(row["start_ps"] for row in rows)) / 1e12
    busbw = detailed_metrics(result, "job0").busbw["reduce_scatter"]
    assert busbw == pytest.approx(4 * elements / seconds * (ranks - 1) / ranks) and busbw < 1.25e9


def test_bus_bandwidth_is_that_of_a_rank_not_of_its_ports_or_of_senders_only():
    """Of a rank with two ports, both count as one; a rank that receives counts as well: 6,000 bytes, three ranks."""
    rows = messages(kind=["context_parallel"] * 5, src=["h0.gpu0.nic0", "h0.gpu0.up", "h1.nic0", "h1.nic1", "h1.nic1"],
                    dst=["h1.nic0", "h0.gpu1.up", "h0.gpu0.nic0", "h0.gpu0.nic0", "h0.gpu1.nic0"],
                    bytes=[1000, 2000, 1000, 1500, 500], start_ps=[0] * 5, end_ps=[40] * 5)  # fmt: skip
    assert detailed_metrics(small_result(rows), "j").busbw == {"context_parallel": pytest.approx(6000 / 3 / 40e-12)}


@pytest.mark.parametrize("cards", [1, 2])
def test_bus_bandwidth_grows_with_the_cards_of_a_rank(cards: int):
    """Two hosts on rails: S / t * (n - 1) / n from the first start to the last end, for any number of cards."""
    topology = {"kind": "rail", "hosts": 2, "cards": cards, "hosts_per_group": 2, "spines": 1}
    result = simulate(scenario(ring_job(2), topology=topology, link={"rate": "10Gbps"}), trace=make_trace([[200_000]]))
    rows = [row for row in result.messages.to_pylist() if row["kind"] == "all_gather"]
    seconds = (max(row["end_ps"] for row in rows) - min(row["start_ps"] for row in rows)) / 1e12
    busbw = detailed_metrics(result, "job0").busbw["all_gather"]
    assert busbw == pytest.approx(4 * 200_000 / seconds / 2) and 0.9 < busbw / (1.25e9 * cards) < 1
