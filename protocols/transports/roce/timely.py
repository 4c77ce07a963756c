"""TIMELY (Mittal et al., SIGCOMM '15) sets a sender's rate by the gradient of the round trip time.

The rule, for each completion of a segment [recalled; the paper's listing, and its authors' code in eRPC [code]]: below
T_low the rate rises by delta; above T_high it falls by beta (1 - T_high / rtt); in between it rises by delta while the
smoothed gradient is not positive, five times as fast from the fifth such completion on, and else falls by beta times
the gradient, normalised by the smallest round trip. A step never more than halves the rate [code].

The numbers are those of `notes` [recalled]: beta 0.8, delta 10 Mbps on a 10 Gbps line, T_low 50 us, T_high 500 us,
weight of the newest difference 0.875 (the authors' code has 0.02 [code]; it is a parameter).

Our choices, where the paper relies on RDMA hardware or speaks of bursts:

* packets are paced one by one; a segment (16 KB by default) completes when its last packet is acknowledged, and the
  round trip is that packet's, less its own serialisation on the host's link, as the paper subtracts the segment's;
* a flow starts at line rate: the NIC serves flows in turn, which gives each of N busy ones the paper's 1/N of the line.
  It never falls below line rate / `floor`;
* it falls at most once per round trip. If every segment in a long queue could lower it again, two flows of 20 MB that
  start together on a 10 Gbps port would push each other to the floor and take 69 ms instead of 35 (32 at best);
* losses do not happen on the paper's lossless network. Here they are repaired as by the window machinery (selective
  acknowledgements, time-outs), and halve the rate once per round trip; no window limits the flight;
* the smallest round trip is the unloaded one of the longest path.

T_low is more than 500 KB of queue can delay at 100 Gbps: with shallow buffers and fast links set it lower.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from gradwire.jit.compiled import njit
from gradwire.jit.records import Word
from gradwire.jit.records.constants import BLOCKED
from gradwire.protocols.transports.base import ONE, Context, fixed_mul, fraction
from gradwire.protocols.transports.common.recovery import find_losses
from gradwire.protocols.transports.common.recovery import pull as next_packet
from gradwire.protocols.transports.common.reliable import Reliable
from gradwire.protocols.transports.common.sent_times import BITMAPS, delay_of, stamp
from gradwire.protocols.transports.common.window import (
    MAX_WINDOW,
    WindowFlow,
    WindowParameters,
    acknowledge,
    on_data,
    on_probe,
)
from gradwire.protocols.transports.common.window import on_timer as time_out
from gradwire.protocols.transports.common.window import start as start_window
from gradwire.scenarios.schema.network.transport_base import Gain, Tcp
from gradwire.scenarios.units import Bps, Bytes, PositiveTime, Ps, Rate, Size
from gradwire.scenarios.wire import DLCP_ACK_BYTES, UDP_OVERHEAD


class TimelyFlow(WindowFlow):
    """The sender of TIMELY."""

    rate = Word("share of the line rate", "20-bit fraction", at=21)
    last_rtt = Word("round trip of the last segment, 0 = none", "ps")
    rtt_slope = Word("smoothed difference of round trips", "ps")
    calm_completions = Word("consecutive segments without growth of the delay")
    reduced_at = Word("last reduction by round trips, 0 = never", "ps")


class TimelyParameters(WindowParameters):
    """The parameters of TIMELY."""

    t_low = Word("lower threshold of the round trip", "ps", at=5)
    t_high = Word("upper threshold of the round trip", "ps")
    beta = Word("multiplicative decrease", "20-bit fraction")
    ewma = Word("weight of the newest difference of round trips", "20-bit fraction")
    add_step = Word("additive increase, as a share of the line rate", "20-bit fraction")
    rate_floor = Word("smallest rate, as a share of the line rate", "20-bit fraction")
    base_rtt = Word("base round trip", "ps")
    segment_packets = Word("packets of a segment", "packets")
    packet_bytes = Word("bytes on the wire of a full packet", "bytes")


HYPERACTIVE = 5  # calm completions before, and steps at once in, hyperactive increase


@njit
def _set_rate(params: TimelyParameters, flow: TimelyFlow, rate: int) -> None:
    """Set the rate, at least half of the present one, and the packet spacing."""
    rate = min(max(rate, flow.rate >> 1, params.rate_floor), ONE)
    flow.rate = rate
    flow.gap = flow.ps_per_byte * ONE // rate


@njit
def start(params: TimelyParameters, flow: TimelyFlow, now: int) -> None:
    """Start at line rate, without a window."""
    start_window(params, flow, now)
    flow.cwnd = MAX_WINDOW
    flow.rate = ONE
    flow.gap = flow.ps_per_byte


@njit
def pull(params: TimelyParameters, flow: TimelyFlow, now: int) -> int:
    """Return the next retransmission, else the next new packet."""
    sequence = next_packet(params, flow, now)
    if sequence != BLOCKED:
        stamp(flow, sequence, now)
    return sequence


@njit
def _lower(params: TimelyParameters, flow: TimelyFlow, share: int, rtt: int, now: int) -> None:
    """Lower the rate by a share of itself, at most once per round trip."""
    if flow.reduced_at == 0 or now - flow.reduced_at >= rtt:
        flow.reduced_at = now
        _set_rate(params, flow, flow.rate - fixed_mul(flow.rate, share))


@njit
def _complete(params: TimelyParameters, flow: TimelyFlow, rtt: int, now: int) -> None:
    """Set the rate after a complete segment."""
    last = flow.last_rtt
    flow.last_rtt = rtt
    change = rtt - last if last else 0
    flow.rtt_slope += fixed_mul(change - flow.rtt_slope, params.ewma)
    calm = flow.calm_completions
    flow.calm_completions = 0
    if rtt < params.t_low:
        _set_rate(params, flow, flow.rate + params.add_step)
    elif rtt > params.t_high:
        excess = ONE - params.t_high * ONE // rtt
        _lower(params, flow, fixed_mul(params.beta, excess), rtt, now)
    elif flow.rtt_slope <= 0:
        flow.calm_completions = calm + 1
        steps = HYPERACTIVE if calm + 1 >= HYPERACTIVE else 1
        _set_rate(params, flow, flow.rate + steps * params.add_step)
    else:
        slope = min(flow.rtt_slope * ONE // params.base_rtt, ONE)
        _lower(params, flow, fixed_mul(params.beta, slope), rtt, now)


@njit
def on_control(
    params: TimelyParameters, flow: TimelyFlow, kind: int, sequence: int, argument: int, echo: int, now: int
) -> None:
    """Process an acknowledgement: scoreboard, losses, and at the end of a segment the rate."""
    delay = delay_of(flow, kind, sequence, now)
    acknowledge(params, flow, sequence, argument, now)
    if flow.is_done:
        return
    if flow.una <= flow.highest and find_losses(flow) > 0 and flow.una >= flow.recover:
        flow.recover = flow.nxt
        _set_rate(params, flow, flow.rate >> 1)
    if delay and ((sequence + 1) % params.segment_packets == 0 or sequence + 1 == flow.packets):
        _complete(params, flow, max(delay - (params.packet_bytes * flow.ps_per_byte >> 16), 1), now)


@njit
def on_timer(params: TimelyParameters, flow: TimelyFlow, now: int) -> None:
    """Handle a time-out: all packets in flight are retransmitted, at half the rate."""
    time_out(params, flow, now)
    flow.cwnd = MAX_WINDOW
    _set_rate(params, flow, flow.rate >> 1)


class Timely(Reliable, Tcp):
    """TIMELY (Mittal et al., SIGCOMM 2015): the rate follows the gradient of the round trip time; over UDP.
    Retransmission is that of the TCP variants. [recalled] unless marked."""

    forgets = True
    ignores_losses = True
    kind: Literal["timely"]
    t_low: PositiveTime = Ps(50_000_000)
    """Round trips below this raise the rate. The default is more than the delay of 500 KB of queue at 100 Gbps."""
    t_high: PositiveTime = Ps(500_000_000)
    """Round trips above this lower the rate whatever the gradient."""
    beta: Gain = 0.8
    """Multiplicative decrease."""
    ewma: Gain = 0.875
    """Weight of the newest difference of round trips; the authors' code has 0.02."""
    add_rate: Rate = Bps(10_000_000)
    """Additive increase per segment on a 10 Gbps line; scaled with the line rate (the scaling is ours)."""
    floor: Annotated[int, Field(ge=1, le=1 << 20, strict=True)] = 1000
    """The rate is at least line rate over this. Ours."""
    segment: Size = Bytes(16_384)
    """The rate changes once per this many bytes acknowledged."""

    must_be_below = ("t_low", "t_high")

    wire = "udp"

    control_bytes = DLCP_ACK_BYTES
    data_overhead = UDP_OVERHEAD
    sender_bitmaps = BITMAPS
    start = staticmethod(start)
    pull = staticmethod(pull)
    on_control = staticmethod(on_control)
    on_timer = staticmethod(on_timer)
    on_data = staticmethod(on_data)
    on_probe = staticmethod(on_probe)

    @staticmethod
    def important(settings: dict) -> bool:
        """Return True: packets are never dropped selectively; marks are ignored."""
        return True

    @staticmethod
    def control_important(settings: dict) -> bool:
        """Return True: control packets are never dropped selectively."""
        return True

    @staticmethod
    def parameters(settings: dict, context: Context) -> list[int]:
        """Return those of `Reliable`; then the rest of `TimelyParameters`, in its units."""
        return [
            *Reliable.parameters(settings, context),
            settings["t_low"],
            settings["t_high"],
            fraction(settings["beta"]),
            fraction(settings["ewma"]),
            max(1, settings["add_rate"] * ONE // 10_000_000_000),
            max(1, ONE // settings["floor"]),
            context.base_rtt,
            max(1, settings["segment"] // context.payload),
            context.payload + UDP_OVERHEAD,
        ]
