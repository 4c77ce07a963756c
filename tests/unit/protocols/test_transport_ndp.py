"""NDP by hand: the first window, answers and pulls, what is sent again, time-outs.

100 Gbps, packets of 4154 bytes on the wire, 332 320 ps each; base round trip 10 us: 31 packets hold it."""

from __future__ import annotations

import pytest
from transport_bench import MS, US

from gradwire.jit.records.constants import ACK, NACK, PULL
from gradwire.jit.records.packets import priority_of, with_priority
from gradwire.protocols.transports.ndp import Ndp
from gradwire.testing import FlowHarness

FIRST = 4


class Ndps(FlowHarness):
    """Both ends, and the receiving host's queue of pulls. A first window of four packets."""

    def __init__(self, packets, **fields):
        super().__init__(Ndp, packets, base_rtt=10 * US, **{"initial_window": FIRST} | fields)

    def arrives(self, sequence, cut=False, now=0):
        """A packet, or its header, reaches the receiver. Returns the kind of the answer and whether a pull was asked
        for."""
        said = self.header(sequence, now) if cut else self.data(sequence, now=now)
        self.receiver.queued_pulls += said.pulls
        return said.kind, said.pulls

    def pulled(self, lose=False, now=0):
        """The host sends the next pull."""
        assert self.receiver.queued_pulls > 0
        self.receiver.queued_pulls -= 1
        self.receiver.pulls_sent += 1
        if not lose:
            self.control(PULL, 0, self.receiver.pulls_sent, now=now)


def test_first_window_is_the_bandwidth_delay_product_plus_one_packet():
    flow = FlowHarness(Ndp, 100, base_rtt=10 * US)
    assert flow.pull() == list(range(32))


def test_message_below_the_first_window_is_sent_at_once():
    assert Ndps(3).pull() == [0, 1, 2]


def test_each_pull_releases_one_packet():
    flow = Ndps(10)
    assert flow.pull() == [0, 1, 2, 3]
    for sequence in range(3):
        assert flow.arrives(sequence) == (ACK, 1)
        flow.ack(sequence)
        assert flow.pull() == []
    flow.pulled()
    assert flow.pull() == [4]
    flow.pulled()
    assert flow.pull() == [5]


def test_next_pull_replaces_lost_pulls_and_late_pulls_have_no_effect():
    flow = Ndps(20)
    flow.pull()
    for sequence in range(4):
        flow.arrives(sequence)
    flow.pulled(lose=True)
    flow.pulled(lose=True)
    flow.pulled()
    assert flow.pull() == [4, 5, 6]
    flow.control(PULL, 0, 2)
    assert flow.pull() == []


def test_acknowledgements_carry_the_pull_count():
    flow = Ndps(20)
    flow.pull()
    flow.arrives(0)
    flow.pulled(lose=True)
    said = flow.data(1)
    assert (said.kind, said.argument) == (ACK, 1)
    flow.control(said.kind, 1, said.argument)
    assert flow.pull() == [4]


def test_trimmed_packets_are_nacked_and_retransmitted_before_new_packets():
    flow = Ndps(20)
    flow.pull()
    assert flow.arrives(0) == (ACK, 1)
    for sequence in (1, 3):
        assert flow.arrives(sequence, cut=True) == (NACK, 1)
        flow.control(NACK, sequence, 0)
    assert flow.pull() == []
    for _ in range(3):
        flow.pulled()
    assert flow.pull() == [1, 3, 4]


def test_pull_received_before_its_nack_releases_the_retransmission():
    flow = Ndps(4)
    flow.pull()
    flow.arrives(2, cut=True)
    flow.pulled()
    assert flow.pull() == []
    flow.control(NACK, 2, 1)
    assert flow.pull() == [2]


@pytest.mark.parametrize("cut", [0, 1, 3])
def test_receiver_requests_one_pull_per_packet_still_to_be_sent(cut):
    """The message has ten packets; `cut` of the first window are trimmed, so 6 + `cut` packets need a pull."""
    flow = Ndps(10)
    under_way, again, pulls = flow.pull(), set(range(cut)), 0
    while under_way:
        sequence = under_way.pop(0)
        kind, asked = flow.arrives(sequence, cut=sequence in again)
        assert (kind == NACK) == (sequence in again)
        again.discard(sequence)
        flow.control(kind, sequence, flow.receiver.pulls_sent)
        pulls += asked
        if flow.receiver.queued_pulls:
            flow.pulled()
        under_way += flow.pull()
    assert pulls == 6 + cut
    assert (flow.sender.is_done, flow.sender.timer) == (1, 0)


def test_queued_pulls_are_dropped_when_the_message_is_complete():
    flow = Ndps(6)
    flow.pull()
    for sequence in range(4):
        flow.arrives(sequence)
    assert flow.receiver.queued_pulls == 2
    flow.arrives(4)
    assert flow.receiver.is_done == 0
    assert flow.arrives(5) == (ACK, 0)
    assert (flow.receiver.is_done, flow.receiver.queued_pulls) == (1, 0)


def test_duplicate_packets_and_headers_are_acknowledged():
    flow = Ndps(20)
    flow.pull()
    flow.arrives(1)
    flow.arrives(0)
    assert flow.arrives(1, cut=True)[0] == ACK
    said = flow.data(1)
    assert said.kind == ACK


def test_each_packet_has_its_own_retransmission_timeout():
    """Packet 1 times out after 1 ms; packet 4, sent later, times out at 1.5 ms. No pull is needed."""
    flow = Ndps(20)
    assert flow.pull(0) == [0, 1, 2, 3]
    assert flow.sender.timer == MS
    flow.arrives(0)
    for sequence in (0, 2, 3):
        flow.ack(sequence, 0, now=10 * US)
    flow.pulled(now=MS // 2)
    assert flow.pull(MS // 2) == [4]
    assert flow.fire() == MS
    assert flow.pull(MS) == [1]
    assert flow.sender.timer == MS + MS // 2


def test_consecutive_timeouts_double_the_timeout():
    flow = Ndps(2, initial_window=2)
    flow.pull(0)
    times = []
    while len(times) < 3:
        now = flow.fire()
        if flow.pull(now):
            times.append(now)
    assert times == [MS, MS + 2 * MS, MS + 2 * MS + 4 * MS]


def test_sender_transmits_one_packet_after_a_timeout_if_all_pulls_are_lost():
    flow = Ndps(20)
    flow.pull(0)
    for sequence in range(4):
        flow.arrives(sequence)
        flow.ack(sequence, 0, now=10 * US)
    for _ in range(4):
        flow.pulled(lose=True)
    assert flow.pull(10 * US) == []
    now = flow.fire()
    if not flow.pull(now):
        now = flow.fire()
        assert flow.pull(now) == [4]
    assert now <= MS + 20 * US
    said = flow.data(4, now=now)
    flow.control(said.kind, 4, said.argument, now=now + 10 * US)
    assert flow.pull(now + 10 * US) == [5, 6, 7, 8]


@pytest.mark.parametrize("asked, below", [(0, 1), (6, 7), (7, 7)])
def test_below_control_lowers_the_priority_of_data_by_one_class(asked, below):
    for below_control in (True, False):
        flow = Ndps(2, below_control=below_control)
        flow.sender.data_header = with_priority(0, asked)
        flow.run["start"](flow.memory, flow.k, flow.f, 0)
        assert priority_of(flow.sender.data_header) == (below if below_control else asked)
