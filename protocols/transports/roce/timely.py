"""TIMELY (Mittal et al., SIGCOMM '15): the rate follows the gradient of the round trip time.

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

from pydantic import Field, model_validator

from gradwire.jit.compiled import njit
from gradwire.jit.layout import BLOCKED, S_DONE, S_GAP, S_LINE, S_PACKETS, S_USER
from gradwire.protocols.transports.base import ONE, Context, fraction
from gradwire.protocols.transports.common.recovery import find_losses
from gradwire.protocols.transports.common.recovery import pull as next_packet
from gradwire.protocols.transports.common.reliable import Reliable
from gradwire.protocols.transports.common.sent_times import BITMAPS, delay_of, stamp
from gradwire.protocols.transports.common.window import (
    CWND,
    HIGHEST,
    MAX_WINDOW,
    NXT,
    RECOVER,
    UNA,
    acknowledge,
    on_data,
    on_probe,
)
from gradwire.protocols.transports.common.window import on_timer as time_out
from gradwire.protocols.transports.common.window import start as start_window
from gradwire.scenarios.schema.base import single_mistake
from gradwire.scenarios.schema.network.transport_base import Gain, Tcp
from gradwire.scenarios.units import Bps, Bytes, PositiveTime, Ps, Rate, Size, format_time
from gradwire.scenarios.wire import DLCP_ACK_BYTES, UDP_OVERHEAD

# a sender's own words, after those of the window machinery that TIMELY uses
RATE = S_USER + 21  # share of the line rate, 20-bit fixed point
LAST_RTT = S_USER + 22
SLOPE = S_USER + 23  # smoothed difference of round trips
CALM = S_USER + 24  # consecutive completions without growth
LOWERED_AT = S_USER + 25  # last reduction by round trips, 0 = never

# parameters, after those of the window machinery
K_LOW, K_HIGH, K_BETA, K_EWMA, K_STEP, K_FLOOR, K_RTT, K_SEGMENT, K_PACKET = 5, 6, 7, 8, 9, 10, 11, 12, 13

HYPERACTIVE = 5  # calm completions before, and steps at once in, hyperactive increase


@njit
def _set_rate(M, k, f, rate):
    rate = min(max(rate, M[f + RATE] >> 1, M[k + K_FLOOR]), ONE)
    M[f + RATE] = rate
    M[f + S_GAP] = M[f + S_LINE] * ONE // rate


@njit
def start(M, k, f, now):
    """Start at line rate, without a window."""
    start_window(M, k, f, now)
    M[f + CWND] = MAX_WINDOW
    M[f + RATE] = ONE
    M[f + S_GAP] = M[f + S_LINE]


@njit
def pull(M, k, f, now):
    sequence = next_packet(M, k, f, now)
    if sequence != BLOCKED:
        stamp(M, f, sequence, now)
    return sequence


@njit
def _lower(M, k, f, share, rtt, now):
    """Lower the rate by a share of itself, at most once per round trip."""
    if M[f + LOWERED_AT] == 0 or now - M[f + LOWERED_AT] >= rtt:
        M[f + LOWERED_AT] = now
        _set_rate(M, k, f, M[f + RATE] - (M[f + RATE] * share >> 20))


@njit
def _complete(M, k, f, rtt, now):
    """Set the rate after a complete segment."""
    last = M[f + LAST_RTT]
    M[f + LAST_RTT] = rtt
    change = rtt - last if last else 0
    M[f + SLOPE] += (change - M[f + SLOPE]) * M[k + K_EWMA] >> 20
    calm = M[f + CALM]
    M[f + CALM] = 0
    if rtt < M[k + K_LOW]:
        _set_rate(M, k, f, M[f + RATE] + M[k + K_STEP])
    elif rtt > M[k + K_HIGH]:
        excess = ONE - M[k + K_HIGH] * ONE // rtt
        _lower(M, k, f, M[k + K_BETA] * excess >> 20, rtt, now)
    elif M[f + SLOPE] <= 0:
        M[f + CALM] = calm + 1
        steps = HYPERACTIVE if calm + 1 >= HYPERACTIVE else 1
        _set_rate(M, k, f, M[f + RATE] + steps * M[k + K_STEP])
    else:
        slope = min(M[f + SLOPE] * ONE // M[k + K_RTT], ONE)
        _lower(M, k, f, M[k + K_BETA] * slope >> 20, rtt, now)


@njit
def on_control(M, k, f, kind, sequence, argument, echo, now):
    """Process an acknowledgement: scoreboard, losses, and at the end of a segment the rate."""
    delay = delay_of(M, f, kind, sequence, now)
    acknowledge(M, k, f, sequence, argument, now)
    if M[f + S_DONE]:
        return
    if M[f + UNA] <= M[f + HIGHEST] and find_losses(M, f) > 0 and M[f + UNA] >= M[f + RECOVER]:
        M[f + RECOVER] = M[f + NXT]
        _set_rate(M, k, f, M[f + RATE] >> 1)
    if delay and ((sequence + 1) % M[k + K_SEGMENT] == 0 or sequence + 1 == M[f + S_PACKETS]):
        _complete(M, k, f, max(delay - (M[k + K_PACKET] * M[f + S_LINE] >> 16), 1), now)


@njit
def on_timer(M, k, f, now):
    """Handle a time-out: all packets in flight are retransmitted, at half the rate."""
    time_out(M, k, f, now)
    M[f + CWND] = MAX_WINDOW
    _set_rate(M, k, f, M[f + RATE] >> 1)


class Timely(Reliable, Tcp):
    """TIMELY (Mittal et al., SIGCOMM 2015): the rate follows the gradient of the round trip time; over UDP.
    Retransmission is that of the TCP variants. [recalled] unless marked."""

    forgets = True
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

    @model_validator(mode="after")
    def _thresholds(self) -> Timely:
        if self.t_low >= self.t_high:
            raise single_mistake("t_low", "is not below t_high", format_time(self.t_low), "t_low < t_high")
        return self

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
        return True

    @staticmethod
    def parameters(settings: dict, context: Context) -> list[int]:
        """Return those of NewReno; then times (ps), fractions and rates (20-bit fixed point), segment (packets), packet
        (bytes)."""
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
