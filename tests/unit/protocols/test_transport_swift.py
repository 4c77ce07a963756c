"""Swift: targets and windows worked by hand from its rule, pacing below one packet, and its queue near the target.

100 Gbps, packets of 4162 bytes on the wire, base round trip 10 us unless a test says otherwise."""

from __future__ import annotations

import math

import pytest
from transport_bench import GBPS, US, Flow, incast, play, star_of

from gradwire.jit.uncompiled import uncompiled
from gradwire.protocols.transports import swift
from gradwire.protocols.transports.swift import Swift, square_root
from gradwire.testing import FlowHarness, Word, transport

ONE = 1 << 16
BASE = 10 * US
TARGET = 10 * US  # base_target


def flow_of(packets=1000, window=10, **settings):
    """A flow with a full window out, sent at time 0."""
    flow = FlowHarness(Swift, packets, base_rtt=BASE, initial_window=window, **settings)
    flow.pull()
    assert flow.sender.in_flight == window
    return flow


def scaling(window, least=0.1, most=100.0, spread=50 * US):
    """The paper's flow scaling, in floating point."""
    alpha = spread / (1 / math.sqrt(least) - 1 / math.sqrt(most))
    return min(max(alpha / math.sqrt(window) - alpha / math.sqrt(most), 0), spread)


def target_of(flow):
    return uncompiled(swift.target_delay)(flow.parameters, flow.sender)


@pytest.mark.parametrize("x", [0, 1, 2, 3, 4, 99, 100, 2**40 - 1, 2**40, 2**60 - 1])
def test_square_root_equals_isqrt(x):
    assert square_root.py_func(x) == math.isqrt(x)


# --- target -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("window", [0.01, 0.1, 0.5, 1, 7, 50, 99, 100, 1000])
def test_flow_scaling_raises_the_target_delay_of_small_windows(window):
    flow = flow_of()
    flow.sender.fractional_window = int(window * ONE)
    assert target_of(flow) == pytest.approx(BASE + TARGET + scaling(window), rel=0.005)


def test_target_delay_uses_the_smallest_rtt_capped_at_the_base_rtt():
    flow = flow_of(fs_range=1)
    assert target_of(flow) == pytest.approx(BASE + TARGET, abs=2)
    flow.ack(0, 1, now=14 * US)
    assert target_of(flow) == pytest.approx(BASE + TARGET, abs=2)
    flow.ack(1, 2, now=6 * US)
    assert target_of(flow) == pytest.approx(6 * US + TARGET, abs=2)


# --- window -----------------------------------------------------------------------------------------------------------


def test_below_the_target_the_window_grows_by_one_packet_per_window():
    flow = flow_of()
    flow.ack(0, 1, now=12 * US)
    assert flow.sender.fractional_window == 10 * ONE + ONE // 10
    for sequence in range(1, 10):
        flow.ack(sequence, sequence + 1, now=12 * US)
    assert 10 * ONE + 10 * ONE // 11 < flow.sender.fractional_window < 11 * ONE
    assert flow.sender.cwnd == flow.sender.fractional_window


def test_window_below_one_packet_grows_by_ai_per_acknowledgement():
    flow = flow_of(window=1, ai=0.25)
    flow.sender.fractional_window = ONE // 2
    flow.ack(0, 1, now=12 * US)
    assert flow.sender.fractional_window == 3 * ONE // 4
    assert flow.sender.cwnd == ONE


def test_above_the_target_the_window_shrinks_in_proportion_to_the_excess():
    """A delay of 40 us with a smallest delay of 10 us shrinks the window by 40 %: (40 - 20) / 40 * 0.8."""
    flow = flow_of(fs_range=1)
    flow.ack(0, 1, now=10 * US)
    window = flow.sender.fractional_window
    flow.ack(1, 2, now=40 * US)
    assert flow.sender.fractional_window == pytest.approx(0.6 * window, rel=1e-4)


def test_delay_shrinks_the_window_by_half_at_most():
    """A delay of 200 us gives 0.9 * 0.8 = 0.72, which exceeds max_decrease."""
    flow = flow_of(fs_range=1)
    flow.ack(0, 1, now=200 * US)
    assert flow.sender.fractional_window == 5 * ONE


def test_delay_shrinks_the_window_at_most_once_per_round_trip():
    flow = flow_of(fs_range=1)
    flow.ack(0, 1, now=200 * US)
    assert flow.sender.srtt == 200 * US
    for sequence in range(1, 6):
        flow.ack(sequence, sequence + 1, now=200 * US + sequence)
    assert flow.sender.fractional_window == 5 * ONE
    flow.ack(6, 7, now=400 * US - 1)
    assert flow.sender.fractional_window == 5 * ONE
    flow.ack(7, 8, now=400 * US)
    assert flow.sender.fractional_window == 5 * ONE // 2


def test_loss_halves_the_window_and_triggers_immediate_retransmission():
    flow = flow_of()
    for sequence in (1, 2, 3):
        flow.ack(sequence, 0, now=12 * US)
    grown = 10 * ONE + sum(ONE // 10 for _ in range(3))
    assert flow.sender.fractional_window == pytest.approx(grown / 2, rel=0.01)
    assert flow.pull(12 * US) == [0]
    again = flow.sender.fractional_window
    flow.ack(4, 0, now=400 * US)  # far too late: but within this recovery and round trip only by its delay
    assert flow.sender.fractional_window < again


def test_retransmitted_packet_gives_no_delay_sample():
    flow = flow_of()
    for sequence in (1, 2, 3):
        flow.ack(sequence, 0, now=12 * US)
    assert flow.pull(12 * US) == [0]
    before = flow.sender.fractional_window
    flow.ack(0, 4, now=1000 * US)
    assert flow.sender.fractional_window == before


def test_fifth_consecutive_timeout_sets_the_minimum_window():
    flow = flow_of(min_rto=100 * US)
    windows = []
    for _ in range(5):
        now = flow.fire()
        flow.pull(now)
        windows.append(flow.sender.fractional_window / ONE)
    assert windows[0] == 5
    assert windows[4] == pytest.approx(0.01, abs=0.001)


def test_window_does_not_exceed_max_window():
    flow = flow_of(max_window=10)
    flow.ack(0, 1, now=12 * US)
    assert flow.sender.fractional_window == 10 * ONE


def test_window_below_one_packet_is_paced():
    """A window of 1/4 and a delay of 200 us allow one packet per 800 us."""
    flow = flow_of(window=1, fs_range=1)
    flow.sender.fractional_window = ONE // 2
    flow.ack(0, 1, now=BASE + 190 * US)  # halves: the excess is 180 / 200
    assert flow.sender.fractional_window == ONE // 4
    wire = 4096 + 66
    assert flow.sender.gap * wire / 65536 == pytest.approx(4 * 200 * US, rel=1e-6)
    assert flow.pull(now=BASE + 200 * US) == [1]  # one packet may always be out
    flow.sender.fractional_window = ONE
    flow.ack(1, 2, now=BASE + 212 * US)
    assert flow.sender.gap == 0


def test_extreme_delays_and_windows_do_not_overflow_64_bits():
    flow = FlowHarness(Swift, 1 << 12, base_rtt=BASE, word=Word, initial_window=1 << 12, payload=64, max_window=1 << 22)
    flow.pull()
    flow.ack(5, 0, now=10**13)
    flow.ack(6, 1 << 11, now=10**13 + 1)
    flow.sender.fractional_window = 700
    flow.sender.reduced_at = 0
    flow.ack(3000, 1 << 11, now=2 * 10**13)
    assert 0 < flow.sender.fractional_window <= 1 << 38


# --- over the fabric --------------------------------------------------------------------------------------------------


def test_two_flows_share_a_port_fairly_at_high_utilisation():
    size = 20_000_000
    flows = [Flow(1, 0, size), Flow(2, 0, size, at=200 * US)]
    outcome = play(star_of(3), flows, transport("swift"), buffer=50_000_000)
    ideal = 2 * size * 80
    assert sum(outcome.again) == 0
    assert ideal < max(outcome.ends) < 1.06 * ideal
    assert min(outcome.ends) > 0.8 * max(outcome.ends)


@pytest.mark.parametrize("base", ["5us", "20us", "50us"])
def test_the_queue_stays_near_the_target(base):
    """Four long flows into one port queue about base_target of data without flow scaling. Tiny messages of another
    host, sent through the same queue in the middle of the run, measure the queueing delay."""
    long = [Flow(host, 0, 30_000_000) for host in range(1, 5)]
    probes = [Flow(5, 0, 60, at=2_000 * US + n * 137 * US) for n in range(40)]
    outcome = play(
        star_of(6), long + probes, transport("swift", base_target=base, fs_range="1ps"), buffer=50_000_000
    )  # fmt: skip
    unloaded = 2 * (126 * 80 + US)
    waits = sorted(outcome.ends[4 + n] - flow.at - unloaded for n, flow in enumerate(probes))
    target = int(base[:-2]) * US
    assert 0.5 * target < waits[20] < 1.5 * target
    assert sum(outcome.again) == 0


def test_incast_with_windows_below_one_packet_is_paced_without_loss():
    """The target delay holds about six packets for a hundred flows. Windows fall below one packet, no packet is lost,
    and all messages complete within 1.3 times the ideal time."""
    senders, size = 100, 400_000
    outcome = play(
        star_of(1 + senders, rate=10 * GBPS), incast(senders, size),
        transport("swift", base_target="2us", fs_range="20us", initial_window=1), buffer=50_000_000,
    )  # fmt: skip
    ideal = senders * size * 800
    assert sum(outcome.again) == 0
    assert ideal < max(outcome.ends) < 1.3 * ideal
