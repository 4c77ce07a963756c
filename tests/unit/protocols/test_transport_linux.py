"""TCP's rules of a current kernel for what is lost, against sequences worked by hand from their RFCs.

Packets are numbered from 0, windows are in packets, times in us. Unless a test says otherwise every rule is on, timers are
exact, and packet n leaves at 10 n."""

from __future__ import annotations

from linux_cases import MS, US, send, sender, window

from gradwire.protocols.transports.base import ONE
from gradwire.protocols.transports.common.window import SHIFT
from gradwire.protocols.transports.linux_tcp.layout import (
    CWR,
    DISORDER,
    LOSS,
    OPEN,
    RECOVERY,
    REORDERING,
    TAIL,
    TIME_OUT,
)
from gradwire.protocols.transports.tcp.dctcp import Dctcp
from gradwire.testing import FlowHarness

# --- RACK (RFC 8985 section 6) -----------------------------------------------------------------------------------------


def test_rack_marks_packet_lost_after_one_and_a_quarter_round_trips():
    """0 is lost; 1, sent at 10, is acknowledged at 110: its round trip is 100, so 0 may come until 125."""
    flow = sender(100)
    send(flow, 10)
    flow.ack(1, 0, now=110 * US)
    assert (flow.sender.loss_state, flow.sender.lost_packets, flow.sender.timer_purpose, flow.sender.timer) == (
        DISORDER,
        0,
        REORDERING,
        125 * US,
    )
    assert flow.fire() == 125 * US
    assert (flow.sender.loss_state, flow.sender.lost_packets, flow.sender.ssthresh >> SHIFT) == (RECOVERY, 1, 5)
    assert flow.pull(125 * US) == [0]


def test_rack_marks_packet_lost_after_three_later_packets_arrive():
    """All packets leave at 0; the third arrival sets the reordering window to zero."""
    flow = sender(100)
    flow.pull(0)
    for each in (1, 2):
        flow.ack(each, 0, now=(100 + each) * US)
        assert flow.sender.lost_packets == 0
    flow.ack(3, 0, now=103 * US)
    assert (flow.sender.lost_packets, flow.sender.loss_state) == (1, RECOVERY)
    assert flow.pull(103 * US)[0] == 0


def test_rack_keeps_reordering_window_after_observed_reordering():
    """0 arrives after 1: from then on the reordering window is a quarter of the minimum RTT, 25."""
    flow = sender(100)
    send(flow, 10)
    flow.ack(1, 0, now=110 * US)
    flow.ack(0, 2, now=112 * US)
    assert flow.sender.loss_state == OPEN
    for each in (3, 4, 5, 6):
        flow.ack(each, 2, now=(100 + 10 * each) * US)
    # 2 was sent at 20: it is lost with the packet that arrives at 145 or later
    assert flow.sender.lost_packets == 1
    assert flow.sender.loss_state == RECOVERY
    later = sender(100)
    send(later, 10)
    later.ack(1, 0, now=110 * US)
    later.ack(0, 2, now=112 * US)
    for each in (3, 4):
        later.ack(each, 2, now=(100 + 10 * each) * US)
    assert (later.sender.lost_packets, later.sender.timer_purpose, later.sender.timer) == (0, REORDERING, 145 * US)


def test_rack_detects_lost_retransmission_from_later_packets():
    """RFC 6675 needs a timeout for a lost retransmission. 0 is retransmitted at 130, 10 leaves at 140; 10 arrives by 240,
    0 does not."""
    flow = sender(100)
    send(flow, 10)
    for each in (1, 2, 3):
        flow.ack(each, 0, now=(100 + 10 * each) * US)
    assert flow.pull(130 * US, 1) == [0]
    sent = []
    for each in range(4, 10):
        flow.ack(each, 0, now=(100 + 10 * each) * US)
        sent += flow.pull((100 + 10 * each) * US)
    assert sent[0] == 10 and flow.sender.lost_packets == 0
    flow.ack(10, 0, now=250 * US)
    assert flow.sender.lost_packets == 1
    assert flow.pull(250 * US)[0] == 0
    assert flow.sender.timeouts == 0


def test_spurious_retransmissions_widen_reordering_window_once_per_rtt():
    flow = sender(100)
    send(flow, 10)
    for each in (1, 2, 3):
        flow.ack(each, 0, now=(100 + 10 * each) * US)
    flow.pull(130 * US, 1)
    flow.ack(0, 4, now=131 * US)
    assert flow.sender.reordering_steps == 0
    flow.ack(0, 4, now=230 * US)
    flow.ack(0, 4, now=231 * US)
    assert flow.sender.reordering_steps == 1


def test_duplicate_ack_detection_marks_packet_lost_at_third_duplicate():
    flow = sender(100, loss_detection="duplicates")
    send(flow, 10)
    flow.ack(1, 0, now=500 * US)
    flow.ack(2, 0, now=500 * US)
    assert flow.sender.lost_packets == 0
    flow.ack(3, 0, now=500 * US)
    assert (flow.sender.lost_packets, flow.sender.loss_state) == (1, RECOVERY)


# --- tail loss probes (RFC 8985 section 7) -----------------------------------------------------------------------------


def test_tail_loss_probe_retransmits_last_packet_after_two_round_trips():
    """Packets 3 and 4 of five are lost. The last acknowledgement comes at 120, with a round trip of 100: the probe
    goes at 320."""
    flow = sender(5)
    send(flow, 5)
    for each in range(3):
        flow.ack(each, each + 1, now=(100 + 10 * each) * US)
    assert (flow.sender.srtt, flow.sender.timer_purpose, flow.sender.timer) == (100 * US, TAIL, 320 * US)
    flow.fire()
    assert flow.pull(320 * US) == [4]
    assert (flow.sender.timer_purpose, flow.sender.timer) == (TIME_OUT, 320 * US + 10 * MS)
    flow.ack(4, 3, now=420 * US)
    assert flow.pull(420 * US) == [3]
    flow.ack(3, 5, now=520 * US)
    assert (flow.sender.is_done, flow.sender.timeouts) == (1, 0)


def test_only_one_tail_loss_probe_is_outstanding_and_carries_new_packet():
    flow = sender(100, window=3)
    send(flow, 3)
    flow.ack(0, 1, now=100 * US)
    assert flow.pull(100 * US) == [3, 4]
    flow.fire()
    assert flow.pull(flow.sender.timer) == [5]
    assert flow.sender.tail_probe == 2 * 6 and flow.sender.timer_purpose == TIME_OUT
    assert flow.sender.in_flight == 5  # one more than the window


def test_tail_loss_probe_of_single_packet_waits_for_delayed_ack():
    flow = sender(2, delayed_acks=3 * MS)
    send(flow, 2)
    flow.ack(0, 1, now=100 * US)
    assert (flow.sender.timer_purpose, flow.sender.timer) == (TAIL, 100 * US + 200 * US + 3 * MS)


def test_tail_loss_probe_is_never_later_than_retransmission_timeout():
    flow = sender(2, delayed_acks=9 * MS, min_rto=9 * MS + 1)
    send(flow, 2)
    flow.ack(0, 1, now=100 * US)
    assert flow.sender.timer == 100 * US + 9 * MS + 1


def test_loss_repaired_by_tail_loss_probe_still_lowers_window():
    """Packet 4 is lost and its probe arrives. The acknowledgement of 5, which was sent later, reveals the loss (section
    7.4.2)."""
    flow = sender(10)
    flow.sender.packets, flow.sender.stream = 5, flow.f
    send(flow, 5)
    for each in range(4):
        flow.ack(each, each + 1, now=(100 + 10 * each) * US)
    assert flow.pull(flow.fire()) == [4]
    assert flow.sender.tail_probe == 2 * 5 + 1
    flow.sender.packets = 10
    assert flow.pull(1000 * US, 1) == [5]
    flow.ack(4, 5, now=1050 * US)
    before = window(flow)
    flow.ack(5, 6, now=1100 * US)
    assert (flow.sender.loss_state, flow.sender.tail_probe, flow.sender.ssthresh >> SHIFT) == (OPEN, 0, before // 2)
    assert window(flow) in (before // 2, before // 2 + 1)


def test_tail_loss_probe_is_not_armed_in_recovery_or_when_disabled():
    flow = sender(100)
    send(flow, 10)
    for each in (1, 2, 3):
        flow.ack(each, 0, now=(100 + 10 * each) * US)
    flow.pull(130 * US)
    assert flow.sender.timer_purpose == REORDERING  # set before three were above
    flow.fire()
    assert flow.sender.timer_purpose == TIME_OUT
    off = sender(100, tail_probes=False)
    send(off, 10)
    off.ack(0, 1, now=100 * US)
    assert off.sender.timer_purpose == TIME_OUT


# --- in proportion (RFC 9937) ------------------------------------------------------------------------------------------


def test_prr_sends_one_packet_per_two_delivered_until_window_is_halved():
    """Twenty packets are in flight and the first is lost. While more than ten are in flight, every second arrival
    releases one packet."""
    flow = sender(1000, window=20)
    send(flow, 20)
    for each in (1, 2):
        flow.ack(each, 0, now=(200 + 10 * each) * US)
    for each in range(3, 20):
        flow.ack(each, 0, now=(200 + 10 * each) * US)
        flow.pull((200 + 10 * each) * US)
        if each < 15:  # after that no more than ten are out
            assert flow.sender.prr_sent == max(1, -(-10 * (each - 2) // 20))
    assert (flow.sender.ssthresh >> SHIFT, flow.sender.in_flight) == (10, 10)
    flow.ack(0, 20, now=430 * US)
    assert (flow.sender.loss_state, window(flow)) == (OPEN, 10)


def test_prr_below_target_sends_extra_packet_on_progress_without_loss():
    """All of twenty packets but 17, 18 and 19 are lost. Below the target of ten each arrival releases one packet, or two
    if it makes progress and reveals no new loss."""
    flow = sender(1000, window=20)
    send(flow, 20)
    for each in (17, 18, 19):
        flow.ack(each, 0, now=(200 + 10 * each) * US)
        assert flow.pull((200 + 10 * each) * US) == [each - 17]
    flow.ack(0, 1, now=600 * US)
    assert flow.pull(600 * US) == [3, 4]
    flow.ack(1, 2, now=610 * US)
    assert flow.pull(610 * US) == [5, 6]


def test_ecn_mark_lowers_window_by_proportional_rate_reduction():
    flow = sender(1000, Dctcp, window=20, ecn=True, g=0.0625)
    flow.sender.alpha = ONE
    send(flow, 20)
    flow.ack(0, 1, echo=1, now=200 * US)
    assert (flow.sender.loss_state, flow.sender.ssthresh >> SHIFT) == (CWR, 10)
    assert flow.pull(200 * US) == [20]
    flow.ack(1, 2, echo=1, now=210 * US)
    assert flow.pull(210 * US) == []
    assert flow.sender.ssthresh >> SHIFT == 10


# --- when the time-out is put off ---------------------------------------------------------------------------------------


def test_acks_of_packets_sent_after_oldest_one_do_not_postpone_timeout():
    """0 is retransmitted at 130 and lost once more. Packets that left before that put its time-out off, to 10 ms after the
    last of them; 10, which left after it, does not [net/ipv4/tcp_input.c: `tcp_clean_rtx_queue`], however much arrives."""
    flow = sender(100, tail_probes=False, loss_detection="duplicates")
    send(flow, 10)
    for each in (1, 2, 3):
        flow.ack(each, 0, now=(100 + 10 * each) * US)
    assert flow.pull(130 * US, 1) == [0]
    for each in range(4, 10):
        flow.ack(each, 0, now=(100 + 10 * each) * US)
        flow.pull((100 + 10 * each) * US)
        assert flow.sender.timer == (100 + 10 * each) * US + 10 * MS
    assert flow.sender.nxt > 11
    for each in range(10, flow.sender.nxt):
        flow.ack(each, 0, now=(200 + 10 * each) * US)
        assert (flow.sender.timer_purpose, flow.sender.timer) == (TIME_OUT, 190 * US + 10 * MS)


# --- F-RTO (RFC 5682) and undoing --------------------------------------------------------------------------------------


def late(**settings) -> FlowHarness:
    """Five packets are out, and nothing comes until the timer has gone off."""
    flow = sender(100, window=5, tail_probes=False, **settings)
    send(flow, 5)
    flow.fire()
    assert (flow.sender.loss_state, window(flow), flow.sender.lost_packets) == (LOSS, 1, 5)
    assert flow.pull(11 * MS) == [0]
    return flow


def test_frto_undoes_spurious_timeout():
    """The acknowledgement of 0 may belong to its first transmission: two new packets go. That of 1, which was not
    retransmitted, must belong to its first transmission."""
    flow = late()
    flow.ack(0, 1, now=12 * MS)
    assert flow.pull(12 * MS) == [5, 6]
    flow.ack(1, 2, now=12 * MS)
    assert (flow.sender.loss_state, flow.sender.lost_packets) == (OPEN, 0)
    assert window(flow) >= 5 and flow.sender.ssthresh >> SHIFT > 1000


def test_frto_does_not_undo_genuine_timeout():
    """5 arrives and 1 does not, so 1 is retransmitted."""
    flow = late()
    flow.ack(0, 1, now=12 * MS)
    assert flow.pull(12 * MS) == [5, 6]
    flow.ack(5, 1, now=13 * MS)
    assert flow.sender.loss_state in (LOSS, RECOVERY)
    assert flow.pull(13 * MS)[0] == 1
    assert flow.sender.ssthresh >> SHIFT == 2


def test_lost_packets_are_retransmitted_first_without_frto():
    flow = late(frto=False)
    flow.ack(0, 1, now=12 * MS)
    assert flow.pull(12 * MS) == [1, 2]


def test_timeout_does_not_mark_recently_sent_packets_lost():
    """RFC 8985 section 8."""
    flow = sender(100, window=3, tail_probes=False)
    send(flow, 2)
    flow.ack(0, 1, now=5 * MS)
    assert flow.pull(14 * MS, 1) == [2]
    flow.sender.timer = 15 * MS
    flow.fire()
    assert (flow.sender.lost_packets, flow.sender.in_flight, window(flow)) == (1, 1, 2)


def test_recovery_with_only_spurious_retransmissions_is_undone():
    flow = sender(100)
    send(flow, 10)
    for each in (1, 2, 3):
        flow.ack(each, 0, now=(100 + 10 * each) * US)
    assert flow.pull(130 * US, 1) == [0]
    flow.ack(0, 4, now=131 * US)
    assert window(flow) < 10
    flow.ack(0, 4, now=231 * US)
    assert flow.sender.loss_state == OPEN and window(flow) >= 10 and flow.sender.ssthresh >> SHIFT > 1000
