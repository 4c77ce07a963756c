"""DLCP's rates, worked by hand: as DCTCP by marks, and by delay as TIMELY.

100 Gbps, packets of 4154 bytes on the wire: one takes 332 320 ps. Base round trip 10 us, unless a test says otherwise.
"""

from __future__ import annotations

from itertools import pairwise

import pytest
from transport_bench import GBPS, US

from gradwire.components.layout import BITMAP, S_GAP, S_LINE
from gradwire.components.transports.base import MUST, ONE
from gradwire.components.transports.dlcp import ALPHA, NEW, PROBE, RATE, SRTT, TIMED, Dlcp
from gradwire.testing import Ends, Word

BASE = 10 * US
STEP = 34_846  # one packet per base round trip, as a share of the line: 332 320 / 10 000 000 * 2**20


def flow_of(packets, base=BASE, **settings):
    return Ends(Dlcp, packets, base_rtt=base, **settings)


# --- by marks ------------------------------------------------------------------------------------------------


def round_trip(flow, marked=(), now=BASE):
    """Acknowledge everything that is out, in order; `marked`: which of it. All comes back at `now`."""
    first, last = flow.heard, flow[NEW]
    for number, sequence in enumerate(range(first, last)):
        flow.ack(sequence, echo=int(number in marked), now=now)
    flow.heard = last


def steady(packets=10_000, rate=ONE, **settings):
    """A flow in the middle of its message: the round trip of the first packet is over, without a mark."""
    flow = flow_of(packets, **settings)
    flow.pull(now=0, most=1)
    flow.heard = 0
    round_trip(flow)
    flow[RATE] = rate
    flow[ALPHA] = ONE
    return flow


def test_starts_at_line_rate_and_does_not_pass_it():
    flow = flow_of(100)
    assert flow[RATE] == ONE
    assert flow[S_GAP] == flow[S_LINE]
    flow.heard = 0
    for _ in range(5):
        flow.pull(most=10)
        round_trip(flow)
    assert (flow[RATE], flow[S_GAP]) == (ONE, flow[S_LINE])
    close = steady(rate=ONE - 5)
    close.pull(most=10)
    round_trip(close)
    close.pull(most=1)
    round_trip(close)
    assert close[RATE] == ONE


def test_first_mark_halves_at_once():
    flow = flow_of(100)
    flow.pull(most=30)
    flow.ack(0, echo=1, now=BASE)
    assert flow[ALPHA] == ONE
    assert flow[RATE] == ONE // 2
    assert flow[S_GAP] == 2 * flow[S_LINE]


def test_lower_once_per_round_trip():
    flow = flow_of(100)
    flow.pull(most=30)
    for sequence in range(30):  # all of them were sent before the rate fell
        flow.ack(sequence, echo=1, now=BASE + sequence * US)  # however long they take to come back
    assert flow[RATE] == ONE // 2
    flow.pull(most=10)
    flow.ack(30, echo=1, now=4 * BASE)
    assert flow[RATE] == ONE // 4


def test_share_of_marks_moves_alpha():
    """A round trip ends with the first packet that was sent after it began: 2 to 21, then 22 to 41."""
    flow = steady()
    flow.pull(now=BASE, most=20)
    flow.ack(1, now=2 * BASE)
    flow[ALPHA] = ONE
    flow.pull(now=2 * BASE, most=20)
    for sequence in range(2, 21):
        flow.ack(sequence, echo=int(sequence % 2 == 0), now=2 * BASE)
    assert flow[ALPHA] == ONE
    flow.ack(21, now=3 * BASE)  # 10 of 20 are marked
    assert flow[ALPHA] == ONE * 31 // 32
    flow.pull(now=3 * BASE, most=20)
    for sequence in range(22, 42):
        flow.ack(sequence, now=4 * BASE)
    assert flow[ALPHA] == ONE * 31 // 32 * 15 // 16


def test_alpha_moves_by_g():
    flow = steady(g=0.5)
    flow.pull(now=BASE, most=4)
    flow.ack(1, now=2 * BASE)  # ends a round trip without marks
    assert flow[ALPHA] == ONE // 2


def test_rate_follows_alpha_down_and_rises_by_one_packet_per_round_trip():
    flow = steady(rate=ONE // 2)
    flow[ALPHA] = ONE // 4
    flow.pull(now=BASE, most=8)
    flow.ack(1, now=2 * BASE)  # ends the round trip of the packet before: no mark, one packet more
    assert flow[RATE] == ONE // 2 + STEP
    alpha, rate = flow[ALPHA], flow[RATE]
    assert alpha == ONE // 4 - ONE // 64
    flow.ack(2, echo=1, now=2 * BASE)
    assert flow[RATE] == rate - (rate * alpha >> 21)
    lowered = flow[RATE]
    for sequence in range(3, 9):
        flow.ack(sequence, echo=1, now=2 * BASE)
    assert flow[RATE] == lowered
    flow.pull(most=8)
    flow.ack(9, now=3 * BASE)  # the round trip had marks: not up
    assert flow[RATE] == lowered
    for sequence in range(10, 17):
        flow.ack(sequence, now=3 * BASE)
    flow.pull(most=8)
    flow.ack(17, now=4 * BASE)  # this one had none
    assert abs(flow[RATE] - lowered - STEP * BASE / flow[SRTT]) < 2


@pytest.mark.parametrize("floor", [64, 10])
def test_rate_never_falls_below_the_floor(floor):
    flow = flow_of(1000, floor=floor)
    for sequence in range(500):
        flow.pull(most=1)
        flow.ack(sequence, echo=1, now=sequence * BASE)
    assert flow[RATE] == ONE // floor
    assert flow[S_GAP] == flow[S_LINE] * ONE // (ONE // floor)


def again(flow, missing, now):
    """The first pass is over, the probe is answered: `missing` is to be sent again."""
    flow.pull(flow.fire())
    for sequence in range(flow.packets):
        if sequence not in missing:
            flow.data(sequence)
    flow.control(BITMAP, 0, flow.probe(flow[PROBE], now=now).argument, now=now)


def test_no_second_reaction_to_the_last_packets_of_a_pass_however_late_they_come_back():
    flow = flow_of(20)
    flow.pull(now=0)
    flow.ack(0, echo=1, now=BASE)  # everything was sent by now
    for sequence in range(1, 20):
        flow.ack(sequence, echo=1, now=(sequence + 1) * 5 * BASE)
    assert flow[RATE] == ONE // 2


def test_round_trips_are_told_by_the_order_also_while_packets_are_sent_again():
    flow = flow_of(40)
    flow.pull(now=0)
    flow.ack(0, echo=1, now=BASE)
    again(flow, range(10, 30), now=5 * BASE)
    assert flow.pull(most=5) == [i | MUST for i in range(10, 15)]
    flow.ack(10, echo=1, now=6 * BASE)  # the first of this pass: everything before it is more than a round trip old
    assert flow[RATE] == ONE // 4
    assert flow.pull(most=5) == [i | MUST for i in range(15, 20)]
    for n, sequence in enumerate(range(11, 15)):
        flow.ack(sequence, echo=1, now=(n + 7) * 9 * BASE)  # sent before the rate fell
    assert flow[RATE] == ONE // 4
    flow.ack(15, echo=1, now=60 * BASE)
    assert flow[RATE] == ONE // 8


def test_rate_rises_once_per_round_trip_while_packets_are_sent_again():
    flow = flow_of(40)
    flow.pull(now=0)
    flow.ack(0, now=BASE)
    again(flow, range(10, 30), now=5 * BASE)
    flow[RATE] = ONE // 2
    flow.pull(now=5 * BASE, most=5)
    flow.ack(10, now=6 * BASE)  # what came before, without marks
    assert flow[RATE] == ONE // 2 + STEP
    flow.pull(now=6 * BASE, most=5)
    for sequence in range(11, 15):
        flow.ack(sequence, now=40 * BASE)
    assert flow[RATE] == ONE // 2 + STEP
    flow.ack(15, now=40 * BASE)
    assert flow[RATE] > ONE // 2 + STEP


# --- by delay ------------------------------------------------------------------------------------------------

T_LOW, T_HIGH, BETA = 50 * US, 500 * US, 0.8
ADD = 1048  # 10 Mbps of 10 Gbps in 20 bits


def by_delay(rtts, rate=ONE // 2, base=100 * US, **settings):
    """The rate after each of the measured round trips."""
    flow = flow_of(1000, base=base, rate_control="delay", **settings)
    flow[RATE] = rate
    rates = []
    for sequence, rtt in enumerate(rtts):
        flow.pull(now=10**9 * sequence, most=1)
        flow.ack(sequence, now=10**9 * sequence + rtt)
        rates.append(flow[RATE])
    return rates


def test_below_the_lower_threshold_the_rate_rises():
    assert by_delay([T_LOW - 1] * 3) == [ONE // 2 + ADD * n for n in (1, 2, 3)]


def test_growing_delay_lowers_the_rate_by_its_slope():
    """60 us, then 100 us: the smoothed difference is 0.875 * 40 us, 0.35 of the base round trip."""
    rates = by_delay([60 * US, 100 * US, 120 * US])
    assert rates[0] == ONE // 2 + ADD
    assert rates[1] == pytest.approx(rates[0] * (1 - BETA * 0.35), rel=1e-5)
    slope = 0.125 * 35 + 0.875 * 20
    assert rates[2] == pytest.approx(rates[1] * (1 - BETA * slope / 100), rel=1e-5)


def test_above_the_upper_threshold_the_rate_falls_whatever_the_slope():
    rates = by_delay([1000 * US, 1000 * US, 625 * US])
    assert rates[0] == pytest.approx(ONE / 2 * (1 - BETA * 0.5), rel=1e-5)
    assert rates[1] == pytest.approx(rates[0] * 0.6, rel=1e-5)
    assert rates[2] == pytest.approx(rates[1] * (1 - BETA * 0.2), rel=1e-5)


def test_calm_rises_five_times_as_fast_from_the_fifth_round_trip_on():
    rates = by_delay([100 * US] * 7)
    steps = [b - a for a, b in zip([ONE // 2, *rates], rates, strict=False)]
    assert steps == [ADD] * 4 + [5 * ADD] * 3


def steps_of(rates):
    return [after - before for before, after in pairwise(rates)]


def test_at_either_threshold_the_slope_counts():
    first, second = by_delay([10 * US, T_LOW])
    assert second < first
    assert by_delay([T_HIGH, T_HIGH]) == [ONE // 2 + ADD, ONE // 2 + 2 * ADD]


@pytest.mark.parametrize("restless", [1000 * US, 120 * US])
def test_calm_begins_anew_after_a_restless_round_trip(restless):
    """Above the upper threshold, or on the rise."""
    rates = by_delay([*[100 * US] * 4, restless, *[100 * US] * 5])
    assert rates[4] < rates[3]
    assert steps_of(rates[4:]) == [ADD] * 4 + [5 * ADD]


def test_below_the_lower_threshold_calm_is_kept():
    """Three calm ones, one below, and two more; the slope is left at 0."""
    rates = by_delay([*[100 * US] * 3, T_LOW - 1, 100 * US, 100 * US], ewma=0.0)
    assert steps_of(rates) == [ADD] * 4 + [5 * ADD]


def test_steep_slope_takes_at_most_beta():
    rates = by_delay([60 * US, 400 * US])
    assert rates[1] == pytest.approx(rates[0] * 0.2, rel=1e-5)


def test_delay_control_respects_floor_and_line():
    assert by_delay([10_000 * US] * 20)[-1] == ONE // 64
    assert by_delay([10 * US] * 3, rate=ONE - 1)[-1] == ONE


def test_marks_do_not_matter_to_delay_control():
    flow = flow_of(100, rate_control="delay")
    flow.pull(most=30)
    for sequence in range(30):
        flow.ack(sequence, echo=1, now=BASE)
    assert flow[RATE] == ONE


# --- the timed packet ----------------------------------------------------------------------------------------


def test_round_trip_is_smoothed_from_the_first_measurement_on():
    flow = flow_of(100)
    flow.pull(now=0, most=1)
    flow.ack(0, now=80 * US)
    assert flow[SRTT] == 80 * US
    flow.pull(now=80 * US, most=1)
    flow.ack(1, now=240 * US)
    assert flow[SRTT] == 90 * US  # 80 + (160 - 80) / 8


def test_packet_sent_again_is_timed_from_then_on():
    flow = flow_of(40)
    flow.pull(now=0)
    assert flow[TIMED] == 0
    again(flow, [3, 5], now=500 * US)
    assert flow[TIMED] == -1  # of what was under way nothing is known
    assert flow.pull(now=600 * US) == [3 | MUST, 5 | MUST]
    flow.ack(0, now=610 * US)
    flow.ack(5, now=620 * US)
    assert flow[SRTT] == BASE
    flow.ack(3, now=640 * US)
    assert flow[SRTT] == 40 * US


def test_delay_control_goes_on_while_packets_are_sent_again():
    flow = flow_of(40, rate_control="delay", t_low=50 * US, t_high=500 * US)
    flow.pull(now=0)
    flow[RATE] = ONE // 64
    again(flow, range(10, 30), now=100 * US)
    for n in range(10, 30):
        flow.pull(now=n * 1000 * US, most=1)
        flow.ack(n, now=n * 1000 * US + 20 * US)
    assert flow[RATE] == ONE // 64 + 20 * ADD


def test_timed_packet_is_given_up_when_later_ones_came_back_and_not_before():
    flow = flow_of(1000)
    flow.pull(now=0, most=10)
    flow.pull(now=9 * BASE, most=10)  # the queue is long: nothing has come back at all
    assert flow[TIMED] == 0
    flow.ack(1, now=7 * BASE)
    assert flow[TIMED] == 0  # it may have gone another way
    flow.ack(2, now=9 * BASE)
    assert flow[TIMED] == -1
    flow.pull(now=9 * BASE, most=1)
    assert flow[TIMED] == 20
    flow.ack(15, now=30 * BASE)  # older than the timed one: says nothing about it
    assert flow[TIMED] == 20


@pytest.mark.parametrize("more, given_up", [(0, False), (1, True)])
def test_timed_packet_is_given_up_after_eight_round_trips_and_not_at_eight(more, given_up):
    flow = flow_of(1000)
    flow.pull(now=0, most=10)
    flow.ack(1, now=8 * BASE + more)
    assert (flow[TIMED] == -1) == given_up


@pytest.mark.parametrize("rate", [10**7, 800 * GBPS])
@pytest.mark.parametrize("control", ["dctcp", "delay"])
def test_numbers_fit_64_bits_on_slow_and_fast_links(rate, control):
    trip = 10**12 if rate == 10**7 else US
    flow = Ends(Dlcp, 2000, rate=rate, base_rtt=trip, word=Word, payload=9000, rate_control=control)
    for sequence in range(1000):
        flow.pull(sequence * trip, most=1)
        flow.ack(sequence, echo=int(sequence < 500), now=sequence * trip + trip + sequence % 3 * trip // 2)
    assert flow[SRTT] > 0
