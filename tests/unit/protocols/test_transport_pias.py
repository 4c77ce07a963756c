"""PIAS: priorities by bytes sent, worked by hand, and that short flows pass long ones."""

from __future__ import annotations

import pytest
from transport_bench import GBPS, US, Flow, play, star_of

from gradwire.jit.records.packets import priority_of, with_priority
from gradwire.protocols.transports.tcp.pias import Pias
from gradwire.protocols.transports.tcp.pias import Pias as Table
from gradwire.scenarios.errors import ScenarioError
from gradwire.scenarios.loading.load import build_scenario
from gradwire.scenarios.validation import scenario as checks
from gradwire.testing import FlowHarness, transport

KB = 1000


def send(flow, count):
    """Let the sender send; the priority of every packet."""
    priorities = []
    for _ in range(count):
        assert len(flow.pull(most=1)) == 1
        priorities.append(priority_of(flow.sender.data_header))
        flow.sender.sent += 1  # as the host does
    return priorities


def test_priority_drops_by_one_class_at_each_threshold():
    """Thresholds are 2, 3 and 7 KB. Two packets of 1000 bytes go into class 0, one into 1, four into 2, the rest into
    3."""
    flow = FlowHarness(Pias, 100, payload=KB, initial_window=20, thresholds=(2 * KB, 3 * KB, 7 * KB))
    assert send(flow, 12) == [0, 0, 1, 2, 2, 2, 2, 3, 3, 3, 3, 3]


def test_threshold_inside_a_packet_applies_from_the_next_packet():
    flow = FlowHarness(Pias, 100, payload=KB, initial_window=20, thresholds=(1, 2500))
    assert send(flow, 5) == [0, 1, 1, 2, 2]


def test_thresholds_within_one_packet_are_crossed_together():
    flow = FlowHarness(Pias, 100, payload=KB, initial_window=20, thresholds=(100, 200, 1500))
    assert send(flow, 4) == [0, 2, 3, 3]


def test_demotion_starts_at_the_message_priority_and_ends_at_seven():
    flow = FlowHarness(Pias, 100, payload=KB, initial_window=20, thresholds=(KB, 2 * KB, 3 * KB))
    flow.sender.data_header = with_priority(0, 5)
    assert send(flow, 5) == [5, 6, 7, 7, 7]


def test_retransmitted_bytes_count_towards_thresholds():
    flow = FlowHarness(Pias, 100, payload=KB, initial_window=4, thresholds=(4 * KB, 5 * KB))
    assert send(flow, 4) == [0, 0, 0, 0]
    for sequence in (1, 2, 3):
        flow.ack(sequence, 0, now=10 * US)
    assert send(flow, 2) == [1, 2]  # the packet that was lost, and a new one


def test_only_the_first_packet_of_a_lower_class_gets_a_pacing_gap():
    """The gap slightly exceeds the packet's serialisation time, so that the flow changes queues in its host."""
    flow = FlowHarness(Pias, 100, payload=KB, initial_window=20, thresholds=(2 * KB,))
    gaps = []
    for _ in range(4):
        send(flow, 1)
        gaps.append(flow.sender.gap)
    assert gaps[0] == gaps[1] == gaps[3] == 0
    assert 0 < gaps[2] - flow.sender.ps_per_byte < 1 << 16


def test_short_flow_overtakes_a_demoted_flow_at_the_host():
    """One host sends a long message and, 1 ms later, a short one to another host. The long message, by then in class 1,
    waits until the short one in class 0 has been sent, which takes at most 10 % longer than alone. With DCTCP the
    messages take turns."""
    flows = [Flow(1, 0, 20_000_000), Flow(1, 2, 400_000, at=1000 * US)]
    settings = {"initial_window": 100}
    sinking = play(star_of(3, rate=10 * GBPS), flows, transport("pias", thresholds=["500KB"], **settings), buffer=10**7)
    turns = play(star_of(3, rate=10 * GBPS), flows, transport("dctcp", **settings), buffer=10**7)
    alone = 400_000 * 800
    assert alone < sinking.ends[1] - flows[1].at < 1.1 * alone
    assert turns.ends[1] - flows[1].at > 1.9 * alone
    assert sinking.ends[0] < 1.01 * turns.ends[0]


def test_short_flows_overtake_demoted_flows_at_a_switch_port():
    """Four long flows fill the port to host 0 up to the threshold; a short flow starts every 500 us."""
    long = [Flow(host, 0, 10_000_000) for host in range(1, 5)]
    short = [Flow(5, 0, 40_000, at=2_000 * US + n * 500 * US) for n in range(10)]
    ends = {}
    for kind, more in (("pias", {"thresholds": ["200KB"]}), ("dctcp", {})):
        outcome = play(
            star_of(6, rate=10 * GBPS), long + short, transport(kind, **more), buffer=1_000_000, threshold=100_000
        )  # fmt: skip
        took = [outcome.ends[4 + n] - flow.at for n, flow in enumerate(short)]
        ends[kind] = sum(took) / len(took)
        assert max(outcome.ends) < 1.05 * 41e6 * 800
    assert ends["pias"] < 0.6 * ends["dctcp"]


def test_default_thresholds_match_the_authors_scripts():
    packets = (1059, 1412, 1643, 1869, 2008, 2115, 2184)
    assert Table(kind="pias").thresholds == tuple(1460 * count for count in packets)


@pytest.mark.parametrize("sizes", [["2KB", "1KB"], ["1KB", "1KB"], [f"{n}KB" for n in range(1, 9)]])
def test_non_increasing_or_excess_thresholds_are_rejected(sizes):
    tables = {
        "name": "x", "topology": {"kind": "star", "hosts": 4}, "transport": {"kind": "pias", "thresholds": sizes},
        "job": [{"name": "j", "trace": "resnet50", "workers": 2, "exchange": {"kind": "ring"}}],
    }  # fmt: skip
    with pytest.raises(ScenarioError, match=r"transport\.thresholds.*not rising, or too many"):
        build_scenario(tables)


@pytest.mark.parametrize(("queues", "told"), [(1, True), (2, False)])
def test_check_warns_about_single_queue_and_missing_ecn_threshold(queues, told):
    tables = {
        "name": "x", "topology": {"kind": "star", "hosts": 4}, "transport": "pias", "switch": {"queues": queues},
        "job": [{"name": "j", "trace": "resnet50", "workers": 2, "exchange": {"kind": "ring"}}],
    }  # fmt: skip
    remarks = checks.remarks(build_scenario(tables))
    assert any("no lower priority" in remark for remark in remarks) == told
    assert any("transport is pias but switch.ecn_threshold is not set" in remark for remark in remarks)
