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


def test_the_fourth_packet_is_answered_for_four():
    flow = Flow()
    flow.pull()
    assert [flow.arrive(n).count for n in range(3)] == [0, 0, 0]
    answer = flow.arrive(3)
    assert (answer.kind, answer.argument, answer.echo) == (ACK, 4, 0)
    before = flow.sender.in_flight
    flow.hear(3, answer)
    assert flow.sender.una == 4 and flow.sender.in_flight == before - 4


def test_what_came_out_of_order_is_told_one_by_one():
    flow = Flow()
    flow.pull()
    for n in (9, 11, 14):
        assert flow.arrive(n).count == 0
    answer = flow.arrive(12)
    assert flow.store_bitmap(answer) == [9, 11, 12, 14]
    flow.hear(12, answer)
    assert flow.packets_in("acknowledged") == [9, 11, 12, 14] and flow.sender.una == 0


@pytest.mark.parametrize("how", ["mark", "asked", "again", "far", "last"])
def test_what_is_answered_at_once_tells_what_waits(how):
    """Packet 2 waits. Then comes a marked one, one that asks, 1 again, one that does not fit, or the last."""
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


def test_what_waits_too_long_is_told_and_no_delay_measured():
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


def test_places_are_counted_through():
    """Beyond 8192 packets the place in an answer begins anew."""
    flow = Flow(packets=20_000)
    flow.sender.una = flow.sender.nxt = 8 * PLACES + 90
    flow.sender.cwnd = 50 << SHIFT
    out = flow.pull()
    assert out[0] == 8282
    for n in (8285, 8287, 8290):
        assert flow.arrive(n).count == 0
    flow.hear(8289, flow.arrive(8289))
    assert flow.packets_in("acknowledged") == [8285, 8287, 8289, 8290]


def test_a_sender_asks_for_an_answer_where_it_cannot_go_on():
    """With the last packet that the window takes, the last of the message, and one that is sent again."""
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
def test_at_random_the_sender_knows_what_has_arrived(seed):
    """Packets are lost, doubled and overtake each other. Once nothing waits at the receiver, what the sender has heard of
    is what has arrived; in the end that is everything."""
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


def test_a_packet_for_a_pull_after_the_first_window():
    """54 packets are 1.5 products of 100 Gbps and 12 us; pulls that are lost or overtaken do no harm."""
    flow = Flow(every=1, control="receiver")
    assert len(flow.pull()) == 54
    for number, more in ((1, 1), (4, 3), (2, 0), (5, 1)):
        flow.control(PULL, 0, number)
        assert len(flow.pull()) == more


def test_a_receiver_asks_for_what_is_still_to_be_sent():
    """Of 60 packets 54 go unasked: six arrivals ask for one each. A header asks for its packet once more."""
    flow = Flow(packets=60, every=4, control="both")
    flow.pull()
    asked = []
    for n in range(20):
        said = flow.header(n) if n == 3 else flow.data(n)
        asked.append(said.pulls)
        flow.receiver.pulls_sent += said.pulls  # the host sends them
    assert asked == [1] * 7 + [0] * 13


def test_time_outs_give_credit_back():
    flow = Flow(every=1, control="receiver")
    out = flow.pull()
    flow.fire()
    assert flow.sender.credit == 54 and flow.pull() == out


def test_without_pulls_one_packet_goes_unasked():
    """Everything has been answered, and the pulls for what is left were lost."""
    flow = Flow(packets=100, every=1, control="receiver")
    for n in flow.pull():
        flow.hear(n, flow.data(n), now=TRIP)
    assert flow.sender.in_flight == 0 and flow.pull() == []
    flow.fire()
    assert flow.pull() == [54]


@pytest.mark.slow
@pytest.mark.parametrize("control", ["receiver", "both"])
@pytest.mark.parametrize("every", [1, 4])
def test_receivers_share_out_their_line(control, every):
    """16 hosts send 1 MB each to one: its line is busy from the first packet to the last. With credit no more is cut than
    the first windows, 21 packets each (1.5 times 4.674 us); with windows alone much more is."""
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


def test_a_quarter_of_the_acknowledgements():
    """One flow alone, whose window is 1.5 products: an acknowledgement for four packets, and a few more at the end."""
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
