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


def test_a_packet_has_a_round_trip_and_a_quarter():
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


def test_three_packets_above_are_enough():
    """All leave at 0; with the third that arrives the window of reordering is nothing."""
    flow = sender(100)
    flow.pull(0)
    for each in (1, 2):
        flow.ack(each, 0, now=(100 + each) * US)
        assert flow.sender.lost_packets == 0
    flow.ack(3, 0, now=103 * US)
    assert (flow.sender.lost_packets, flow.sender.loss_state) == (1, RECOVERY)
    assert flow.pull(103 * US)[0] == 0


def test_not_once_packets_have_come_out_of_order():
    """0 arrives after 1: from then on a quarter of the smallest round trip, 25, is waited for, whatever is above."""
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


def test_a_packet_that_is_lost_again_is_found_by_what_was_sent_after_it():
    """RFC 6675 needs a time-out for that. 0 goes again at 130, 10 at 140; 10 is there at 240, 0 is not."""
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


def test_the_window_of_reordering_grows_with_what_was_needless_once_per_round_trip():
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


def test_duplicates_find_what_they_find_where_there_is_no_rack():
    flow = sender(100, loss_detection="duplicates")
    send(flow, 10)
    flow.ack(1, 0, now=500 * US)
    flow.ack(2, 0, now=500 * US)
    assert flow.sender.lost_packets == 0
    flow.ack(3, 0, now=500 * US)
    assert (flow.sender.lost_packets, flow.sender.loss_state) == (1, RECOVERY)


# --- tail loss probes (RFC 8985 section 7) -----------------------------------------------------------------------------


def test_the_last_packet_is_sent_again_after_two_round_trips():
    """Of five, 3 and 4 are lost. The last acknowledgement comes at 120, with a round trip of 100: the probe goes at 320."""
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


def test_a_new_packet_rather_than_an_old_one_and_one_probe_at_a_time():
    flow = sender(100, window=3)
    send(flow, 3)
    flow.ack(0, 1, now=100 * US)
    assert flow.pull(100 * US) == [3, 4]
    flow.fire()
    assert flow.pull(flow.sender.timer) == [5]
    assert flow.sender.tail_probe == 2 * 6 and flow.sender.timer_purpose == TIME_OUT
    assert flow.sender.in_flight == 5  # one more than the window


def test_a_single_packet_waits_for_an_acknowledgement_that_is_put_off():
    flow = sender(2, delayed_acks=3 * MS)
    send(flow, 2)
    flow.ack(0, 1, now=100 * US)
    assert (flow.sender.timer_purpose, flow.sender.timer) == (TAIL, 100 * US + 200 * US + 3 * MS)


def test_never_later_than_the_time_out():
    flow = sender(2, delayed_acks=9 * MS, min_rto=9 * MS + 1)
    send(flow, 2)
    flow.ack(0, 1, now=100 * US)
    assert flow.sender.timer == 100 * US + 9 * MS + 1


def test_a_loss_that_the_probe_has_mended_lowers_the_window_all_the_same():
    """A connection that goes on: 4 is lost, its probe arrives; when 5, which came later, is acknowledged, there has been a
    loss (section 7.4.2)."""
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


def test_none_in_recovery_and_none_where_they_are_off():
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


def test_one_packet_for_two_until_the_window_is_half():
    """Twenty out, the first lost: of what arrives while more than ten are out, every second one makes one leave."""
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


def test_below_the_target_progress_without_loss_is_answered_by_one_more():
    """Of twenty all but 17, 18 and 19 are lost. Ten may be out and few are: what arrives is answered by one, and by two
    if it makes progress and tells of no new loss."""
    flow = sender(1000, window=20)
    send(flow, 20)
    for each in (17, 18, 19):
        flow.ack(each, 0, now=(200 + 10 * each) * US)
        assert flow.pull((200 + 10 * each) * US) == [each - 17]
    flow.ack(0, 1, now=600 * US)
    assert flow.pull(600 * US) == [3, 4]
    flow.ack(1, 2, now=610 * US)
    assert flow.pull(610 * US) == [5, 6]


def test_a_mark_lowers_the_window_in_proportion_as_well():
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


def test_what_was_sent_after_the_first_packet_does_not_put_the_time_out_off():
    """0 goes again at 130 and is lost once more. Packets that left before that put its time-out off, to 10 ms after the
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


def test_a_spurious_time_out_is_taken_back():
    """The acknowledgement of 0 may be that of its first sending: two new packets go. That of 1, which has not been sent
    again, can only be."""
    flow = late()
    flow.ack(0, 1, now=12 * MS)
    assert flow.pull(12 * MS) == [5, 6]
    flow.ack(1, 2, now=12 * MS)
    assert (flow.sender.loss_state, flow.sender.lost_packets) == (OPEN, 0)
    assert window(flow) >= 5 and flow.sender.ssthresh >> SHIFT > 1000


def test_a_real_one_is_not():
    """5 arrives and 1 does not: 1 goes again."""
    flow = late()
    flow.ack(0, 1, now=12 * MS)
    assert flow.pull(12 * MS) == [5, 6]
    flow.ack(5, 1, now=13 * MS)
    assert flow.sender.loss_state in (LOSS, RECOVERY)
    assert flow.pull(13 * MS)[0] == 1
    assert flow.sender.ssthresh >> SHIFT == 2


def test_without_it_what_was_lost_goes_first():
    flow = late(frto=False)
    flow.ack(0, 1, now=12 * MS)
    assert flow.pull(12 * MS) == [1, 2]


def test_what_was_sent_less_than_a_round_trip_ago_is_not_lost_by_a_time_out():
    """RFC 8985 section 8."""
    flow = sender(100, window=3, tail_probes=False)
    send(flow, 2)
    flow.ack(0, 1, now=5 * MS)
    assert flow.pull(14 * MS, 1) == [2]
    flow.sender.timer = 15 * MS
    flow.fire()
    assert (flow.sender.lost_packets, flow.sender.in_flight, window(flow)) == (1, 1, 2)


def test_a_recovery_in_which_all_was_needless_is_taken_back():
    flow = sender(100)
    send(flow, 10)
    for each in (1, 2, 3):
        flow.ack(each, 0, now=(100 + 10 * each) * US)
    assert flow.pull(130 * US, 1) == [0]
    flow.ack(0, 4, now=131 * US)
    assert window(flow) < 10
    flow.ack(0, 4, now=231 * US)
    assert flow.sender.loss_state == OPEN and window(flow) >= 10 and flow.sender.ssthresh >> SHIFT > 1000
