"""CUBIC against RFC 9438: reductions and curve worked by hand, the curve as a whole, and two flows at one bottleneck.

Windows are in packets, times in picoseconds."""

from __future__ import annotations

import pytest
from transport_bench import GBPS, MS, US, Flow, play, star_of

from gradwire.protocols.transports.common.cubic_curve import cube_root
from gradwire.protocols.transports.tcp.cubic import Cubic
from gradwire.protocols.transports.tcp.tcp_newreno import TcpNewReno
from gradwire.testing import FlowHarness, Word, transport

ONE = 1 << 16  # a window of one packet
SECOND = 1000 * MS
TICK = 1 << 20


def packets(word):
    return word / ONE


def at_window(window, count=100_000, word=int, **settings):
    """A sender in the middle of its message, with a full window of `window` packets out, above its threshold."""
    flow = FlowHarness(Cubic, count, word=word, **settings)
    flow.sender.cwnd = window * ONE
    flow.sender.ssthresh = window * ONE
    flow.pull()
    assert flow.sender.in_flight == window
    flow.sender.timed = -1  # sent at time 0: no measure of the round trips of these tests
    return flow


def lose_first(flow, now):
    """The first packet out there is lost; the three after it arrive."""
    una = flow.sender.una
    for sequence in (una + 1, una + 2, una + 3):
        flow.ack(sequence, una, now=now)
    return una


def finish_window(flow, una, now):
    """Everything that was sent before the reduction arrives, and what was lost is repaired."""
    end = flow.sender.nxt
    assert flow.pull(now)[0] == una
    for sequence in (una, *range(una + 4, end)):
        cumulative = una if sequence < una else end if sequence == end - 1 else max(sequence + 1, una + 4)
        flow.ack(sequence, cumulative, now=now)
        flow.pull(now)


@pytest.mark.parametrize("x", [0, 1, 7, 8, 26, 27, 63, 64, 10**9 - 1, 10**9, 2**40 + 1, 2**62 - 1, 2**63 - 1])
def test_cube_root_is_the_floor_of_the_exact_root(x):
    root = cube_root.py_func(x)
    assert root**3 <= x < (root + 1) ** 3


# --- reductions -----------------------------------------------------------------------------------------------------


def test_loss_reduces_the_window_to_70_percent():
    """Section 4.6: ssthresh = cwnd = 0.7 cwnd, W_max = cwnd."""
    flow = at_window(100)
    lose_first(flow, now=10 * US)
    assert packets(flow.sender.cwnd) == pytest.approx(70, abs=0.001)
    assert flow.sender.ssthresh == flow.sender.cwnd
    assert flow.sender.w_max == 100 * ONE


def test_ecn_echo_reduces_the_window_once_per_window():
    flow = at_window(100, ecn=True)
    flow.ack(0, 1, echo=1, now=10 * US)
    assert packets(flow.sender.cwnd) == pytest.approx(70, abs=0.001)
    flow.ack(1, 2, echo=1, now=10 * US)
    assert packets(flow.sender.cwnd) == pytest.approx(70, abs=0.001)


@pytest.mark.parametrize(("converge", "peak"), [(True, 0.85 * 80), (False, 80)])
def test_fast_convergence_lowers_w_max_below_the_last_peak(converge, peak):
    """Section 4.7: W_max = cwnd (1 + beta) / 2."""
    flow = at_window(80, fast_convergence=converge)
    flow.sender.w_max = 100 * ONE
    lose_first(flow, now=10 * US)
    assert packets(flow.sender.w_max) == pytest.approx(peak, abs=0.001)
    assert packets(flow.sender.cwnd) == pytest.approx(56, abs=0.001)


def test_fast_convergence_does_not_act_at_the_last_peak():
    flow = at_window(100)
    flow.sender.w_max = 100 * ONE
    lose_first(flow, now=10 * US)
    assert flow.sender.w_max == 100 * ONE


@pytest.mark.parametrize("beta", [0.5, 0.85])
def test_beta_sets_the_window_reduction(beta):
    flow = at_window(200, beta=beta)
    lose_first(flow, now=10 * US)
    assert packets(flow.sender.cwnd) == pytest.approx(200 * beta, abs=0.001)


def test_timeout_resets_the_window_and_the_next_stage_is_convex():
    """A time-out leaves one packet and ssthresh = 0.7 of the flight size (section 4.8). After slow start K = 0 and
    W_max = cwnd."""
    flow = at_window(100)
    flow.sender.w_max = 500 * ONE
    now = flow.fire()
    assert flow.sender.cwnd == ONE
    assert packets(flow.sender.ssthresh) == pytest.approx(70, abs=0.001)
    una = 0
    while flow.sender.epoch == 0:
        now += 100 * US
        sent = flow.pull(now)
        for sequence in sent:
            una += 1
            flow.ack(sequence, una, now=now + 50 * US)
    assert flow.sender.k == 0
    assert packets(flow.sender.w_max) == pytest.approx(70, abs=1.01)


# --- the curve --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("peak", [10, 100, 1000, 100_000])
def test_k_is_the_time_back_to_the_peak(peak):
    """K = cbrt(W_max (1 - beta) / C): 4.217 s for 100 packets."""
    flow = at_window(70)
    flow.sender.cwnd = int(0.7 * peak * ONE)
    flow.sender.ssthresh = flow.sender.cwnd
    flow.sender.w_max = peak * ONE
    flow.sender.in_flight = flow.sender.cwnd >> 16
    flow.ack(0, 1, now=SECOND)
    expected = (0.3 * peak / 0.4) ** (1 / 3)
    assert flow.sender.k * TICK / 1e12 == pytest.approx(expected, rel=2e-4)


def run_rounds(flow, rtt, seconds, begin=SECOND):
    """Whole windows, each acknowledged in order one round trip after it was sent. Yields (time, window) after each."""
    now = begin
    while now < begin + seconds * SECOND:
        first, last = flow.sender.una, flow.sender.nxt
        now += rtt
        for sequence in range(first, last):
            flow.ack(sequence, sequence + 1, now=now)
            flow.pull(now)
        yield now, flow.sender.cwnd


def test_window_follows_the_cubic_curve():
    """After a loss at 100 packets and a round trip of 200 ms: each of the w acknowledgements of a round moves the window
    by (target - cwnd) / cwnd, target = C (t + rtt - K)^3 + 100, worked out here with floating point. Concave up to K =
    4.2 s, when the window is back at 100, convex after it. In the first round W_cubic(0) = 70 is below W_est, which
    grows by 0.529 packets per round; from the second one on the curve is the higher one."""
    rtt = 200 * MS
    flow = at_window(70)
    flow.sender.w_max = 100 * ONE
    flow.sender.prior_cwnd = 100 * ONE
    flow.sender.srtt = rtt
    k = (30 / 0.4) ** (1 / 3)
    expected, seen, acknowledged = 70.0, [], 0
    for now, window in run_rounds(flow, rtt, 8):
        target = 0.4 * ((now - flow.sender.epoch) / 1e12 + 0.2 - k) ** 3 + 100
        if not seen:
            expected += 9 / 17
        for _ in range(flow.sender.una - acknowledged if seen else 0):
            expected += max(0.0, target - expected) / expected
        acknowledged = flow.sender.una
        assert packets(window) == pytest.approx(expected, abs=0.02)
        seen.append(packets(window))
    assert seen[20] == pytest.approx(100, abs=0.1)
    assert seen[39] > 115


def test_reno_friendly_window_grows_linearly():
    """The cubic curve adds almost nothing in a hundred round trips of 1 ms (0.001 s^3). The window grows by 3 (1 -
    0.7) / (1 + 0.7) = 0.529 packets per round trip up to its previous value, then by one."""
    flow = at_window(70)
    flow.sender.w_max = 100 * ONE
    flow.sender.srtt = MS
    flow.sender.prior_cwnd = 100 * ONE
    windows = [packets(window) for _, window in run_rounds(flow, MS, 0.12)]
    slope = (windows[50] - windows[10]) / 40
    assert slope == pytest.approx(9 / 17, rel=0.02)
    late = (windows[110] - windows[80]) / 30
    assert late == pytest.approx(1, rel=0.02)
    assert flow.sender.w_est == flow.sender.cwnd


def test_cubic_epoch_pauses_while_the_window_is_not_full():
    flow = at_window(70)
    flow.sender.w_max = 100 * ONE
    flow.sender.srtt = MS
    flow.ack(0, 1, now=SECOND)
    began = flow.sender.epoch
    assert began == SECOND
    for sequence in range(1, 40):
        flow.ack(sequence, sequence + 1, now=2 * SECOND)
    assert flow.sender.epoch == began + SECOND  # the first of them found the window not full any more


def test_slow_start_equals_newreno():
    ours, reno = FlowHarness(Cubic, 1000), FlowHarness(TcpNewReno, 1000)
    for flow in (ours, reno):
        flow.pull()
        for sequence in range(200):
            flow.ack(sequence, sequence + 1, now=10 * US)
            flow.pull(10 * US)
    assert ours.sender.cwnd == reno.sender.cwnd == 210 * ONE


def test_state_stays_within_64_bits_at_extreme_values():
    """The test combines the largest window, a steep curve and long stages. One acknowledgement covers 1000 packets."""
    for c in (0.001, 0.4, 10.0):
        flow = at_window(1000, word=Word, count=5000, c=c)
        flow.sender.cwnd = 1 << 38
        flow.sender.w_max = 1 << 38
        flow.sender.ssthresh = 1 << 37
        lose_first(flow, now=10 * US)
        assert flow.pull(20 * US)[0] == 0
        flow.sender.in_flight = 1 << 22
        flow.ack(0, 1000, now=SECOND)
        flow.pull(SECOND)
        flow.sender.in_flight = 1 << 22
        for n in range(1, 100):
            flow.sender.srtt = SECOND
            flow.ack(1000 + 10 * n, 1000 + 10 * n, now=100 * n * SECOND)
            flow.sender.in_flight = 1 << 22
        assert flow.sender.cwnd <= 1 << 38


# --- over the fabric ----------------------------------------------------------------------------------------------


def test_two_flows_share_a_link_fairly_at_full_utilization():
    """Two flows of 20 MB to one host share 10 Gbps, with marks above 100 KB. The port is almost always busy, and the
    flows end at about the same time."""
    size = 20_000_000
    flows = [Flow(1, 0, size), Flow(2, 0, size)]
    outcome = play(
        star_of(3, rate=10 * GBPS), flows, transport("cubic", ecn=True), buffer=5_000_000, threshold=100_000
    )  # fmt: skip
    ideal = 2 * size * 8 * 100  # ps at 10 Gbps
    assert outcome.marks > 0
    assert sum(outcome.again) == 0
    assert ideal < max(outcome.ends) < 1.05 * ideal
    assert min(outcome.ends) > 0.85 * max(outcome.ends)


def test_all_messages_arrive_despite_a_shallow_buffer():
    size = 20_000_000
    flows = [Flow(1, 0, size), Flow(2, 0, size)]
    outcome = play(star_of(3, rate=10 * GBPS), flows, transport("cubic"), buffer=300_000)
    ideal = 2 * size * 8 * 100
    assert sum(outcome.again) >= outcome.drops["tail"] > 0
    assert ideal < max(outcome.ends) < 2 * ideal


def test_all_messages_complete_over_a_lossy_link():
    outcome = play(star_of(3, loss=0.05), [Flow(1, 0, 300_000), Flow(2, 0, 1)], transport("cubic"), buffer=1_000_000)
    assert outcome.drops["link_loss"] > 0
    assert outcome.lost == [0, 0]


def test_retransmission_timer_stops_when_all_packets_are_acknowledged():
    flow = at_window(10, count=10)
    for sequence in range(10):
        flow.ack(sequence, sequence + 1, now=US)
    assert flow.sender.timer == 0
