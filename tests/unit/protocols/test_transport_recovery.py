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
def test_the_last_packet_is_sent_again_to_be_on_the_safe_side(owner):
    """Of ten packets, 5 and 9 are lost. 6, 7 and 8 say that 5 is; there is room and nothing new, so 9 goes, too."""
    flow = sender(10, owner)
    assert without({5, 9}, flow, 9)[-1] == [5, 9]
    assert flow.sender.in_flight == 2
    assert send(flow) == []
    flow.ack(5, 9)
    assert send(flow) == []
    flow.ack(9, 10)
    assert (flow.sender.is_done, flow.sender.in_flight, flow.sender.timer) == (1, 0, 0)


def test_what_is_below_the_highest_is_sent_again_though_less_than_three_are_above():
    """Of ten packets, 4, 8 and 9 are lost: 4 goes again and 9 to be on the safe side; when that is there, 8 goes."""
    flow = sender(10)
    assert without({4, 8, 9}, flow, 8)[-1] == [4, 9]
    flow.ack(4, 8)
    assert send(flow) == []
    flow.ack(9, 8)
    assert send(flow) == [8]
    assert flow.sender.lost_packets == 0
    flow.ack(8, 10)
    assert flow.sender.is_done == 1


def test_once_per_recovery():
    """9 and 7 of the end are lost beside 3; 9 is lost a second time, and the timer has to find that out."""
    flow = sender(10)
    assert without({3, 9}, flow, 9) == [[], [], [], [], [], [3, 9], [], []]
    flow.ack(3, 9)
    assert send(flow) == [] and flow.sender.timer > 0


def test_a_packet_that_has_just_been_sent_again_is_not_sent_twice():
    """6 is lost, all others have arrived: it is the highest that has not been acknowledged, and on its way."""
    flow = sender(10)
    assert without({6}, flow, 10)[-1] == [6]


def test_new_packets_go_first_and_then_nothing_is_resorted_to():
    flow = sender(1000)
    for sent in without({5}, flow, 10)[-2:]:
        assert all(sequence >= 10 or sequence == 5 for sequence in sent)


def test_not_after_a_time_out():
    """Everything counts as lost then, and slow start sends it."""
    flow = sender(10)
    send(flow)
    flow.fire()
    assert send(flow) == [0] and flow.sender.loss_state > 0
    flow.ack(0, 1)
    assert send(flow) == [1, 2]


@pytest.mark.parametrize("kind", KINDS)
def test_a_message_whose_last_packet_is_lost_beside_another_needs_no_time_out(kind):
    """Twenty packets of 1066 bytes at 100 Gbps, of which the eleventh and the last are lost."""
    TX = 1066 * 80
    cut = [NetworkChange(n * TX + edge, what, 0) for n in (10, 19) for edge, what in ((-1, "cut"), (TX - 1, "mend"))]
    tables = [transport(each, payload="1000B", initial_window=50, min_rto="1ms") for each in KINDS]
    letters = [MessageSpec(0, 0, 1, 20_000, KINDS.index(kind))]
    case = Case(star(2, LinkSpec(10**11, US)), tables, letters, changes=cut)
    engine = run_engine(case)
    assert first_difference(engine, run_oracle(case)) == ""
    assert engine.again == [2] and engine.arrivals[0].time < 20 * US < MS


# --- in proportion ---------------------------------------------------------------------------------------------------


def test_one_loss_in_twenty():
    """RFC 6937, section 4: the first of 20 packets is lost. Two new ones leave at the first two answers; at the third one
    22 are out, and the window is to be 10. Then about every second answer lets one packet go: after n of them
    ceil(10 n / 22) may have left since, the retransmission among them, until no more than 10 are in flight after the 16th.
    Without proportion nothing leaves until then."""
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


def test_many_losses_do_not_make_a_burst():
    """15 of 20 are lost, two more have been sent: 4 are in flight where 10 may be. Without proportion 6 leave at once; with
    it one for each packet that arrives and one more (the slow start reduction bound)."""
    lost = set(range(15))
    sent = without(lost, sender(1000, initial_window=20, recovery="prr"), 20)
    assert sent == [[20], [21], [0, 1], [2, 3], [4, 5]]
    assert without(lost, sender(1000, initial_window=20), 20) == [[20], [21], [0, 1, 2, 3, 4, 5], [6], [7]]


def test_a_time_out_ends_it():
    """The threshold is half of where the window was on its way to, as without proportion."""
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
def test_to_where_the_window_of_the_transport_falls(owner, left):
    """CUBIC's falls to seven tenths: after n answers ceil(14 n / 22) packets."""
    flow = sender(1000, owner, initial_window=20, recovery="prr")
    sent = [len(each) for each in without({0}, flow, 12)][2:]
    allowed = [-(-left * n // 22) for n in range(10)]
    assert sent == [b - a for a, b in pairwise(allowed)]
