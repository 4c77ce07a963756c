"""Go-back-N and DCQCN against their rules, worked by hand, and over the fabric.

100 Gbps, packets of 4154 bytes on the wire. Rates are shares of the line in 20 bits."""

from __future__ import annotations

from itertools import pairwise

import pytest
from transport_bench import MS, US, Flow, incast, play, star_of

from gradwire.jit.records.constants import ACK, NACK
from gradwire.protocols.transports.base import ONE
from gradwire.protocols.transports.roce.dcqcn import Dcqcn
from gradwire.scenarios.wire import ROCE_ACK_BYTES, ROCE_OVERHEAD
from gradwire.testing import FlowHarness, ReceiverReply, Word, transport

G = ONE // 256
AI = 1048  # 40 Mbps of 40 Gbps in 20 bits
HAI = 10485


def flow_of(packets=1000, **settings):
    return FlowHarness(Dcqcn, packets, base_rtt=20 * US, **settings)


# --- go-back-N --------------------------------------------------------------------------------------------------


def test_packet_headers_have_rocev2_sizes():
    assert (ROCE_OVERHEAD, ROCE_ACK_BYTES) == (14 + 20 + 8 + 12 + 4, 14 + 20 + 8 + 12 + 4 + 4)
    assert (Dcqcn.data_overhead, Dcqcn.control_bytes) == (58, 62)


def test_receiver_accepts_in_order_packets_and_sends_one_nack_per_gap():
    flow = flow_of(6, last=100)
    assert flow.data(0) == ReceiverReply(ACK, 0, 1, 0, 1)
    assert flow.data(2) == ReceiverReply(NACK, 0, 1, 0, 1)
    assert flow.data(3).count == flow.data(4).count == 0  # silence until packet 1 has come
    assert flow.receiver.received_bytes == 4096
    assert flow.data(1) == ReceiverReply(ACK, 0, 2, 0, 1)
    assert flow.data(1) == ReceiverReply(ACK, 0, 2, 0, 1)  # a packet from before: acknowledged again, not taken
    assert flow.receiver.received_bytes == 2 * 4096
    assert flow.data(5) == ReceiverReply(NACK, 0, 2, 0, 1)  # another gap
    for sequence in (2, 3, 4):
        assert flow.data(sequence).argument == sequence + 1
    assert not flow.receiver.is_done
    assert flow.data(5).argument == 6
    assert flow.receiver.is_done and flow.receiver.received_bytes == 5 * 4096 + 100


def test_nack_moves_the_sender_back():
    flow = flow_of(10)
    assert flow.pull() == list(range(10))
    flow.ack(0, 1)
    flow.control(NACK, 3, 2)
    assert (flow.sender.una, flow.sender.nxt, flow.sender.sent_once) == (2, 2, 10)
    assert flow.pull() == list(range(2, 10))
    flow.control(NACK, 3, 1)  # out of date
    assert flow.sender.nxt == 10
    flow.ack(9, 10)
    assert flow.sender.is_done == 1


def test_cumulative_ack_moves_the_sender_forward_after_a_nack():
    flow = flow_of(10)
    flow.pull()
    flow.control(NACK, 3, 2)
    flow.pull(most=1)
    flow.ack(7, 8)
    assert (flow.sender.una, flow.sender.nxt) == (8, 8)
    assert flow.pull() == [8, 9]


def test_timeout_goes_back_doubles_rto_and_progress_resets_backoff():
    flow = flow_of(10, rto=100 * US, max_rto=300 * US)
    flow.pull(0, most=4)
    assert flow.sender.timer == 100 * US
    flow.ack(0, 1, now=30 * US)
    assert flow.sender.timer == 130 * US
    assert flow.fire() == 130 * US
    assert flow.pull(130 * US, most=3) == [1, 2, 3]
    assert flow.sender.timer == (130 + 200) * US
    assert flow.fire() == 330 * US
    flow.pull(330 * US, most=1)
    assert flow.sender.timer == (330 + 300) * US  # 400, cut to the largest
    assert flow.sender.backoff == 2
    flow.ack(1, 2, now=340 * US)
    assert (flow.sender.backoff, flow.sender.timer) == (0, 0)  # nothing is out there: 2 has not been sent again
    assert flow.pull(340 * US, most=1) == [2]
    assert flow.sender.timer == 440 * US


def test_rto_is_at_least_three_unloaded_round_trips():
    flow = flow_of(10, rto=1 * US)
    flow.pull(0, most=1)
    assert flow.sender.timer == 60 * US


# --- DCQCN: notifications ---------------------------------------------------------------------------------------


def test_receiver_sends_at_most_one_cnp_per_50_us():
    flow = flow_of(packets=100)
    echoes = [flow.data(n, ce=1, now=n * 10 * US).echo for n in range(12)]
    assert echoes == [1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0]
    assert flow.data(12, ce=0, now=1000 * US).echo == 0
    assert flow.data(13, ce=1, now=1000 * US + 1).echo == 1


def test_marked_out_of_order_packet_still_triggers_a_cnp():
    flow = flow_of(packets=100)
    assert flow.data(1).kind == NACK
    assert flow.data(2, ce=1, now=US) == ReceiverReply(ACK, 1, 0, 0, 1)
    assert flow.data(3, ce=1, now=2 * US).count == 0
    assert flow.data(0, ce=1, now=60 * US) == ReceiverReply(ACK, 1, 1, 0, 1)
    assert flow.data(2, ce=1, now=120 * US) == ReceiverReply(NACK, 1, 1, 0, 1)


# --- DCQCN: the rate --------------------------------------------------------------------------------------------


class Clocked(FlowHarness):
    """A sender that is notified, and sends a packet, when the test says."""

    def notify(self, at):
        self.ack(0, 0, echo=1, now=at)
        return self.sender.rate

    def send(self, at):
        """One packet leaves. Returns the rate."""
        self.pull(at, most=1)
        return self.sender.rate


def clocked(word=int, packets=100_000, **settings):
    return Clocked(Dcqcn, packets, base_rtt=20 * US, word=word, **settings)


def test_flow_starts_and_stays_at_line_rate_without_cnps():
    flow = clocked()
    assert (flow.sender.rate, flow.sender.gap) == (ONE, flow.sender.ps_per_byte)
    assert flow.pull(0, most=500) == list(range(500))  # no window
    assert flow.send(10_000 * US) == ONE


def test_first_cnp_halves_the_rate():
    """alpha is 1 at the first notification and stays 1: (1 - g) 1 + g."""
    flow = clocked()
    assert flow.notify(7_000 * US) == ONE // 2
    assert (flow.sender.target_rate, flow.sender.alpha) == (ONE, ONE)
    assert flow.sender.gap == 2 * flow.sender.ps_per_byte
    assert flow.notify(7_050 * US) == ONE // 4  # alpha is still 1, and the target is where it was
    assert flow.sender.target_rate == ONE // 2


@pytest.mark.parametrize("silent", [0, 1, 2, 100])
def test_alpha_decays_by_g_each_55_us_without_notification(silent):
    """alpha is (1 - g)^n after n whole periods; then the notification itself adds g (1 - alpha)."""
    flow = clocked()
    flow.notify(US)
    flow.notify(US + silent * 55 * US + 54 * US)
    alpha = (1 - 1 / 256) ** silent
    assert flow.sender.alpha == pytest.approx(ONE * (alpha + (1 - alpha) / 256), abs=silent + 2)


def test_rate_cut_uses_alpha_from_before_the_cnp():
    flow = clocked(rate_timer=10**15)
    flow.notify(US)
    alpha = (1 - 1 / 256) ** 64
    assert flow.notify(US + 64 * 55 * US) == pytest.approx(ONE / 2 * (1 - alpha / 2), rel=1e-4)


def test_alpha_stays_1_with_a_cnp_every_50_us():
    flow = clocked()
    for n in range(1, 20):
        flow.notify(n * 50 * US)
    assert flow.sender.alpha == ONE


def test_fast_recovery_halves_the_distance_five_times():
    """After the cut to 1/2: 3/4, 7/8, 15/16, 31/32, 63/64 of the line, at 55 us each; the target is the line."""
    flow = clocked()
    flow.notify(100 * US)
    rates = [flow.send(100 * US + n * 55 * US) for n in range(1, 6)]
    assert [rate / ONE for rate in rates] == [3 / 4, 7 / 8, 15 / 16, 31 / 32, 63 / 64]
    flow = clocked()
    flow.notify(100 * US)
    assert flow.send(100 * US + 55 * US - 1) == ONE // 2
    assert flow.send(100 * US + 5 * 55 * US) == ONE * 63 // 64  # ticks are made up for


def test_additive_increase_starts_at_the_sixth_tick():
    """Two cuts leave the target at half the line and the rate at a quarter. After five halvings the target rises by
    40 Mbps of 40 Gbps a tick, and the rate moves halfway to it."""
    flow = clocked()
    flow.notify(100 * US)
    flow.notify(100 * US + 50 * US)
    start = 150 * US
    assert flow.send(start + 5 * 55 * US) == ONE // 2 - ONE // 4 // 32
    targets = [(flow.send(start + n * 55 * US), flow.sender.target_rate)[1] for n in range(6, 10)]
    assert targets == [ONE // 2 + n * AI for n in range(1, 5)]
    rate = ONE // 2 - ONE // 4 // 32
    for target in targets:
        rate = (rate + target + 1) // 2
    assert flow.sender.rate == rate


def test_byte_counter_raises_the_rate_and_a_cnp_resets_both_counters():
    """Ten full packets of 4154 bytes are 41 540 bytes, so a lap takes 10 packets; there are no ticks."""
    flow = clocked(byte_counter=41_540, rate_timer=10**15)
    flow.notify(US)
    rates = [flow.send(US) for _ in range(30)]
    assert [n + 1 for n, (a, b) in enumerate(pairwise([ONE // 2, *rates])) if a != b] == [10, 20, 30]
    assert rates[-1] == ONE * 15 // 16
    for _ in range(9):
        flow.send(US)
    flow.notify(60 * US)
    assert (flow.sender.laps, flow.sender.ticks) == (0, 0)
    rate = flow.sender.rate
    assert [flow.send(60 * US) == rate for _ in range(10)] == [True] * 9 + [False]


def test_hyper_increase_starts_when_both_counters_pass_fast_recovery():
    """The byte counter counts a lap per packet, and the timer has counted twenty ticks. The n-th lap beyond the fifth
    raises the target by n leaps, because the byte counter is the slower one."""
    flow = clocked(byte_counter=4154, rate_ai=1_000_000, rate_hai=100_000_000)
    leap = 100_000_000 * ONE // 40_000_000_000
    for n in range(1, 6):
        flow.notify(n * 50 * US)  # down to 1/32, the target to 1/16
    start = 250 * US
    flow.send(start + 20 * 55 * US)  # twenty ticks, then lap 1
    assert (flow.sender.ticks, flow.sender.laps) == (20, 1)
    step = 1_000_000 * ONE // 40_000_000_000
    target = ONE // 16 + 16 * step  # 15 ticks beyond the fifth, and the lap: the faster clock is beyond it
    assert flow.sender.target_rate == target
    for lap in range(2, 9):
        flow.send(start + 20 * 55 * US)
        target += step if lap <= 5 else (lap - 5) * leap
        assert flow.sender.target_rate == target


def test_rate_stays_between_floor_and_line_rate():
    flow = clocked(floor=100)
    for n in range(1, 100):
        flow.notify(n * 50 * US)
    assert flow.sender.rate == ONE // 100
    assert flow.send(10**12) == ONE
    assert flow.send(10**12 + 1) == ONE
    assert flow.sender.target_rate == ONE


def test_losses_cut_the_rate_at_most_once_per_50_us():
    flow = clocked()
    flow.pull(0, most=20)
    flow.control(NACK, 5, 3, now=10 * US)
    assert flow.sender.rate == ONE // 2
    flow.pull(10 * US, most=10)
    flow.control(NACK, 8, 6, now=59 * US)
    assert flow.sender.rate == ONE // 2
    flow.control(NACK, 9, 7, 0, now=60 * US)
    assert flow.sender.rate == ONE // 4
    flow.pull(60 * US, most=1)
    flow.fire()
    assert flow.sender.rate < ONE // 2


def test_nack_with_cnp_cuts_the_rate_once():
    flow = clocked()
    flow.pull(0, most=20)
    flow.control(NACK, 5, 3, 1, now=10 * US)
    assert flow.sender.rate == ONE // 2


def test_state_stays_within_64_bits_at_extreme_values():
    flow = clocked(word=Word, packets=100, byte_counter=1, floor=1 << 20, rate_ai=10**15, rate_hai=10**15)
    for n in (1, 2, 10**13, 2 * 10**13):
        flow.notify(n)
        flow.send(n + 1)
        flow.send(n + 10**12)
    assert 1 <= flow.sender.rate <= ONE


# --- over the fabric --------------------------------------------------------------------------------------------


def test_lone_flow_completes_in_its_line_rate_time():
    size = 1_000_000
    outcome = play(star_of(2), [Flow(0, 1, size)], transport("dcqcn"))
    packets, last = divmod(size, 4096)
    assert outcome.ends == [(packets + 1) * 4154 * 80 + (last + 58) * 80 + 2 * US]
    assert outcome.again == [0]


@pytest.mark.parametrize("loss", [0.01, 0.2])
def test_all_messages_complete_over_a_lossy_link(loss):
    flows = [Flow(1, 0, 400_000), Flow(2, 0, 1), Flow(0, 2, 30_000)]
    outcome = play(star_of(3, loss=loss), flows, transport("dcqcn"), buffer=10_000_000)
    assert outcome.drops["link_loss"] > 0
    assert outcome.lost == [0, 0, 0]
    assert sum(outcome.again) > 0


def test_incast_into_a_small_buffer_completes():
    outcome = play(star_of(9), incast(8, 500_000), transport("dcqcn", rto="200us"), buffer=50_000)
    assert outcome.drops["tail"] > 0
    assert outcome.finished_ps < 100 * MS
