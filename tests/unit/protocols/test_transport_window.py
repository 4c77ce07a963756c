"""The window machinery and NewReno against sequences worked by hand from RFC 5681, 6298, 6582 and 6675.

Packets are numbered from 0, windows are in packets, times in picoseconds."""

from __future__ import annotations

import pytest
from transport_bench import MS, US

from gradwire.protocols.transports.tcp.tcp_newreno import TcpNewReno
from gradwire.testing import FlowHarness, Word

ONE = 1 << 16  # a window of one packet


def sender(packets=1000, **settings):
    return FlowHarness(TcpNewReno, packets, **settings)


def acknowledge(flow, first, last, now=0, echo=0):
    """In-order acknowledgements of packets first..last. Returns what the sender sent in answer."""
    out = []
    for sequence in range(first, last + 1):
        flow.ack(sequence, sequence + 1, now=now, echo=echo)
        out += flow.pull(now)
    return out


# --- growth -------------------------------------------------------------------------------------------------------


def test_slow_start_doubles_the_window_every_round_trip():
    flow = sender()
    assert flow.pull() == list(range(10))
    assert acknowledge(flow, 0, 9) == list(range(10, 30))
    assert flow.sender.cwnd == 20 * ONE
    assert acknowledge(flow, 10, 29) == list(range(30, 70))
    assert flow.sender.cwnd == 40 * ONE


def test_congestion_avoidance_adds_one_packet_per_window():
    flow = sender()
    flow.sender.ssthresh = 10 * ONE
    flow.pull()
    acknowledge(flow, 0, 0)
    assert flow.sender.cwnd == 10 * ONE + ONE // 10
    acknowledge(flow, 1, 9)
    # 10 steps of 1/w, w between 10 and 11
    assert 10 * ONE + 10 * ONE // 11 < flow.sender.cwnd < 11 * ONE
    acknowledge(flow, 10, 19)
    assert flow.sender.in_flight == flow.sender.cwnd >> 16 == 11


def test_underused_window_does_not_grow():
    flow = sender()
    flow.sender.ssthresh = 10 * ONE
    flow.pull(most=9)
    flow.ack(0, 1)
    assert flow.sender.cwnd == 10 * ONE
    slow = sender()
    slow.pull(most=4)
    slow.ack(0, 1)
    assert slow.sender.cwnd == 10 * ONE
    slow.pull(most=2)  # 5 in flight: half of the window
    slow.ack(1, 2)
    assert slow.sender.cwnd == 11 * ONE


def test_acknowledgements_above_a_hole_do_not_open_the_window():
    """RFC 3042 with RFC 5681 section 3.2, step 1: each of the first two lets one new packet go."""
    flow = sender()
    flow.pull()
    flow.ack(1, 0)
    assert (flow.pull(), flow.sender.cwnd) == ([10], 10 * ONE)
    flow.ack(2, 0)
    assert (flow.pull(), flow.sender.cwnd) == ([11], 10 * ONE)


# --- losses ---------------------------------------------------------------------------------------------------


def recovering():
    """Window 10, packet 0 lost, 1 to 3 acknowledged: the fast retransmission is due."""
    flow = sender()
    flow.pull()
    flow.ack(1, 0)
    flow.ack(2, 0)
    assert flow.pull() == [10, 11]
    flow.ack(3, 0)
    return flow


def test_fast_retransmit_happens_at_exactly_three_packets_above_a_hole():
    flow = recovering()
    assert (flow.sender.cwnd, flow.sender.ssthresh) == (5 * ONE, 5 * ONE)
    # 12 were sent, 3 acknowledged, 1 lost: 8 in flight, more than 5, and yet one goes out at once (RFC 6675, 4.3)
    assert flow.pull() == [0]
    assert flow.sender.in_flight == 9


def test_only_one_retransmission_bypasses_the_window_after_two_losses():
    flow = sender()
    flow.pull()
    for sequence in (2, 3):
        flow.ack(sequence, 0)
        flow.pull()
    flow.ack(4, 0)
    assert flow.sender.lost_packets == 2
    assert flow.pull() == [0]


def test_loss_detected_during_recovery_waits_for_window_space():
    """Packets 0 and 6 of a window of 20 are lost. Packets 7, 8 and 9 reveal the loss of 6; 13 are in flight then, 10
    allowed."""
    flow = sender(initial_window=20)
    flow.pull()
    for sequence in (1, 2, 3, 4, 5, 7, 8, 9):
        flow.ack(sequence, 0)
        flow.pull()
    assert (flow.sender.lost_packets, flow.sender.in_flight, flow.sender.cwnd) == (1, 13, 10 * ONE)
    for sequence in (10, 11, 12):
        flow.ack(sequence, 0)
        assert flow.pull() == []
    flow.ack(13, 0)
    assert flow.pull() == [6]


def test_recovery_sends_new_packets_when_fewer_than_the_window_are_in_flight():
    flow = recovering()
    flow.pull()
    sent = []
    for sequence in range(4, 12):
        flow.ack(sequence, 0)
        sent.append(flow.pull())
    # in flight 9 - 1, - 2, ...: room from the fifth acknowledgement on
    assert sent == [[], [], [], [], [12], [13], [14], [15]]


def test_window_is_constant_in_recovery_and_grows_linearly_afterwards():
    flow = recovering()
    flow.pull()
    for sequence in range(4, 12):
        flow.ack(sequence, 0)
        flow.pull()
    assert flow.sender.cwnd == 5 * ONE
    flow.ack(0, 12)
    assert (flow.sender.una, flow.sender.cwnd) == (12, 5 * ONE)  # out of recovery
    flow.pull()
    flow.ack(12, 13)
    assert flow.sender.cwnd == 5 * ONE + ONE // 5  # congestion avoidance


def test_two_losses_halve_window_once_and_partial_ack_continues_recovery():
    """RFC 6582: packets 0 and 5 of 10 are lost."""
    flow = recovering()
    assert flow.pull() == [0]
    for sequence in (4, 6, 7, 8):  # 8 is the third above 5
        flow.ack(sequence, 0)
    assert flow.sender.cwnd == 5 * ONE
    assert flow.sender.lost_packets == 1
    assert flow.pull() == [5]
    flow.ack(0, 5)  # partial: up to the second hole
    assert flow.sender.cwnd == 5 * ONE
    flow.ack(9, 5)
    flow.ack(5, 10)  # all of the first ten, not yet 10 and 11
    assert flow.sender.cwnd == 5 * ONE
    flow.pull()
    flow.ack(10, 11)
    flow.pull()
    flow.ack(11, 12)
    assert flow.sender.cwnd == 5 * ONE
    flow.pull()
    flow.ack(12, 13)
    assert flow.sender.cwnd == 5 * ONE + ONE // 5


def test_loss_in_a_later_window_halves_the_window_again():
    flow = recovering()
    flow.pull()
    for sequence in range(4, 12):
        flow.ack(sequence, 0)
        flow.pull()
    flow.ack(0, 12)
    flow.sender.cwnd = 8 * ONE
    assert flow.pull() == [16, 17, 18, 19]
    for sequence in (13, 14, 15):
        flow.ack(sequence, 12)
    assert flow.sender.cwnd == 4 * ONE
    assert flow.pull()[0] == 12


def test_late_packet_presumed_lost_is_not_retransmitted():
    flow = recovering()
    flow.ack(0, 4)  # it was only late
    assert flow.sender.lost_packets == 0
    assert flow.sender.in_flight == 8
    assert 0 not in flow.pull()


# --- time-outs ------------------------------------------------------------------------------------------------


def test_timeout_restarts_slow_start_with_threshold_at_half_the_flight():
    flow = sender()
    assert flow.pull(now=0) == list(range(10))
    assert flow.fire() == 2 * MS
    assert (flow.sender.cwnd, flow.sender.ssthresh, flow.sender.in_flight, flow.sender.lost_packets) == (
        ONE,
        5 * ONE,
        0,
        10,
    )
    now = 2 * MS
    assert flow.pull(now) == [0]
    flow.ack(0, 1, now=now)
    assert flow.pull(now) == [1, 2]  # doubles although the lost window is not acknowledged yet
    assert acknowledge(flow, 1, 2, now) == [3, 4, 5, 6]
    assert acknowledge(flow, 3, 3, now) == [7, 8]
    assert flow.sender.cwnd == 5 * ONE
    flow.ack(4, 5, now=now)
    assert flow.sender.cwnd == 5 * ONE + ONE // 5  # the threshold


def test_acknowledged_packets_are_not_retransmitted_after_a_timeout():
    flow = sender()
    flow.pull()
    flow.ack(4, 0)
    flow.ack(7, 0)
    flow.fire()
    flow.sender.cwnd = 20 * ONE
    assert flow.pull()[:8] == [0, 1, 2, 3, 5, 6, 8, 9]


def test_backoff_doubles_to_the_maximum_and_sets_the_threshold_once():
    flow = sender(min_rto=2 * MS, max_rto=10 * MS)
    flow.pull(now=0)
    times = []
    for _ in range(5):
        times.append(flow.fire())
        assert flow.sender.ssthresh == 5 * ONE  # RFC 5681: held constant when the same packet times out again
        flow.pull(now=times[-1])
    assert times == [2 * MS, 6 * MS, 14 * MS, 24 * MS, 34 * MS]


def test_timeout_of_another_packet_recomputes_the_slow_start_threshold():
    flow = sender()
    flow.pull()
    flow.fire()
    flow.pull(now=2 * MS)
    flow.ack(0, 1, now=3 * MS)
    flow.pull(now=3 * MS)
    assert flow.sender.cwnd == 2 * ONE
    flow.fire()
    assert flow.sender.ssthresh == 2 * ONE  # half of what it was allowed, at least two


def test_loss_of_a_new_packet_does_not_end_slow_start_after_a_timeout():
    """RFC 6582: no fast recovery before what was out at the time-out has been acknowledged."""
    flow = sender()
    flow.pull()
    flow.fire()
    flow.sender.cwnd = 20 * ONE
    assert flow.pull(now=2 * MS) == list(range(20))  # ten again, ten new
    for sequence in (11, 12, 13):
        flow.ack(sequence, 0, now=2 * MS)
    assert flow.pull(now=2 * MS)[0] == 10
    assert (flow.sender.cwnd, flow.sender.in_flight) == (20 * ONE, 20)
    flow.ack(0, 1, now=2 * MS)
    assert flow.sender.cwnd == 20 * ONE + ONE // 20


def test_rtt_sample_above_a_hole_resets_the_backoff():
    flow = sender()
    flow.pull(now=0)
    flow.sender.backoff = 2
    flow.sender.timed = 1
    flow.ack(1, 0, now=US)
    assert (flow.sender.srtt, flow.sender.backoff) == (US, 0)


def test_backoff_persists_until_an_rtt_sample_then_resets_on_progress():
    flow = sender()
    flow.pull(now=0)
    flow.fire()
    flow.pull(now=2 * MS)
    flow.ack(0, 1, now=3 * MS)  # ambiguous: the first copy or the second
    assert flow.sender.srtt == 0
    assert flow.sender.backoff == 1
    assert flow.sender.timer == 3 * MS + 4 * MS
    for sequence in range(1, 10):
        flow.ack(sequence, sequence + 1, now=3 * MS)
    flow.pull(now=3 * MS)  # new packets
    flow.ack(10, 11, now=4 * MS)
    assert flow.sender.srtt == 1 * MS
    assert flow.sender.backoff == 0
    flow.pull(now=4 * MS)
    flow.sender.backoff = 3
    flow.sender.timed = -1
    flow.ack(11, 12, now=4 * MS)
    assert flow.sender.backoff == 0


def test_round_trip_estimator_matches_rfc_6298():
    """RFC 6298 section 2 with R = 100 us, then 140 us."""
    flow = sender(min_rto=US, base_rtt=0)
    flow.pull(now=0, most=2)
    flow.ack(0, 1, now=100 * US)
    assert (flow.sender.srtt, flow.sender.rttvar) == (100 * US, 50 * US)
    assert flow.sender.timer == 100 * US + 300 * US
    flow.pull(now=100 * US, most=1)  # packet 2 is timed
    flow.ack(1, 2, now=120 * US)
    assert flow.sender.srtt == 100 * US
    flow.ack(2, 3, now=240 * US)
    assert (flow.sender.srtt, flow.sender.rttvar) == (105 * US, 47_500_000)
    flow.pull(now=240 * US, most=1)
    flow.pull(now=300 * US, most=1)
    flow.ack(3, 4, now=330 * US)  # 90 us: |105 - 90| = 15
    assert (flow.sender.rttvar, flow.sender.srtt) == (47_500_000 - 8_125_000, 105_000_000 - 1_875_000)
    assert flow.sender.timer == 330 * US + 103_125_000 + 4 * 39_375_000


def test_retransmitted_packets_are_never_timed():
    flow = recovering()
    assert flow.sender.timed == -1  # packet 0 was timed, and is lost
    assert flow.pull(now=50 * US) == [0]
    flow.ack(0, 4, now=90 * US)
    assert flow.sender.srtt == 0
    timed_out = sender()
    timed_out.pull(now=0)
    timed_out.fire()
    timed_out.pull(now=2 * MS)
    timed_out.ack(0, 10, now=2 * MS + 5)
    assert timed_out.sender.srtt == 0


def test_timer_restarts_on_progress_and_stops_with_nothing_in_flight():
    flow = sender()
    flow.pull(now=0, most=3)
    assert flow.sender.timer == 2 * MS
    flow.ack(1, 0, now=MS)
    assert flow.sender.timer == 2 * MS
    flow.ack(0, 2, now=MS)
    assert flow.sender.timer == MS + 3 * MS  # a round trip of 1 ms, give or take 0.5
    flow.ack(2, 3, now=MS)
    # nothing is out: the NIC may be busy with a higher class for longer than any time-out
    assert flow.sender.timer == 0
    flow.pull(now=50 * MS, most=1)
    assert flow.sender.timer > 50 * MS


@pytest.mark.parametrize("packets", [1, 2, 33])
def test_short_messages_complete(packets):
    flow = sender(packets, last=10)
    now, sent = 0, flow.pull()
    while sent:
        sequence = sent.pop(0)
        reply = flow.data(sequence)
        flow.ack(sequence, reply.argument, now=now)
        sent += [] if flow.sender.is_done else flow.pull(now)
    assert flow.sender.is_done == flow.receiver.is_done == 1
    assert flow.sender.timer == 0


def test_largest_message_does_not_overflow_64_bit_state():
    flow = sender((1 << 22) - 1, word=Word)
    flow.sender.cwnd = (1 << 22) * ONE
    assert flow.pull(most=3) == [0, 1, 2]
    flow.sender.nxt = (1 << 22) - 2
    assert flow.pull() == [(1 << 22) - 2]
    flow.sender.una = (1 << 22) - 3
    flow.ack((1 << 22) - 3, (1 << 22) - 1)
    assert flow.sender.is_done == 1
    flow = sender((1 << 22) - 1, word=Word)
    flow.sender.nxt = 1 << 20
    flow.sender.in_flight = 1 << 20
    flow.sender.cwnd = flow.sender.ssthresh = (1 << 22) * ONE
    flow.ack(0, 1)
    flow.sender.srtt = 10**12
    flow.sender.rttvar = 10**12
    flow.sender.backoff = 12
    flow.ack(1, 2)
    assert flow.sender.timer > 0
