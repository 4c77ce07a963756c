"""Swift (Kumar et al., SIGCOMM '20) sets a window that keeps the fabric delay near a target.

The rule [recalled, and as in htsim [code]]: an acknowledgement with a delay below the target opens the window by ai /
cwnd per packet (by ai per packet below one packet); one above it shrinks the window, at most once per round trip, by
beta (delay - target) / delay, and by at most `max_decrease`. Fast recovery shrinks it by `max_decrease`, and so does a
time-out; from the fifth consecutive time-out on it is the smallest window. A window below one packet is enforced by
pacing: one packet every rtt / cwnd.

target = base + topology + flow scaling:

* flow scaling, between 0 and `fs_range`: alpha / sqrt(cwnd) - alpha / sqrt(fs_max_window), with alpha such that it
  reaches `fs_range` at fs_min_window. Smaller windows, which are more numerous when many flows share a link, get more;
* topology: the paper adds a fixed delay per hop, counted by the TTL. The packets here carry no TTL, so the target
  includes the flow's own smallest round trip, at most the unloaded one of the longest path (ours), and `base_target` is
  the allowed queueing delay, 10 us (ours). htsim's 20 us and 3 us per hop [code, its authors call them guesses] include
  the unloaded round trip.

beta 0.8, ai 1, max_decrease 0.5, fs_range five times the base, fs windows 0.1 and 100 [code: htsim, guesses too]. Left
out: the second window for the delay of end hosts (hosts here receive at once) and PLB, which moves flows to other
paths. Losses are detected as by the window machinery. The delay is that of the acknowledged packet, in both directions,
with the acknowledgement's own queueing.
"""

from __future__ import annotations

import math
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
    SHIFT,
    URGENT,
    WindowFlow,
    WindowParameters,
    acknowledge,
    on_data,
    on_probe,
)
from gradwire.protocols.transports.common.window import on_timer as time_out
from gradwire.protocols.transports.common.window import start as start_window
from gradwire.scenarios.schema.network.transport_base import Gain, Tcp
from gradwire.scenarios.units import PositiveTime, Ps


class SwiftFlow(WindowFlow):
    """The sender of Swift. `cwnd` is the window, at least one packet."""

    fractional_window = Word("congestion window, which may be less than one packet", "packets << 16", at=21)
    reduced_at = Word("last reduction, 0 = never", "ps")
    min_delay = Word("smallest measured delay, 0 = none", "ps")
    last_delay = Word("last measured delay, 0 = none", "ps")


class SwiftParameters(WindowParameters):
    """The parameters of Swift."""

    base_delay = Word("target delay beyond topology and flow scaling", "ps", at=5)
    beta = Word("multiplicative decrease", "20-bit fraction")
    additive_increase = Word("additive increase per round trip", "packets << 16")
    max_decrease = Word("largest decrease, as a share of the window", "20-bit fraction")
    min_window = Word("smallest window", "packets << 16")
    max_window = Word("largest window", "packets << 16")
    base_rtt = Word("base round trip", "ps")
    packet_bytes = Word("bytes on the wire of a full packet", "bytes")
    flow_scale = Word("flow scaling: alpha", "ps << 12")
    flow_offset = Word("flow scaling: alpha / sqrt(fs_max_window)", "ps")
    flow_range = Word("flow scaling: most that it adds to the target", "ps")


FRESH_START = 5  # consecutive time-outs after which the window is the smallest
ROOT = 12  # bits after the point of a square root
WIDE = 1 << SHIFT  # a window of one packet
SECOND = 1_000_000_000_000  # upper limit of the round trip for pacing


@njit
def square_root(x: int) -> int:
    """Return the integer square root, rounded down, of 0 <= x < 2^62."""
    root = 0
    step = 1 << 30
    while step:
        if (root + step) * (root + step) <= x:
            root += step
        step >>= 1
    return root


@njit
def target_delay(params: SwiftParameters, flow: SwiftFlow) -> int:
    """Return the target delay with the present window, in picoseconds."""
    topology = min(flow.min_delay, params.base_rtt) if flow.min_delay else params.base_rtt
    # sqrt(cwnd) << 12; a window is at least 2^-10 packets, so the root is at least 2^7
    scaling = params.flow_scale // square_root(flow.fractional_window << 2 * ROOT - SHIFT) - params.flow_offset
    return params.base_delay + topology + min(max(scaling, 0), params.flow_range)


@njit
def _set_window(params: SwiftParameters, flow: SwiftFlow, window: int, now: int) -> None:
    """Set the window, within its limits; below one packet it becomes packet spacing."""
    window = min(max(window, params.min_window), params.max_window)
    if window < flow.fractional_window:
        flow.reduced_at = now
    flow.fractional_window = window
    flow.cwnd = max(window, WIDE)
    if window < WIDE:
        rtt = min(flow.last_delay if flow.last_delay else params.base_rtt, SECOND)
        flow.gap = ((rtt << SHIFT) // window << SHIFT) // params.packet_bytes
    else:
        flow.gap = 0


@njit
def _may_fall(flow: SwiftFlow, now: int) -> bool:
    """Return True if a round trip has passed since the last reduction."""
    return flow.reduced_at == 0 or now - flow.reduced_at >= flow.srtt


@njit
def _fall(params: SwiftParameters, flow: SwiftFlow, now: int) -> None:
    """Shrink the window by the largest step."""
    if _may_fall(flow, now):
        _set_window(params, flow, flow.fractional_window - fixed_mul(flow.fractional_window, params.max_decrease), now)


@njit
def start(params: SwiftParameters, flow: SwiftFlow, now: int) -> None:
    """Start with the initial window."""
    start_window(params, flow, now)
    flow.fractional_window = min(params.initial_window << SHIFT, params.max_window)
    flow.cwnd = flow.fractional_window


@njit
def pull(params: SwiftParameters, flow: SwiftFlow, now: int) -> int:
    """Return retransmissions, then new packets, as the window and, below one packet, the pace allow."""
    sequence = next_packet(params, flow, now)
    if sequence != BLOCKED:
        stamp(flow, sequence, now)
    return sequence


@njit
def _steer(params: SwiftParameters, flow: SwiftFlow, delay: int, newly: int, now: int) -> None:
    """Set the window after an acknowledgement with a measured delay."""
    flow.last_delay = delay
    if flow.min_delay == 0 or delay < flow.min_delay:
        flow.min_delay = delay
    window = flow.fractional_window
    target = target_delay(params, flow)
    if delay < target:
        step = params.additive_increase * newly
        if window >= WIDE:
            step = (step << SHIFT) // window
        _set_window(params, flow, window + step, now)
    elif _may_fall(flow, now):
        share = (delay - target) * ONE // delay
        share = min(fixed_mul(share, params.beta), params.max_decrease)
        _set_window(params, flow, window - fixed_mul(window, share), now)


@njit
def on_control(
    params: SwiftParameters, flow: SwiftFlow, kind: int, sequence: int, argument: int, echo: int, now: int
) -> None:
    """Process an acknowledgement: scoreboard, the window by its delay, losses."""
    delay = delay_of(flow, kind, sequence, now)
    newly = acknowledge(params, flow, sequence, argument, now)
    if flow.is_done:
        return
    if delay:
        _steer(params, flow, delay, newly, now)
    if flow.una <= flow.highest and find_losses(flow) > 0 and flow.una >= flow.recover:
        flow.recover = flow.nxt
        flow.loss_state = URGENT
        _fall(params, flow, now)


@njit
def on_timer(params: SwiftParameters, flow: SwiftFlow, now: int) -> None:
    """Handle a time-out: all packets in flight are retransmitted."""
    time_out(params, flow, now)
    if flow.backoff >= FRESH_START:
        _set_window(params, flow, params.min_window, now)
    else:
        _fall(params, flow, now)
    flow.cwnd = max(flow.fractional_window, WIDE)


class Swift(Reliable, Tcp):
    """Swift (Kumar et al., SIGCOMM 2020): the window keeps the fabric delay near a target. The values are those of
    htsim, whose authors call them guesses [code], unless marked."""

    forgets = True
    kind: Literal["swift"]
    base_target: PositiveTime = Ps(10_000_000)
    """Allowed queueing delay on top of the flow's smallest round trip. Ours."""
    ai: Annotated[float, Field(ge=0.001, le=100, strict=True)] = 1.0
    """Growth of the window per round trip below the target, in packets."""
    beta: Gain = 0.8
    """The window falls by this times the share of the delay above the target."""
    max_decrease: Gain = 0.5
    """Largest relative decrease, also applied after losses."""
    fs_range: PositiveTime = Ps(50_000_000)
    """Flow scaling: the most that is added to the target for a small window."""
    fs_min_window: Annotated[float, Field(ge=0.01, le=1000, strict=True)] = 0.1
    """Packets; windows up to this get all of fs_range."""
    fs_max_window: Annotated[float, Field(ge=0.01, le=100_000, strict=True)] = 100.0
    """Packets; windows from this size on get nothing."""
    min_window: Annotated[float, Field(ge=0.01, le=1, strict=True)] = 0.01
    """Packets; below one the packets are paced. Ours."""
    max_window: Annotated[int, Field(ge=1, le=1 << 22, strict=True)] = 1000
    """Packets."""

    must_be_below = ("fs_min_window", "fs_max_window")

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
        """Return those of `Reliable`; then times in picoseconds, fractions in 20-bit fixed point, windows in packets <<
        16."""
        spread = settings["fs_range"]
        least, most = settings["fs_min_window"], settings["fs_max_window"]
        scale = spread / (1 / math.sqrt(least) - 1 / math.sqrt(most))
        return [
            *Reliable.parameters(settings, context),
            settings["base_target"],
            fraction(settings["beta"]),
            round(settings["ai"] * WIDE),
            fraction(settings["max_decrease"]),
            round(settings["min_window"] * WIDE),
            settings["max_window"] << SHIFT,
            context.base_rtt,
            context.payload + Swift.data_overhead,
            round(scale * (1 << ROOT)),
            round(scale / math.sqrt(most)),
            spread,
        ]
