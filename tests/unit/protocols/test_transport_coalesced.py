"""NSCC whose receivers answer several packets at once, and give credit: by hand, at random, and on a network."""

from __future__ import annotations

import random

import pytest
from transport_bench import MS, US, incast, play, star_of

from gradwire.jit.records.constants import ACK, BITMAP, PULL
from gradwire.protocols.transports.common.window import SHIFT
from gradwire.protocols.transports.ultra_ethernet.coalesced_acks import LATE, PLACES, ROOM
from gradwire.protocols.transports.ultra_ethernet.nscc import Nscc
from gradwire.scenarios.schema.network.network import Switch
from gradwire.sim.engine.fabric import Fabric
from gradwire.testing import FlowHarness, transport
from gradwire.topology.routing import build_routing

TRIP = 12 * US


class Flow(FlowHarness):
    """Both ends; answers reach the sender when the test says so."""

    def __init__(self, packets=4000, every=4, **fields):
        super().__init__(Nscc, packets, base_rtt=TRIP, ack_every=every, **fields)

    def arrive(self, sequence, ce=0, now=0, asks=0):
        """A packet arrives; `asks`: its sender wants an answer."""
        self.receiver.last_piggyback = asks
        return self.data(sequence, ce, now)

    def hear(self, sequence, answer, now=0):
        """What was answered to a packet comes back."""
        assert answer.count == 1
        self.control(answer.kind, sequence, answer.argument, answer.echo, now)

    def store_bitmap(self, answer):
        """The packets of an answer of kind BITMAP, for messages of up to 8192 packets."""
        assert answer.kind == BITMAP
        first = (answer.argument >> (ROOM + 1)) * 8
        return [first + i for i in range(ROOM) if answer.argument >> i & 1]


def test_fourth_packet_triggers_one_acknowledgement_for_four():
    flow = Flow()
    flow.pull()
    assert [flow.arrive(n).count for n in range(3)] == [0, 0, 0]
    answer = flow.arrive(3)
    assert (answer.kind, answer.argument, answer.echo) == (ACK, 4, 0)
    before = flow.sender.in_flight
    flow.hear(3, answer)
    assert flow.sender.una == 4 and flow.sender.in_flight == before - 4


def test_bitmap_acknowledges_each_out_of_order_packet():
    flow = Flow()
    flow.pull()
    for n in (9, 11, 14):
        assert flow.arrive(n).count == 0
    answer = flow.arrive(12)
    assert flow.store_bitmap(answer) == [9, 11, 12, 14]
    flow.hear(12, answer)
    assert flow.packets_in("acknowledged") == [9, 11, 12, 14] and flow.sender.una == 0


@pytest.mark.parametrize("how", ["mark", "asked", "again", "far", "last"])
def test_immediate_acknowledgement_covers_pending_packets(how):
    """An immediate acknowledgement also covers packet 2 or 3, which is pending. Its cause is a marked packet, a
    request, a duplicate of 1, a packet outside the bitmap, or the last packet."""
    flow = Flow(packets=20)
    flow.pull()
    flow.hear(0, flow.arrive(0, asks=1))
    flow.hear(1, flow.arrive(1, asks=1))
    if how == "last":
        for n in range(3, 20):
            flow.hear(n, flow.arrive(n, asks=1))
        answer, sequence = flow.arrive(2), 2
    else:
        assert flow.arrive(3).count == 0
        sequence = {"mark": 5, "asked": 5, "again": 1, "far": 12}[how]
        answer = flow.arrive(sequence, ce=int(how == "mark"), asks=int(how == "asked"))
    assert answer.echo == (how == "mark")
    flow.hear(sequence, answer)
    expected = set(range(20)) if how == "last" else {0, 1, 3, sequence}
    assert set(flow.packets_in("acknowledged")) == expected
    assert flow.sender.is_done == (how == "last")


def test_late_acknowledgement_reports_pending_packets_without_delay_sample():
    flow = Flow()
    flow.pull()
    assert flow.arrive(1, now=TRIP // 2).count == 0
    assert flow.receiver.timer == TRIP // 2 + TRIP
    answer = flow._reply(flow.run["on_late"](flow.memory, flow.k, flow.r, TRIP // 2 + TRIP))
    assert flow.store_bitmap(answer) == [1] and answer.argument & LATE
    before = flow.sender.base_rtt, flow.sender.average_delay, flow.sender.cwnd
    flow.hear(1, answer, now=3 * TRIP)
    assert (
        flow.packets_in("acknowledged") == [1]
        and (flow.sender.base_rtt, flow.sender.average_delay, flow.sender.cwnd) == before
    )
    assert flow._reply(flow.run["on_late"](flow.memory, flow.k, flow.r, 9 * TRIP)).count == 0  # nothing waits now


def test_bitmap_positions_wrap_after_8192_packets():
    """The position in a bitmap starts again at 0 after 8192 packets."""
    flow = Flow(packets=20_000)
    flow.sender.una = flow.sender.nxt = 8 * PLACES + 90
    flow.sender.cwnd = 50 << SHIFT
    out = flow.pull()
    assert out[0] == 8282
    for n in (8285, 8287, 8290):
        assert flow.arrive(n).count == 0
    flow.hear(8289, flow.arrive(8289))
    assert flow.packets_in("acknowledged") == [8285, 8287, 8289, 8290]


def test_sender_requests_acknowledgement_at_window_end_and_message_end():
    """The sender requests an acknowledgement with the last packet of the window or message, and with
    retransmissions."""
    flow = Flow(packets=7)
    flow.sender.cwnd = 3 << SHIFT
    asked = {}

    def send(now):
        for _ in range(10):
            for n in flow.pull(now, most=1):
                asked.setdefault(n, []).append(flow.sender.piggyback)

    send(0)
    assert asked == {0: [0], 1: [0], 2: [1]}
    flow.hear(2, flow.arrive(2, asks=1))
    flow.sender.cwnd = 10 << SHIFT
    send(0)
    assert asked == {0: [0], 1: [0], 2: [1], 3: [0], 4: [0], 5: [0], 6: [1]}
    flow.fire()
    send(MS)
    assert [n for n, each in asked.items() if each[1:] == [1]] == [0, 1, 3, 4] and flow.sender.lost_packets == 2


@pytest.mark.parametrize("seed", range(20))
def test_sender_state_matches_arrivals_under_random_loss_and_reordering(seed):
    """Packets are lost, duplicated and reordered at random. When the receiver has nothing pending, the acknowledged
    packets equal the arrived ones; in the end all have arrived."""
    rng = random.Random(seed)
    flow = Flow(packets=600, every=rng.choice((2, 4, 16)))
    under_way, arrived, now, answers = [], set(), 0, 0
    while not flow.sender.is_done:
        now += US
        for _ in range(rng.randrange(8)):
            for n in flow.pull(now, most=1):
                if rng.random() > 0.1:
                    under_way += [(n, flow.sender.piggyback)] * rng.choice((1, 1, 1, 2))
        if under_way:
            n, asks = under_way.pop(min(rng.randrange(6), len(under_way) - 1))
            arrived.add(n)
            answer = flow.arrive(n, ce=int(rng.random() < 0.05), now=now, asks=asks)
            if answer.count:
                answers += 1
                flow.hear(n, answer, now + US // 2)  # nothing comes back in the instant in which it was sent
                assert set(flow.packets_in("acknowledged")) == arrived
        elif flow.sender.timer and not flow.sender.is_done:
            now = max(now, flow.fire())
        assert set(flow.packets_in("acknowledged")) <= arrived
    assert flow.packets_in("acknowledged") == list(range(600))
    assert answers < 1.2 * 600


# --- credit -------------------------------------------------------------------------------------------------------------


def test_each_pull_releases_one_packet_after_the_first_window():
    """The first window is 54 packets, 1.5 bandwidth-delay products of 100 Gbps and 12 us. Lost and reordered pulls do
    no harm."""
    flow = Flow(every=1, control="receiver")
    assert len(flow.pull()) == 54
    for number, more in ((1, 1), (4, 3), (2, 0), (5, 1)):
        flow.control(PULL, 0, number)
        assert len(flow.pull()) == more


def test_receiver_pulls_only_packets_beyond_the_first_window():
    """The sender sends 54 of 60 packets without pulls, so six arrivals cause one pull each. A trimmed header causes
    one more pull, for its packet."""
    flow = Flow(packets=60, every=4, control="both")
    flow.pull()
    asked = []
    for n in range(20):
        said = flow.header(n) if n == 3 else flow.data(n)
        asked.append(said.pulls)
        flow.receiver.pulls_sent += said.pulls  # the host sends them
    assert asked == [1] * 7 + [0] * 13


def test_timeout_restores_credit():
    flow = Flow(every=1, control="receiver")
    out = flow.pull()
    flow.fire()
    assert flow.sender.credit == 54 and flow.pull() == out


def test_timeout_sends_one_packet_after_all_pulls_are_lost():
    """All packets are acknowledged, and the pulls for the rest were lost."""
    flow = Flow(packets=100, every=1, control="receiver")
    for n in flow.pull():
        flow.hear(n, flow.data(n), now=TRIP)
    assert flow.sender.in_flight == 0 and flow.pull() == []
    flow.fire()
    assert flow.pull() == [54]


@pytest.mark.slow
@pytest.mark.parametrize("control", ["receiver", "both"])
@pytest.mark.parametrize("every", [1, 4])
def test_receiver_credit_fills_the_link_with_few_trimmed_packets(control, every):
    """Sixteen hosts send 1 MB each to one host, whose link is busy from the first packet to the last. With credit at
    most the first windows are trimmed, 21 packets each (1.5 times 4.674 us); with windows alone the switch trims more
    than twice as many."""
    network, flows = star_of(17), incast(16, 1_000_000)
    cut = {}
    for who in (control, "sender"):
        table = transport("nscc", control=who, ack_every=every)
        outcome = play(network, flows, table, buffer=524_288, threshold=16_384, trim_threshold="33232B")
        cut[who] = sum(outcome.again)
        if who == control:
            last = 1_000_000 - 244 * 4096 + 58
            wire = 16 * (244 * 4154 + last)
            least = 2 * US + (4154 + wire) * 80
            headers = cut[who] * 64 * 80
            assert least <= max(outcome.ends) <= (least + headers) * 1.01
    assert cut[control] <= 16 * 21 < cut["sender"] / 2


def test_ack_every_4_sends_a_quarter_of_the_acknowledgements():
    """One flow runs alone with a window of 1.5 bandwidth-delay products. Four packets cause one acknowledgement, with
    a few more at the end."""
    sent, ends = {}, {}
    for every in (1, 4):
        network = star_of(2)
        fabric = Fabric(
            network, build_routing(network), switch=Switch(trim_threshold="100kB"), balancing="ecmp", seed=1,
            transports=[transport("nscc", ack_every=every, trimming=False)],
        )  # fmt: skip
        fabric.send(0, 0, 1, 4_096_000)
        ends[every] = [delivery.time_ps for _ in range(5) for delivery in fabric.run(fabric.now + MS)]
        sent[every] = int(fabric.finish().ports["packets"].sum())
        fabric.close()
    assert sent[1] == 4000 and 2500 <= sent[4] <= 2520
    assert ends[4][0] == pytest.approx(ends[1][0], rel=0.01)
