"""TIMELY against its rule, worked by hand, and over the fabric.

100 Gbps, packets of 4154 bytes on the wire: one takes 332 320 ps on the line, which is taken off every round trip. Segments
are one packet, unless a test says otherwise; base round trip 20 us."""

from __future__ import annotations

import pytest
from transport_bench import GBPS, US, Flow, play, star_of

from gradwire.protocols.transports.base import ONE
from gradwire.protocols.transports.roce.timely import Timely
from gradwire.testing import FlowHarness, Word, transport

BASE = 20 * US
OWN = 4154 * 80
T_LOW, T_HIGH, BETA = 50 * US, 500 * US, 0.8
ADD = 1048  # 10 Mbps of 10 Gbps in 20 bits


class Clocked:
    """A sender whose packets come back one by one, each after the round trip that the test says."""

    def __init__(self, rate=ONE, packets=1000, word=int, **settings):
        settings = {"segment": 4096, "ewma": 1.0} | settings
        self.flow = FlowHarness(Timely, packets, base_rtt=BASE, word=word, **settings)
        self.flow.sender.rate = rate
        self.now = 0
        self.next = 0

    @property
    def sender(self):
        return self.flow.sender

    def round(self, rtt):
        """The next packet is acknowledged after `rtt`, its own serialisation not counted. Returns the rate."""
        assert self.flow.pull(self.now, most=1) == [self.next]
        self.now += rtt + OWN
        self.flow.ack(self.next, self.next + 1, now=self.now)
        self.next += 1
        return self.flow.sender.rate


def test_rate_starts_at_line_rate():
    flow = Clocked()
    assert (flow.sender.rate, flow.sender.gap) == (ONE, flow.sender.ps_per_byte)
    assert flow.flow.pull(most=500) == list(range(500))  # no window


def test_rate_rises_below_t_low_regardless_of_the_gradient():
    flow = Clocked(rate=ONE // 2)
    assert flow.round(20 * US) == ONE // 2 + ADD
    assert flow.round(49 * US) == ONE // 2 + 2 * ADD
    assert flow.sender.gap == flow.sender.ps_per_byte * ONE // flow.sender.rate


def test_rate_falls_by_the_excess_above_t_high():
    """A round trip of 1 ms removes beta (1 - 500 / 1000) = 0.4 of the rate."""
    flow = Clocked(rate=ONE // 2)
    assert flow.round(1000 * US) == pytest.approx(0.6 * ONE / 2, rel=1e-4)


def test_rising_round_trips_lower_the_rate_by_the_gradient():
    """A rise by half of the smallest round trip, 20 us, lowers the rate by 0.8 * 0.5."""
    flow = Clocked(rate=ONE // 2)
    flow.round(100 * US)  # the first one has no gradient, which is not a rise
    rate = flow.sender.rate
    assert rate == ONE // 2 + ADD
    assert flow.round(110 * US) == pytest.approx(rate * (1 - 0.8 * 0.5), rel=1e-4)


def test_steep_gradient_lowers_the_rate_by_half_at_most():
    """A gradient of one and beta 0.8 would leave a fifth; a step leaves at least half."""
    flow = Clocked(rate=ONE // 2)
    flow.round(100 * US)
    rate = flow.sender.rate
    assert flow.round(200 * US) == rate >> 1


def test_rtt_gradient_is_smoothed_by_ewma():
    """A weight of 7/8 counts a difference of 10 us as 8.75 us; a zero difference then leaves 8.75 / 8."""
    flow = Clocked(rate=ONE // 2, ewma=0.875)
    flow.round(100 * US)
    flow.round(110 * US)
    assert flow.sender.rtt_slope == 10 * US * 7 // 8
    flow.round(110 * US)
    assert flow.sender.rtt_slope == pytest.approx(10 * US * 7 / 64, rel=1e-4)


def test_hyperactive_increase_starts_at_fifth_completion_without_rtt_rise():
    flow = Clocked(rate=ONE // 4)
    steps, before = [], ONE // 4
    for _ in range(7):
        rate = flow.round(100 * US)
        steps.append((rate - before) // ADD)
        before = rate
    assert steps == [1, 1, 1, 1, 5, 5, 5]
    flow.round(101 * US)
    assert flow.sender.calm_completions == 0
    before = flow.sender.rate
    assert flow.round(101 * US) == before + ADD


def test_only_the_last_packet_of_a_segment_updates_the_rate():
    flow = Clocked(rate=ONE // 2, segment=4 * 4096)
    for rtt in (100, 300, 200):
        assert flow.round(rtt * US) == ONE // 2
    flow.round(120 * US)
    assert (flow.sender.last_rtt, flow.sender.rate) == (120 * US, ONE // 2 + ADD)


@pytest.mark.parametrize("floor", [10, 1000])
def test_rate_stays_between_floor_and_line_rate(floor):
    flow = Clocked(floor=floor)
    for _ in range(100):
        flow.round(20 * US)
    assert flow.sender.rate == ONE
    for _ in range(100):
        flow.round(5000 * US)
    assert flow.sender.rate == ONE // floor


def test_losses_in_one_round_trip_halve_the_rate_once_and_are_retransmitted():
    flow = FlowHarness(Timely, 1000, base_rtt=BASE)
    flow.pull(0, most=30)
    for sequence in (1, 2, 3, 5, 6, 7, 9):
        flow.ack(sequence, 0, now=30 * US)
    assert flow.sender.rate == pytest.approx(ONE / 2, abs=2 * ADD)
    assert flow.sender.recover == 30
    assert flow.pull(30 * US, most=2) == [0, 4]


def test_timeout_halves_the_rate_and_retransmits_all_packets():
    flow = FlowHarness(Timely, 20, base_rtt=BASE)
    flow.pull(0)
    now = flow.fire()
    assert flow.sender.rate == ONE // 2
    assert flow.pull(now) == list(range(20))
    flow.ack(5, 0, now=now + 30 * US)
    assert flow.sender.last_rtt == 0  # sent twice: measures nothing


def test_extreme_round_trips_do_not_overflow_64_bits():
    flow = Clocked(word=Word, packets=10)
    for rtt in (10**13, 1, 10**13):
        flow.round(rtt)
    assert flow.sender.rate >= ONE // 1000


def test_rate_falls_at_most_once_per_round_trip():
    """Five packets waited in the same queue, and the rate falls once."""
    flow = FlowHarness(Timely, 100, base_rtt=BASE, segment=4096)
    flow.pull(0, most=10)
    for sequence in range(5):
        flow.ack(sequence, sequence + 1, now=1000 * US + OWN + sequence * US)
    assert flow.sender.rate == pytest.approx(0.6 * ONE, rel=1e-4)
    flow.pull(1000 * US, most=1)
    flow.ack(5, 6, now=1999 * US)  # sent before the rate fell
    assert flow.sender.rate == pytest.approx(0.6 * ONE, rel=1e-4)
    flow.ack(10, 6, now=2010 * US + OWN)  # sent after: beta (1 - 500 / 1010)
    assert flow.sender.rate == pytest.approx(0.6 * (1 - 0.8 * (1 - 500 / 1010)) * ONE, rel=1e-3)


def test_two_flows_share_a_port_at_high_utilisation_with_short_queues():
    """No packet is lost, and both flows finish together within 1.15 times the ideal time. The median queueing delay is
    below T_low. The link has 10 Gbps, the thresholds are the defaults."""
    size = 20_000_000
    flows = [Flow(1, 0, size), Flow(2, 0, size)]
    probes = [Flow(3, 0, 60, at=4_000 * US + n * 517 * US) for n in range(40)]
    outcome = play(star_of(4, rate=10 * GBPS), flows + probes, transport("timely"), buffer=50_000_000)
    ideal = 2 * size * 800
    assert sum(outcome.again) == 0
    assert ideal < max(outcome.ends) < 1.15 * ideal
    assert min(outcome.ends[:2]) > 0.95 * max(outcome.ends[:2])
    waits = sorted(outcome.ends[2 + n] - flow.at for n, flow in enumerate(probes))
    assert waits[20] < 50 * US


@pytest.mark.parametrize("loss", [0.01, 0.2])
def test_all_messages_complete_over_a_lossy_link(loss):
    flows = [Flow(1, 0, 400_000), Flow(2, 0, 1), Flow(0, 2, 30_000)]
    outcome = play(star_of(3, loss=loss), flows, transport("timely"), buffer=10_000_000)
    assert outcome.drops["link_loss"] > 0
    assert outcome.lost == [0, 0, 0]
