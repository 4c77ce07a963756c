"""TCP's rules of a current kernel for how a window grows and when packets, timers and acknowledgements go, worked by hand.

Packets are numbered from 0, windows are in packets."""

from __future__ import annotations

import pytest
from linux_cases import MS, US, sender, window

from gradwire.jit.uncompiled import uncompiled
from gradwire.protocols.transports.common.window import SHIFT
from gradwire.protocols.transports.linux_tcp.layout import due
from gradwire.protocols.transports.tcp.cubic import Cubic
from gradwire.protocols.transports.tcp.tcp_newreno import TcpNewReno
from gradwire.testing import FlowHarness

# --- slow start --------------------------------------------------------------------------------------------------------


def round_of(flow: FlowHarness, now: int, rtt: int) -> int:
    """All that is out is acknowledged a round trip after `now`, and as much as may leaves then. Returns when."""
    flow.pull(now)
    for each in range(flow.sender.una, flow.sender.nxt):
        flow.ack(each, each + 1, now=now + rtt)
        flow.pull(now + rtt)
    return now + rtt


def test_hystart_plus_plus_slows_growth_on_rising_rtt_and_ends_in_five_rounds():
    """The round trip rises by an eighth, from 40 to 45 ms (RFC 9406, section 4.2). Growth falls to a quarter; slow start
    ends five rounds later."""
    flow = sender(1 << 14, window=16, slow_start="hystart++", min_rto=200 * MS)
    now = round_of(flow, 0, 40 * MS)
    now = round_of(flow, now, 40 * MS)
    assert (window(flow), flow.sender.css_baseline) == (64, 0)
    for _ in range(2):  # the last packets of a round are the first ones of the next
        now = round_of(flow, now, 45 * MS)
    assert flow.sender.css_baseline == 45 * MS
    rounds = 1  # that in which it began is one
    while not flow.sender.slow_start_ended:
        assert flow.sender.css_rounds == rounds
        before = window(flow)
        now = round_of(flow, now, 45 * MS)
        assert flow.sender.slow_start_ended or window(flow) - before == pytest.approx(before / 4, rel=0.1)
        rounds += 1
    assert rounds == 5 and flow.sender.ssthresh <= flow.sender.cwnd


def test_hystart_plus_plus_resumes_slow_start_when_rtt_falls():
    flow = sender(1 << 14, window=16, slow_start="hystart++", min_rto=200 * MS)
    now = round_of(flow, 0, 40 * MS)
    now = round_of(flow, now, 45 * MS)
    assert flow.sender.css_baseline > 0
    round_of(flow, now, 41 * MS)
    assert flow.sender.css_baseline == 0


def test_hystart_ends_slow_start_on_long_ack_train():
    """Acknowledgements of 16 packets, 1 ms apart at a 10 ms round trip, end slow start after 5 ms."""
    flow = sender(1 << 12, Cubic, window=16, slow_start="hystart", min_rto=200 * MS)
    flow.pull(0)
    for each in range(16):
        now = 10 * MS + each * MS
        flow.ack(each, each + 1, now=now)
        # half of 10 ms, and of at most 1 ms for bursts
        assert flow.sender.slow_start_ended == int(each > 5)
    assert flow.sender.ssthresh < 30 << SHIFT


# --- pacing, ticks, acknowledgements -----------------------------------------------------------------------------------


def test_pacing_rate_is_twice_the_window_per_round_trip_in_slow_start():
    flow = sender(1000, pacing=True, payload=1000)
    flow.pull(0)
    assert flow.sender.gap == 0
    for each in range(10):
        flow.sender.sent = each + 1  # as a host counts
        flow.ack(each, each + 1, now=100 * US)
    frame = 1000 + TcpNewReno.data_overhead
    assert flow.sender.gap / 65536 * frame * 2 * window(flow) == pytest.approx(100 * US, rel=0.001)


@pytest.mark.parametrize(
    ("now", "wait", "fires"),
    [(0, MS, 2), (MS // 2, MS, 2), (MS // 2, MS + 1, 3), (0, 97 * MS, 104), (0, 600 * MS, 640), (0, 5000 * MS, 5120)],
)
def test_timer_expiry_is_rounded_up_to_kernel_timer_wheel_tick(now, wait, fires):
    flow = sender(10, timers="ticks", preset="linux")
    assert uncompiled(due)(flow.parameters, now, wait) == fires * MS


def test_linux_preset_compiles_same_code_as_its_explicit_options():
    flow = sender(100)
    preset = FlowHarness(TcpNewReno, 100, preset="linux", min_rto=10 * MS)
    assert preset.run["pull"].__code__ is flow.run["pull"].__code__
    classic = FlowHarness(TcpNewReno, 100, preset="classic")
    assert classic.owner.pull.py_func.__code__ is not flow.owner.pull.py_func.__code__


def test_receiver_acks_first_sixteen_packets_then_every_second_and_last():
    flow = FlowHarness(TcpNewReno, 25, preset="linux", min_rto=10 * MS)
    counts = [flow.data(each, now=each * US).count for each in range(25)]
    assert counts == [1] * 16 + [0, 1] * 4 + [1]
