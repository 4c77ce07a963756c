"""Loss recovery against sequences worked by hand from RFC 6675 (NextSeg, rules 3 and 4) and RFC 6937.

Packets are numbered from 0, windows are in packets."""

from __future__ import annotations

from itertools import pairwise

import pytest
from transport_bench import MS, US

from gradwire.protocols.transports.common.window import SHIFT
from gradwire.protocols.transports.tcp.cubic import Cubic
from gradwire.protocols.transports.tcp.dctcp import Dctcp
from gradwire.protocols.transports.tcp.tcp_newreno import TcpNewReno
from gradwire.testing import FlowHarness, transport
from gradwire.testing.oracle import Case, MessageSpec, NetworkChange, first_difference, run_engine, run_oracle
from gradwire.topology import LinkSpec, star

KINDS = ("tcp_newreno", "dctcp", "cubic")


def sender(packets: int, owner=TcpNewReno, **settings) -> FlowHarness:
    return FlowHarness(owner, packets, **settings)


def send(flow: FlowHarness, now: int = 0) -> list[int]:
    """What the sender wants to send now, counted as a host does."""
    out = flow.pull(now)
    flow.sender.sent += len(out)
    return out


def without(lost: set[int], flow: FlowHarness, upto: int) -> list[list[int]]:
    """All that there is leaves; packets up to `upto` arrive but for the lost ones. What each answer makes it send."""
    send(flow)
    least = min(lost)
    sent = []
    for sequence in [each for each in range(upto) if each not in lost]:
        flow.ack(sequence, min(sequence + 1, least))
        sent.append(send(flow))
    return sent


# --- the last resort ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("owner", [TcpNewReno, Dctcp, Cubic])
def test_recovery_sends_a_rescue_retransmission_of_the_last_packet(owner):
    """Packets 5 and 9 of ten are lost. 6, 7 and 8 reveal the loss of 5; the window has room and no new packet exists,
    so 9 is retransmitted, too."""
    flow = sender(10, owner)
    assert without({5, 9}, flow, 9)[-1] == [5, 9]
    assert flow.sender.in_flight == 2
    assert send(flow) == []
    flow.ack(5, 9)
    assert send(flow) == []
    flow.ack(9, 10)
    assert (flow.sender.is_done, flow.sender.in_flight, flow.sender.timer) == (1, 0, 0)


def test_hole_with_fewer_than_three_sacks_above_is_retransmitted():
    """Packets 4, 8 and 9 of ten are lost. 4 is retransmitted, 9 as a rescue; when 9 is acknowledged, 8 follows."""
    flow = sender(10)
    assert without({4, 8, 9}, flow, 8)[-1] == [4, 9]
    flow.ack(4, 8)
    assert send(flow) == []
    flow.ack(9, 8)
    assert send(flow) == [8]
    assert flow.sender.lost_packets == 0
    flow.ack(8, 10)
    assert flow.sender.is_done == 1


def test_rescue_retransmission_happens_once_per_recovery():
    """Packets 3 and 9 are lost; only the timer can detect a second loss of 9."""
    flow = sender(10)
    assert without({3, 9}, flow, 9) == [[], [], [], [], [], [3, 9], [], []]
    flow.ack(3, 9)
    assert send(flow) == [] and flow.sender.timer > 0


def test_rescue_does_not_repeat_a_packet_just_retransmitted():
    """Only packet 6 is lost: it is the highest unacknowledged packet, and already retransmitted."""
    flow = sender(10)
    assert without({6}, flow, 10)[-1] == [6]


def test_new_packets_are_sent_instead_of_a_rescue_retransmission():
    flow = sender(1000)
    for sent in without({5}, flow, 10)[-2:]:
        assert all(sequence >= 10 or sequence == 5 for sequence in sent)


def test_rescue_retransmission_is_not_sent_after_a_timeout():
    """All packets count as lost after a timeout, and slow start retransmits them."""
    flow = sender(10)
    send(flow)
    flow.fire()
    assert send(flow) == [0] and flow.sender.loss_state > 0
    flow.ack(0, 1)
    assert send(flow) == [1, 2]


@pytest.mark.parametrize("kind", KINDS)
def test_message_with_lost_last_packet_recovers_without_a_timeout(kind):
    """The eleventh and the last of twenty packets of 1066 bytes are lost at 100 Gbps."""
    TX = 1066 * 80
    cut = [NetworkChange(n * TX + edge, what, 0) for n in (10, 19) for edge, what in ((-1, "cut"), (TX - 1, "mend"))]
    tables = [transport(each, payload="1000B", initial_window=50, min_rto="1ms") for each in KINDS]
    letters = [MessageSpec(0, 0, 1, 20_000, KINDS.index(kind))]
    case = Case(star(2, LinkSpec(10**11, US)), tables, letters, changes=cut)
    engine = run_engine(case)
    assert first_difference(engine, run_oracle(case)) == ""
    assert engine.again == [2] and engine.arrivals[0].time < 20 * US < MS


# --- in proportion ---------------------------------------------------------------------------------------------------


def test_prr_spreads_transmissions_over_recovery_after_one_loss():
    """RFC 6937, section 4: the first of 20 packets is lost. Two new ones leave at the first two answers; at the third
    one 22 are out, and the window is to be 10. Then about every second answer lets one packet go: after n of them
    ceil(10 n / 22) may have left since, the retransmission among them, until no more than 10 are in flight after the
    16th. Without proportion nothing leaves until then."""
    flow, halting = sender(1000, initial_window=20, recovery="prr"), sender(1000, initial_window=20)
    sent = [len(each) for each in without({0}, flow, 22)]
    allowed = [-(-10 * n // 22) for n in range(16)]
    assert sent[:2] == [1, 1]
    assert sent[2:17] == [b - a for a, b in pairwise(allowed)]
    assert sent[2:17] == [1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 0, 1, 0, 1, 0]
    assert sent[17:] == [0, 1, 1, 1]
    assert flow.sender.ssthresh >> SHIFT == 10
    assert [len(each) for each in without({0}, halting, 22)] == [1, 1, 1] + [0] * 9 + [1] * 9
    flow.ack(0, 22)
    assert flow.sender.cwnd >> SHIFT == 10
    assert flow.sender.in_flight == 9 and len(send(flow)) == 1  # 22, the lost one again, and 9 more have been sent


def test_prr_prevents_a_burst_after_many_losses():
    """15 of 20 packets are lost and two more were sent: 4 are in flight, and the window is 10. Without PRR 6 leave at
    once; with PRR one for each packet that arrives and one more (the slow start reduction bound)."""
    lost = set(range(15))
    sent = without(lost, sender(1000, initial_window=20, recovery="prr"), 20)
    assert sent == [[20], [21], [0, 1], [2, 3], [4, 5]]
    assert without(lost, sender(1000, initial_window=20), 20) == [[20], [21], [0, 1, 2, 3, 4, 5], [6], [7]]


def test_timeout_ends_prr_with_the_same_threshold_as_without_prr():
    """The threshold is half of the reduced window, with and without PRR."""
    flow, halting = sender(1000, initial_window=20, recovery="prr"), sender(1000, initial_window=20)
    for each in (flow, halting):
        without({0}, each, 8)
        each.fire()
    assert flow.sender.ssthresh == halting.sender.ssthresh == 5 << SHIFT
    assert flow.sender.cwnd == 1 << SHIFT
    send(flow)
    flow.ack(0, 8)
    assert flow.sender.cwnd == 2 << SHIFT


@pytest.mark.parametrize(("owner", "left"), [(Cubic, 14), (Dctcp, 10)])
def test_prr_targets_the_reduced_window_of_the_transport(owner, left):
    """CUBIC's window falls to seven tenths: ceil(14 n / 22) packets leave after n acknowledgements."""
    flow = sender(1000, owner, initial_window=20, recovery="prr")
    sent = [len(each) for each in without({0}, flow, 12)][2:]
    allowed = [-(-left * n // 22) for n in range(10)]
    assert sent == [b - a for a, b in pairwise(allowed)]
