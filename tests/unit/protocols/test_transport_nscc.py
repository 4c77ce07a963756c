"""NSCC by hand: the four cases of an acknowledgement, fast increase, quick adapt, headers, losses.

100 Gbps and a base round trip of 12 us, for which the specification has its gains: alpha is 4 times 9 us (the target)
over 12 us, 3 packets. Packets of 4154 bytes on the wire take 332 320 ps, so the largest window is 54.16 packets."""

from __future__ import annotations

import random

import pytest
from transport_bench import GBPS, MS, US

from gradwire.jit.records.constants import ACK, BLOCKED, NACK
from gradwire.protocols.transports.common.window import SHIFT
from gradwire.protocols.transports.ultra_ethernet.nscc import Nscc
from gradwire.testing import FlowHarness, Word

TRIP = 12 * US
TARGET = 9 * US
LARGEST = 1.5 * TRIP / (4154 * 80)


class Flow(FlowHarness):
    """A flow whose packets come back one by one, after a round trip of the test's choice."""

    def __init__(self, window=None, packets=4000, **fields):
        super().__init__(Nscc, packets, base_rtt=TRIP, **{"eta": 0.0} | fields)
        self.out, self.sent = [], 0
        if window is not None:
            self.sender.cwnd = window << SHIFT

    @property
    def window(self):
        return self.sender.cwnd / (1 << SHIFT)

    def send(self, now):
        """Send what the window allows at `now`."""
        self.sent = now
        self.out += self.pull(now)

    def answers(self, count, delay=0, marked=False):
        """The next `count` packets come back, all at once, having waited for `delay`. Nothing is sent."""
        for _ in range(count):
            self.ack(self.out.pop(0), 0, echo=int(marked), now=self.sent + TRIP + delay)

    def settled(self, now):
        """As if everything had last been adjusted, lowered and averaged at `now`."""
        self.sender.applied_at = self.sender.reduced_at = self.sender.averaged_at = now


def begun(window, delay, **fields):
    """A flow with that window, all of it sent, whose last adjustment is not a round trip ago when it comes back."""
    flow = Flow(window, **fields)
    flow.send(0)
    flow.settled(TRIP + delay)
    return flow


# --- the four cases -----------------------------------------------------------------------------------------------------


def test_initial_window_is_the_maximum_window():
    flow = Flow()
    assert flow.window == pytest.approx(LARGEST, abs=0.01)
    assert len(flow.pull()) == 54


@pytest.mark.parametrize("products, packets", [(0.5, 18), (1.0, 36)])
def test_initial_window_may_be_below_the_maximum_window(products, packets):
    """A bandwidth-delay product is 36.1 packets; the largest window stays."""
    flow = Flow(initial_window=products)
    assert len(flow.pull()) == packets
    assert flow.sender.cwnd / (1 << SHIFT) == pytest.approx(products * LARGEST / 1.5, abs=0.01)


def test_samples_have_equal_weights_in_htsims_average():
    """Each delay weighs 0.0125 whenever it comes. One above the target without a mark counts as 3 us, a quarter of the
    base round trip."""
    flow = Flow(20, averaging="samples")
    flow.send(0)
    flow.settled(TRIP)
    average = 0.0
    for delay, marked, counted in ((4 * US, False, 4 * US), (20 * US, True, 20 * US), (20 * US, False, 3 * US)):
        flow.answers(1, delay, marked)
        average += 0.0125 * (counted - average)
        assert flow.sender.average_delay == pytest.approx(average, rel=1e-3)


@pytest.mark.parametrize("delay, part", [(2 * US, 7 / 9), (4_500_000, 1 / 2), (8_999_000, 0)])
def test_proportional_increase_scales_with_distance_below_the_target_delay(delay, part):
    """Nine of 20 packets add 9 * 3 / 20 of a packet, times the distance to the target. The ninth applies the
    increase."""
    flow = begun(20, delay)
    flow.answers(8, delay)
    assert flow.window == 20
    flow.answers(1, delay)
    assert flow.window == pytest.approx(20 + part * 27 / 20, abs=0.002)


@pytest.mark.parametrize("delay", [TARGET, 3 * TARGET])
def test_fair_increase_is_independent_of_the_delay(delay):
    """Nine of 20 packets add 9 * 5 / 20 of a packet at any delay."""
    flow = begun(20, delay)
    flow.answers(9, delay)
    assert flow.window == pytest.approx(20 + 45 / 20, abs=0.001)


def test_fair_increase_is_larger_for_a_small_window():
    flow = begun(10, TARGET)
    flow.answers(9, TARGET)
    assert flow.window == pytest.approx(10 + 45 / 10, abs=0.001)


@pytest.mark.parametrize("delay", [0, 2 * US, TARGET - 1000])
def test_marks_below_the_target_delay_do_not_change_the_window(delay):
    flow = begun(20, delay)
    flow.sender.average_delay, flow.sender.reduced_at = 50 * US, 0
    flow.answers(20, delay, marked=True)
    assert flow.window == 20


def test_multiplicative_decrease_uses_average_delay_once_per_round_trip():
    """An average delay of 18 us removes 0.8 * (18 - 9) / 18 = 0.4 of the window."""
    flow = begun(20, 18 * US)
    flow.sender.reduced_at, flow.sender.average_delay = 0, 18 * US
    flow.answers(1, 18 * US, marked=True)
    assert flow.window == pytest.approx(12, abs=0.001)
    flow.answers(10, 18 * US, marked=True)
    assert flow.window == pytest.approx(12, abs=0.001)
    flow.sender.reduced_at = 18 * US - 1
    flow.answers(1, 18 * US, marked=True)
    assert flow.window == pytest.approx(12 * 0.6, abs=0.001)


def test_multiplicative_decrease_leaves_at_least_half_the_window():
    """The rule alone would remove 0.8 * (90 - 9) / 90 = 0.72 of the window."""
    flow = begun(20, 90 * US)
    flow.sender.reduced_at, flow.sender.average_delay = 0, 90 * US
    flow.answers(1, 90 * US, marked=True)
    assert flow.window == pytest.approx(10, abs=0.001)


def test_average_delay_weights_samples_by_elapsed_time():
    flow = begun(20, 18 * US)
    flow.sender.averaged_at = TRIP + 18 * US - TRIP // 4
    flow.answers(1, 18 * US)
    assert flow.sender.average_delay == pytest.approx(18 * US / 4, rel=0.001)
    flow.answers(5, 18 * US)
    assert flow.sender.average_delay == pytest.approx(18 * US / 4, rel=0.001)


def test_eta_is_added_once_per_round_trip():
    flow = begun(20, TARGET - 1000, eta=0.15)
    flow.answers(18, TARGET - 1000, marked=True)
    assert flow.window == 20
    flow.sender.applied_at -= TRIP
    flow.answers(2, TARGET - 1000, marked=True)
    assert flow.window == pytest.approx(20.15, abs=0.001)


def test_gains_are_scaled_with_the_bandwidth_delay_product():
    """A rate of 400 Gbps quadruples fi."""
    flow = Flow(20, rate=400 * GBPS)
    flow.send(0)
    flow.settled(TRIP + TARGET)
    flow.answers(9, TARGET)
    assert flow.window == pytest.approx(20 + 4 * 45 / 20, abs=0.01)


# --- fast increase --------------------------------------------------------------------------------------------------------


def clear(**fields):
    """A window of 30 packets, all of which came back without delay, and the next 30 sent."""
    flow = begun(30, 0, alpha=0.0, **fields)
    flow.answers(30)
    flow.send(TRIP)
    flow.settled(2 * TRIP)
    return flow


def test_fast_increase_starts_after_a_full_window_without_delay():
    flow = clear()
    assert flow.window == 30
    for number in range(1, 9):
        flow.answers(1)
        assert flow.window == pytest.approx(30 + number / 4, abs=0.001)


def test_fast_increase_continues_while_window_exceeds_the_undelayed_packets():
    flow = clear(fi_scale=2.0)
    flow.answers(5)
    assert flow.window == pytest.approx(40, abs=0.001)


@pytest.mark.parametrize("delay, marked", [(2 * US, False), (TARGET, True)])
def test_first_delayed_packet_ends_fast_increase(delay, marked):
    flow = clear()
    flow.answers(4)
    flow.answers(1, delay, marked)
    flow.answers(8)
    assert flow.window == pytest.approx(31, abs=0.001)


def test_window_never_exceeds_the_maximum():
    flow = Flow(50)
    for _ in range(8):
        flow.send(flow.sent + TRIP)
        flow.answers(len(flow.out))
    assert flow.window == pytest.approx(LARGEST, abs=0.01)


def test_shorter_round_trip_lowers_base_rtt_and_maximum_window():
    flow = begun(20, 0)
    flow.ack(flow.out.pop(0), 0, now=TRIP // 2)
    assert flow.sender.base_rtt == TRIP // 2
    for _ in range(8):
        flow.send(flow.sent + TRIP)
        flow.ack(flow.out.pop(0), 0, now=flow.sent + TRIP // 2)
    flow.sender.cwnd = 50 << SHIFT
    flow.sender.applied_at = 0
    flow.ack(flow.out.pop(0), 0, now=flow.sent + TRIP)
    assert flow.window == pytest.approx(LARGEST / 2, abs=0.01)


# --- headers and quick adapt ----------------------------------------------------------------------------------------------


def test_trimmed_header_is_nacked_unless_its_packet_has_arrived():
    flow = Flow(20)
    flow.data(0)
    assert (flow.header(5).kind, flow.header(5).argument) == (NACK, 1)
    assert flow.header(0).kind == ACK


def test_nack_shrinks_the_window_by_one_and_retransmits_the_packet():
    flow = Flow(20)
    flow.send(0)
    flow.control(NACK, 7, 0, now=TRIP)
    flow.control(NACK, 4, 0, now=TRIP)
    assert (flow.window, flow.sender.in_flight) == (18, 18)
    assert flow.pull(TRIP) == []
    flow.answers(1)
    assert flow.pull(TRIP) == [4]
    flow.answers(1)
    assert flow.pull(TRIP) == [7]


def test_retransmitted_packet_can_be_trimmed_again():
    flow = Flow(20)
    flow.send(0)
    flow.control(NACK, 3, 0, now=TRIP)
    flow.control(NACK, 3, 0, now=TRIP)
    assert (flow.window, flow.sender.in_flight) == (19, 19)
    flow.answers(1)
    assert flow.pull(TRIP) == [3]
    flow.control(NACK, 3, 0, now=2 * TRIP)
    flow.answers(1)
    assert flow.pull(2 * TRIP) == [3]


def congested(arrived):
    """All of a first window sent; one packet opens the period; `arrived` come within it, then a header after it."""
    flow = Flow()
    flow.send(0)
    flow.answers(1, 2 * US)
    end = TRIP + 2 * US + TRIP + TARGET
    for number in range(arrived):
        flow.ack(flow.out.pop(0), 0, now=TRIP + 3 * US + number)
    window = flow.window
    flow.control(NACK, flow.out.pop(0), 0, now=end)
    return flow, window, end


@pytest.mark.parametrize("arrived", [0, 1, 3, 6])
def test_quick_adapt_sets_the_window_to_the_number_of_arrived_packets(arrived):
    """Quick adapt acts below 54.16 / 8 = 6.77 arrived packets; the window is at least one packet."""
    flow, _, _ = congested(arrived)
    assert flow.window == max(arrived, 1)


def test_quick_adapt_spares_flows_above_an_eighth_of_the_maximum_window():
    flow, window, _ = congested(7)
    assert flow.window == pytest.approx(window - 1)


def test_nacks_within_a_quick_adapt_period_shrink_the_window_by_one_each():
    flow = begun(20, 2 * US)
    flow.answers(1, 2 * US)
    for number in (5, 6):
        flow.control(NACK, number, 0, now=TRIP + 3 * US)
    assert flow.window == 18


def test_quick_adapt_can_be_disabled():
    flow = begun(20, 2 * US, quick_adapt=False)
    flow.answers(1, 2 * US)
    flow.control(NACK, 5, 0, now=MS)
    assert flow.window == 19


def test_marks_of_outstanding_packets_are_ignored_after_quick_adapt():
    """54 packets were sent, 1 + 3 arrived, 1 was trimmed: 49 are in flight. Marks do not count until these are
    acknowledged, and a reordering of ten packets is not a loss yet."""
    flow, _, end = congested(3)
    assert flow.sender.to_ignore == flow.sender.in_flight == 49
    flow.sender.average_delay, flow.sender.reduced_at = 50 * US, 0
    flow.ack(flow.out.pop(10), 0, echo=1, now=end)
    for number in range(47):
        flow.ack(flow.out.pop(0), 0, echo=1, now=end + number)
    assert flow.window == 3
    flow.ack(flow.out.pop(0), 0, echo=1, now=end + 48)
    assert flow.window == pytest.approx(1.5, abs=0.2)


def test_long_delay_triggers_quick_adapt_without_trimming():
    """The target is 12 us and the threshold 48 us."""
    for delay, adapted in ((48 * US, False), (49 * US, True)):
        flow = Flow(20, trimming=False)
        flow.send(0)
        flow.answers(1, 2 * US)
        flow.answers(2, 2 * US)
        flow.settled(TRIP + delay)
        flow.answers(1, delay)
        assert (flow.window == 3) == adapted


# --- losses ---------------------------------------------------------------------------------------------------------------


def test_a_packet_overtaken_by_one_and_a_half_windows_is_lost():
    flow = Flow(10, eta=0.0, alpha=0.0, fi=0.0, fi_scale=0.0)
    flow.send(0)
    lost = flow.out.pop(0)
    highest = 0
    now = 0
    while highest <= lost + 15:
        now += TRIP
        highest = flow.out.pop(0)
        flow.ack(highest, 0, now=now)
        again = flow.pull(now)
        if highest <= lost + 15:
            assert lost not in again
            flow.out += again
    assert again == [lost]
    assert flow.window == 9


def test_timeout_shrinks_the_window_by_the_outstanding_packets():
    flow = Flow(20)
    flow.pull(0, most=12)
    assert flow.fire() == 100 * US
    assert (flow.window, flow.sender.in_flight) == (8, 0)
    assert flow.pull(100 * US) == list(range(8))
    assert flow.sender.timer == 300 * US


def test_random_responses_neither_overflow_nor_stall_the_sender():
    """Random responses at 800 Gbps over a round trip of 1 ms fit 64-bit state, and the message completes."""
    dice = random.Random(5)
    for trial in range(6):
        flow = FlowHarness(
            Nscc, 300, base_rtt=MS, rate=800 * GBPS, word=Word, trimming=trial % 2 == 0, max_window=50.0, alpha=1000.0,
            fi=1000.0, eta=1000.0, fi_scale=1000.0,
        )  # fmt: skip
        now, out = 1, []
        while not flow.sender.is_done:
            out += flow.pull(now, most=40)
            now += dice.choice((1000, US, MS))
            if out and dice.random() < 0.7:
                sequence = out.pop(dice.randrange(len(out)))
                if dice.random() < 0.2:
                    flow.control(NACK, sequence, 0, now=now)
                else:
                    said = flow.data(sequence)
                    flow.control(ACK, sequence, said.argument, dice.randrange(2), now=now)
            elif flow.sender.timer:
                now = max(now, flow.fire())
            assert flow.sender.cwnd >= 1 << SHIFT
        assert flow.sender.nxt == 300
        assert flow.run["pull"](flow.memory, flow.k, flow.f, Word(now)) == BLOCKED


@pytest.mark.parametrize("base_rtt", [10, 10 * US, 4 * MS, 1000 * MS])
@pytest.mark.parametrize("max_window", [0.01, 1.5, 1000.0])
def test_first_window_fits_64_bits_at_any_round_trip(base_rtt: int, max_window: float) -> None:
    """It is the largest window, of at least one packet and at most four million. `Word` refuses what does not fit the
    engine's 64 bits: at 4 ms and 450 Gbps, 10 bandwidth-delay products of small packets once did not."""
    flow = FlowHarness(Nscc, 100, base_rtt=base_rtt, rate=450 * GBPS, payload=64, max_window=max_window, word=Word)
    expected = max_window * base_rtt / (flow.parameters.packet_bytes * 8e12 / (450 * GBPS))
    assert flow.sender.cwnd / (1 << SHIFT) == pytest.approx(min(max(expected, 1), 1 << 22), rel=0.01)
