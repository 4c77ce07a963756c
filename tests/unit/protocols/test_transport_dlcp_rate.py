"""DLCP's rates, worked by hand: as DCTCP by marks, and by delay as TIMELY.

100 Gbps, packets of 4154 bytes on the wire: one takes 332 320 ps. Base round trip 10 us, unless a test says otherwise.
"""

from __future__ import annotations

from itertools import pairwise

import pytest
from transport_bench import GBPS, US

from gradwire.jit.records.constants import BITMAP, STOP
from gradwire.protocols.transports.base import IMPORTANT_FLAG, ONE
from gradwire.protocols.transports.dlcp.dlcp import Dlcp
from gradwire.testing import FlowHarness, Word

BASE = 10 * US
STEP = 34_846  # one packet per base round trip, as a share of the line: 332 320 / 10 000 000 * 2**20


def flow_of(packets, base=BASE, **settings):
    plain = {"stop_policy": "eager", "rate_control": "dctcp", "send_order": "sequential"}
    return FlowHarness(Dlcp, packets, base_rtt=base, **plain | settings)


# --- by marks ------------------------------------------------------------------------------------------------


def rate_of(flow):
    """Share of the line; the gap says the same."""
    rate = flow.sender.pair.rate
    assert flow.sender.pair.gap == flow.sender.ps_per_byte * ONE // rate
    return rate


def steady(rate=ONE, alpha=ONE, **settings):
    """A flow in the middle of its message: a round trip of 10 us is over, without a mark, and another one begins at 10 us."""
    flow = flow_of(10_000, **settings)
    flow.pull(now=0, most=1)
    flow.ack(0, now=BASE)
    flow.sender.pair.rate = rate
    flow.sender.pair.alpha = alpha
    return flow


def test_rate_starts_at_line_rate_and_never_exceeds_line_rate():
    flow = flow_of(1000)
    assert rate_of(flow) == ONE
    close = steady(rate=ONE - 5)
    for sequence in range(1, 6):
        close.pull(now=sequence * BASE, most=1)
        close.ack(sequence, now=(sequence + 1) * BASE)
    assert rate_of(close) == ONE


def test_first_mark_halves_rate_immediately():
    flow = flow_of(100)
    flow.pull(most=30)
    flow.ack(0, echo=1, now=BASE)
    assert flow.sender.pair.alpha == ONE
    assert rate_of(flow) == ONE // 2


def test_marks_lower_rate_once_per_round_trip():
    flow = flow_of(100)
    flow.pull(most=30)
    for sequence in range(10):
        flow.ack(sequence, echo=1, now=BASE + sequence * US)
    assert rate_of(flow) == ONE // 2
    flow.ack(10, echo=1, now=2 * BASE)
    assert rate_of(flow) == ONE // 2 - (ONE // 2 * flow.sender.pair.alpha >> 21)


def test_round_trip_ends_when_timed_packet_is_acknowledged():
    """A growing queue makes earlier samples useless; the pending timed packet defines the round trip."""
    flow = flow_of(100)
    flow.pull(now=0, most=1)
    flow.ack(0, now=BASE)
    flow.sender.pair.alpha = ONE
    flow.pull(now=BASE, most=30)  # the first of these is timed
    flow.ack(2, echo=1, now=3 * BASE)
    assert rate_of(flow) == ONE // 2
    for n in range(3, 30):
        flow.ack(n, echo=1, now=3 * BASE + n * BASE // 30)  # less than 2 round trips, the present ones, after the cut
    assert rate_of(flow) == ONE // 2
    flow.ack(1, echo=1, now=5 * BASE)
    assert rate_of(flow) < ONE // 2


def test_alpha_follows_share_of_marked_packets():
    flow = steady()
    flow.pull(now=BASE, most=20)
    for sequence in range(1, 20):
        flow.ack(sequence, echo=int(sequence % 2 == 0), now=2 * BASE - 1)
    assert flow.sender.pair.alpha == ONE
    flow.ack(20, echo=1, now=2 * BASE)  # 10 of 20 are marked
    assert flow.sender.pair.alpha == ONE * 31 // 32


def test_g_sets_alpha_smoothing_gain():
    flow = steady(g=0.5)
    flow.pull(now=BASE, most=4)
    flow.ack(1, now=2 * BASE)  # ends a round trip without marks
    assert flow.sender.pair.alpha == ONE // 2


def test_rate_falls_by_alpha_and_rises_one_packet_per_round_trip():
    flow = steady(rate=ONE // 2, alpha=ONE // 4)
    flow.pull(now=BASE, most=1)
    flow.ack(1, now=2 * BASE)  # ends a round trip without a mark: one packet more
    assert rate_of(flow) == ONE // 2 + STEP
    alpha = flow.sender.pair.alpha
    assert alpha == ONE // 4 - ONE // 64
    flow.pull(now=2 * BASE, most=2)
    flow.ack(2, echo=1, now=3 * BASE - 2)
    lowered = ONE // 2 + STEP - ((ONE // 2 + STEP) * alpha >> 21)
    assert rate_of(flow) == lowered
    flow.ack(3, now=3 * BASE)  # the round trip had marks: not up
    assert rate_of(flow) == lowered


def test_next_message_inherits_pair_rate_unless_pair_was_idle():
    """The next message starts at the pair's rate, or at line rate after eight idle base round trips."""
    flow = steady(rate=ONE // 4)
    for later, rate in ((8 * BASE - 1, ONE // 4), (8 * BASE, ONE)):
        flow.sender.pair.rate = ONE // 4
        flow.run["start"](flow.memory, flow.k, flow.f, BASE + later)
        assert flow.sender.pair.rate == rate


@pytest.mark.parametrize("floor", [64, 10])
def test_rate_never_falls_below_the_floor(floor):
    flow = flow_of(1000, floor=floor)
    for sequence in range(500):
        flow.pull(now=sequence * BASE, most=1)
        flow.ack(sequence, echo=1, now=(sequence + 1) * BASE)
    assert rate_of(flow) == ONE // floor


def again(flow, missing, now):
    """The first pass is over, the probe is answered: `missing` is to be sent again."""
    flow.pull(flow.fire())
    for sequence in range(flow.packets):
        if sequence not in missing:
            flow.data(sequence)
    flow.control(BITMAP, 0, flow.probe(flow.sender.probe_number, now=now).argument, now=now)


# --- as the receiver says ------------------------------------------------------------------------------------


def shared_line(senders, **settings):
    """One flow each of so many pairs to one host, in one memory: what all of them share is that of the first."""
    flows = [flow_of(100, rate_control="receiver", **settings) for _ in range(senders)]
    for flow in flows[1:]:
        base = len(flows[0].memory)
        flows[0].memory += flow.memory
        flow.memory = flows[0].memory
        flow.k, flow.f, flow.r = flow.k + base, flow.f + base, flow.r + base
        sender, receiver = flow.sender, flow.receiver
        for record in (sender, receiver, flow.parameters):
            record.words, record.base = flow.memory, record.base + base
        sender.bitmaps = sender.bitmaps.base + base
        sender.peer_bitmaps = sender.peer_bitmaps.base + base
        sender.pair = sender.pair.base + base
        sender.stamps += base
        receiver.bitmaps = receiver.bitmaps.base + base
        receiver.pair = receiver.pair.base + base
        receiver.host = flows[0].receiver.host
        if sender.tags > 1:
            sender.tags += base
            receiver.tags += base
    return flows


def test_pair_rate_is_slowest_link_rate_divided_by_active_pairs():
    flow = flow_of(100, rate_control="receiver", slowest=25 * GBPS)
    assert flow.sender.pair.gap == flow.sender.ps_per_byte
    flow.pull(most=30)
    flow.ack(0, cumulative=3, now=BASE)  # three pairs send
    assert flow.sender.pair.gap == 3 * 4 * flow.sender.ps_per_byte
    flow.ack(1, cumulative=1, now=BASE + 1)
    assert flow.sender.pair.gap == 4 * flow.sender.ps_per_byte


def test_marks_lower_pair_share_and_unmarked_round_trip_raises_rate():
    flow = flow_of(100, rate_control="receiver")
    flow.pull(most=30)
    flow.sender.pair.alpha = ONE
    flow.ack(0, cumulative=4, echo=1, now=BASE)
    assert flow.sender.pair.rate == ONE // 4 * 3 // 4  # less a quarter: half as much as by marks alone
    assert flow.sender.pair.gap == flow.sender.ps_per_byte * ONE // (ONE // 4 * 3 // 4)
    flow.pull(now=BASE, most=1)
    flow.ack(30, cumulative=4, now=2 * BASE)
    assert flow.sender.pair.rate == ONE // 4 * 3 // 4 + ONE // 16
    assert flow.sender.pair.gap == 4 * flow.sender.ps_per_byte


def test_receiver_counts_pairs_with_arriving_packets():
    flows = shared_line(4)
    assert [flow.data(0, now=US).argument for flow in flows] == [1, 2, 3, 4]
    assert [flow.data(1, now=2 * US).argument for flow in flows] == [4] * 4


def test_receiver_stops_counting_pair_after_delivery():
    flows = shared_line(3, allowed=99 * 4096, tags=False)
    for flow in flows:
        flow.receiver.allowed_loss = 98 * 4096  # two packets deliver
    assert [flow.data(0, now=US).argument for flow in flows] == [1, 2, 3]
    assert flows[0].data(1, now=US).kind == STOP
    assert flows[1].data(0, now=US).argument == 2
    assert flows[1].data(1, now=12 * US).kind == STOP  # in the next epoch, which it was the first to be seen in
    assert flows[2].data(0, now=12 * US).argument == 1


def test_silent_pair_is_counted_until_next_epoch_ends():
    """An epoch lasts two packets of every pair, and at least one base round trip."""
    flows = shared_line(3)
    for flow in flows:
        flow.data(0, now=US)  # the first epoch: 1 to 11 us
    assert flows[0].data(1, now=10 * US).argument == 3
    assert flows[0].data(2, now=11 * US).argument == 3  # those of the epoch before
    assert flows[0].data(3, now=20 * US).argument == 3
    assert flows[0].data(4, now=21 * US).argument == 1
    assert flows[1].data(1, now=22 * US).argument == 2


def test_epoch_length_grows_with_number_of_pairs():
    flows = shared_line(40)
    for flow in flows:
        flow.data(0, now=US)
    flows[0].data(1, now=11 * US)  # from now on 80 packets: 26.6 us
    assert flows[0].data(2, now=37 * US).argument == 40
    assert flows[0].data(3, now=38 * US).argument == 1


def test_silent_pairs_are_not_counted_after_long_pause():
    flows = shared_line(3)
    for flow in flows:
        flow.data(0, now=US)
    assert flows[0].data(1, now=100 * US).argument == 1


# --- by delay ------------------------------------------------------------------------------------------------

T_LOW, T_HIGH, BETA = 50 * US, 500 * US, 0.8
ADD = 1048  # 10 Mbps of 10 Gbps in 20 bits


def by_delay(rtts, rate=ONE // 2, base=100 * US, **settings):
    """The rate after each of the measured round trips."""
    flow = flow_of(1000, base=base, rate_control="delay", **settings)
    flow.sender.pair.rate = rate
    rates = []
    for sequence, rtt in enumerate(rtts):
        flow.pull(now=10**9 * sequence, most=1)
        flow.ack(sequence, now=10**9 * sequence + rtt)
        rates.append(flow.sender.pair.rate)
    return rates


def test_rate_rises_below_lower_delay_threshold():
    assert by_delay([T_LOW - 1] * 3) == [ONE // 2 + ADD * n for n in (1, 2, 3)]


def test_rate_falls_with_slope_of_growing_delay():
    """60 us, then 100 us: the smoothed difference is 0.875 * 40 us, 0.35 of the base round trip."""
    rates = by_delay([60 * US, 100 * US, 120 * US])
    assert rates[0] == ONE // 2 + ADD
    assert rates[1] == pytest.approx(rates[0] * (1 - BETA * 0.35), rel=1e-5)
    slope = 0.125 * 35 + 0.875 * 20
    assert rates[2] == pytest.approx(rates[1] * (1 - BETA * slope / 100), rel=1e-5)


def test_rate_falls_above_upper_delay_threshold_regardless_of_slope():
    rates = by_delay([1000 * US, 1000 * US, 625 * US])
    assert rates[0] == pytest.approx(ONE / 2 * (1 - BETA * 0.5), rel=1e-5)
    assert rates[1] == pytest.approx(rates[0] * 0.6, rel=1e-5)
    assert rates[2] == pytest.approx(rates[1] * (1 - BETA * 0.2), rel=1e-5)


def test_rate_rises_five_times_faster_from_fifth_stable_round_trip():
    rates = by_delay([100 * US] * 7)
    steps = [b - a for a, b in zip([ONE // 2, *rates], rates, strict=False)]
    assert steps == [ADD] * 4 + [5 * ADD] * 3


def steps_of(rates):
    return [after - before for before, after in pairwise(rates)]


def test_delay_slope_decides_rate_at_either_threshold():
    first, second = by_delay([10 * US, T_LOW])
    assert second < first
    assert by_delay([T_HIGH, T_HIGH]) == [ONE // 2 + ADD, ONE // 2 + 2 * ADD]


@pytest.mark.parametrize("restless", [1000 * US, 120 * US])
def test_unstable_round_trip_resets_fast_increase_counter(restless):
    """An unstable round trip is above the upper threshold or longer than the one before."""
    rates = by_delay([*[100 * US] * 4, restless, *[100 * US] * 5])
    assert rates[4] < rates[3]
    assert steps_of(rates[4:]) == [ADD] * 4 + [5 * ADD]


def test_low_delay_round_trip_preserves_fast_increase_counter():
    """One round trip below the threshold separates three stable ones from two more; the slope stays 0."""
    rates = by_delay([*[100 * US] * 3, T_LOW - 1, 100 * US, 100 * US], ewma=0.0)
    assert steps_of(rates) == [ADD] * 4 + [5 * ADD]


def test_steep_delay_slope_lowers_rate_by_at_most_beta():
    rates = by_delay([60 * US, 400 * US])
    assert rates[1] == pytest.approx(rates[0] * 0.2, rel=1e-5)


def test_delay_control_stays_between_floor_and_line_rate():
    assert by_delay([10_000 * US] * 20)[-1] == ONE // 64
    assert by_delay([10 * US] * 3, rate=ONE - 1)[-1] == ONE


def test_delay_control_ignores_ecn_marks():
    flow = flow_of(100, rate_control="delay")
    flow.pull(most=30)
    for sequence in range(30):
        flow.ack(sequence, echo=1, now=BASE)
    assert flow.sender.pair.rate == ONE


# --- the timed packet ----------------------------------------------------------------------------------------


def test_srtt_starts_at_first_sample_and_smooths_later_samples():
    flow = flow_of(100)
    flow.pull(now=0, most=1)
    flow.ack(0, now=80 * US)
    assert flow.sender.pair.srtt == 80 * US
    flow.pull(now=80 * US, most=1)
    flow.ack(1, now=240 * US)
    assert flow.sender.pair.srtt == 90 * US  # 80 + (160 - 80) / 8


def test_retransmitted_packet_is_timed_from_retransmission():
    flow = flow_of(40)
    flow.pull(now=0)
    assert flow.sender.timed == 0
    again(flow, [3, 5], now=500 * US)
    assert flow.sender.timed == -1  # of what was under way nothing is known
    assert flow.pull(now=600 * US) == [3 | IMPORTANT_FLAG, 5 | IMPORTANT_FLAG]
    flow.ack(0, now=610 * US)
    flow.ack(5, now=620 * US)
    assert flow.sender.pair.srtt == BASE
    flow.ack(3, now=640 * US)
    assert flow.sender.pair.srtt == 40 * US


def test_delay_control_raises_rate_during_retransmissions():
    flow = flow_of(40, rate_control="delay", t_low=50 * US, t_high=500 * US)
    flow.pull(now=0)
    flow.sender.pair.rate = ONE // 64
    again(flow, range(10, 30), now=100 * US)
    for n in range(10, 30):
        flow.pull(now=n * 1000 * US, most=1)
        flow.ack(n, now=n * 1000 * US + 20 * US)
    assert flow.sender.pair.rate == ONE // 64 + 20 * ADD


def test_timed_packet_is_abandoned_on_newer_acknowledgement_after_eight_rtts():
    flow = flow_of(1000, rate_control="receiver")
    flow.pull(now=0, most=10)
    flow.pull(now=9 * BASE, most=10)  # the queue is long: nothing has come back at all
    assert flow.sender.timed == 0
    flow.ack(1, now=7 * BASE)
    assert flow.sender.timed == 0  # it may have gone another way
    flow.ack(2, now=9 * BASE)
    assert flow.sender.timed == -1
    flow.pull(now=9 * BASE, most=1)
    assert flow.sender.timed == 20


@pytest.mark.parametrize("more, given_up", [(0, False), (1, True)])
@pytest.mark.parametrize("control, trips", [("receiver", 8), ("dctcp", 3), ("delay", 3)])
def test_timed_packet_is_abandoned_after_more_than_its_round_trips(control, trips, more, given_up):
    flow = flow_of(1000, rate_control=control)
    flow.pull(now=0, most=10)
    flow.ack(1, now=trips * BASE + more)
    assert (flow.sender.timed == -1) == given_up


@pytest.mark.parametrize(
    "control, factor",
    [("receiver", lambda wait: 1), ("dctcp", lambda wait: 0.5), ("delay", lambda wait: 1 - BETA * (1 - T_HIGH / wait))],
)
def test_rate_by_marks_or_delay_falls_when_timed_packet_is_lost(control, factor):
    base = 300 * US
    flow = flow_of(1000, base=base, rate_control=control)
    flow.pull(now=0, most=10)
    flow.sender.pair.round_end = 100 * base  # nothing but the loss changes the rate
    flow.ack(1, now=3 * base + 1)
    assert flow.sender.pair.rate == pytest.approx(ONE * factor(3 * base), rel=1e-5)
    rate = flow.sender.pair.rate
    flow.ack(2, now=3 * base + 2)
    assert flow.sender.pair.rate == rate, "fell twice for one loss"


def test_delay_control_ignores_losses_while_round_trips_are_short():
    """Three round trips of 10 us are below T_low: the rate rises as for a sample."""
    flow = flow_of(1000, base=10 * US, rate_control="delay")
    flow.sender.pair.rate = ONE // 2
    flow.pull(now=0, most=10)
    flow.ack(1, now=30 * US + 1)
    assert flow.sender.timed == -1
    assert flow.sender.pair.rate == ONE // 2 + ADD


@pytest.mark.parametrize("rate", [10**7, 800 * GBPS])
@pytest.mark.parametrize("control", ["receiver", "dctcp", "delay"])
def test_rate_control_values_fit_64_bits_on_slow_and_fast_links(rate, control):
    trip = 10**12 if rate == 10**7 else US
    flow = FlowHarness(Dlcp, 2000, rate=rate, base_rtt=trip, word=Word, payload=9000, rate_control=control)
    for sequence in range(1000):
        flow.pull(sequence * trip, most=1)
        flow.ack(sequence, echo=int(sequence < 500), now=sequence * trip + trip + sequence % 3 * trip // 2)
    assert flow.sender.pair.srtt > 0
