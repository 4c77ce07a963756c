"""The constant rate as a transport of its own: its pace to the picosecond, and that every message ends."""

from __future__ import annotations

import pytest
from transport_bench import GBPS, MS, US, Flow, incast, play, star_of

from gradwire.jit.records.constants import BLOCKED, STOP
from gradwire.protocols.transports.constant_rate import ConstantRate
from gradwire.testing import FlowHarness, transport

D = 4154 * 800  # a full packet at 10 Gbps


@pytest.mark.parametrize("share", [1.0, 0.5, 0.1])
def test_flow_sends_at_its_share_of_the_line_rate(share):
    """n packets take n - 1 gaps of d / share, two transmissions and two latencies."""
    n = 50
    outcome = play(star_of(2, rate=10 * GBPS), [Flow(1, 0, n * 4096)], transport("constant_rate", share=share))
    assert outcome.ends[0] == pytest.approx((n - 1) * D / share + 2 * D + 2 * US, rel=1e-5)
    assert (outcome.sent, outcome.again) == ([n], [0])


def test_sender_sends_each_packet_once_without_acknowledgements():
    flow = FlowHarness(ConstantRate, 5)
    assert flow.pull(7) == [0, 1, 2, 3, 4]
    assert flow.sender.timer == 7 + MS
    for sequence in range(4):
        assert flow.run["on_data"](flow.memory, flow.k, flow.r, sequence, 4096, 1, 0) == 0
    assert flow.data(4).kind == STOP
    flow.control(STOP, 4, 0, now=US)
    assert (flow.sender.is_done, flow.sender.timer) == (1, 0)


def test_sender_retransmits_all_packets_without_a_stop_packet():
    flow = FlowHarness(ConstantRate, 3, repeat_after=100 * US)
    flow.pull(0)
    now = flow.fire()
    assert now == 100 * US
    assert flow.pull(now) == [1, 2, 0]
    now = flow.fire()
    assert flow.pull(now) == [2, 0, 1]
    now = flow.fire()
    assert flow.pull(now) == [0, 1, 2]
    assert int(flow.run["pull"](flow.memory, flow.k, flow.f, now)) == BLOCKED


def test_receiver_stops_the_sender_at_the_loss_bound():
    flow = FlowHarness(ConstantRate, 4, allowed=4096)
    for sequence in (0, 2):
        assert flow.run["on_data"](flow.memory, flow.k, flow.r, sequence, 4096, 0, 0) == 0
    assert flow.data(3).kind == STOP
    assert flow.receiver.is_done == 1
    assert flow.run["on_data"](flow.memory, flow.k, flow.r, 1, 4096, 0, 0) == 0  # it crossed the Stop
    assert flow.data(0).kind == STOP  # a repetition


@pytest.mark.parametrize("bound", [0.0, 0.2])
def test_all_messages_complete_despite_packet_loss(bound):
    flows = incast(4, 200_000, bound=bound)
    outcome = play(star_of(5, loss=0.1), flows, transport("constant_rate", share=0.5), buffer=100_000)
    assert outcome.drops["tail"] > 0
    assert all(lost <= bound * 200_000 for lost in outcome.lost)


def test_synchronized_flows_complete_through_a_two_packet_queue():
    """Three hosts send at full rate into one port with a queue of two packets."""
    outcome = play(star_of(4), incast(3, 40 * 4096), transport("constant_rate", repeat_after="20us"), buffer=9_000)
    assert outcome.lost == [0, 0, 0]
    assert max(outcome.ends) < 100 * MS
