"""Swift (Kumar et al., SIGCOMM '20): a window that keeps the fabric delay near a target.

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

from pydantic import Field, model_validator

from gradwire.jit.compiled import njit
from gradwire.jit.layout import BLOCKED, S_DONE, S_GAP, S_USER
from gradwire.protocols.transports.base import ONE, Context, fraction
from gradwire.protocols.transports.common.recovery import find_losses
from gradwire.protocols.transports.common.recovery import pull as next_packet
from gradwire.protocols.transports.common.reliable import Reliable
from gradwire.protocols.transports.common.sent_times import BITMAPS, delay_of, stamp
from gradwire.protocols.transports.common.window import (
    BACKOFF,
    CWND,
    HIGHEST,
    K_INITIAL,
    NXT,
    RECOVER,
    SHIFT,
    SRTT,
    STATE,
    UNA,
    URGENT,
    acknowledge,
    on_data,
    on_probe,
)
from gradwire.protocols.transports.common.window import on_timer as time_out
from gradwire.protocols.transports.common.window import start as start_window
from gradwire.scenarios.schema.base import single_mistake
from gradwire.scenarios.schema.network.transport_base import Gain, Tcp
from gradwire.scenarios.units import PositiveTime, Ps

# a sender's own words, after those of the window machinery that Swift uses; CWND is SHARE rounded up to one packet
SHARE = S_USER + 21  # the window, packets << 16, which may be less than one
LOWERED_AT = S_USER + 22  # last reduction, 0 = never
SMALLEST = S_USER + 23  # smallest delay seen
DELAY = S_USER + 24  # latest delay seen

# parameters, after those of the window machinery
K_BASE, K_BETA, K_AI, K_FALL, K_LEAST, K_MOST, K_RTT, K_PACKET = 5, 6, 7, 8, 9, 10, 11, 12
K_SCALE, K_OFFSET, K_RANGE = 13, 14, 15

FRESH_START = 5  # consecutive time-outs after which the window is the smallest
ROOT = 12  # bits after the point of a square root
WIDE = 1 << SHIFT
SECOND = 1_000_000_000_000  # upper limit of the round trip for pacing


@njit
def square_root(x):
    """Return the integer square root, rounded down, of 0 <= x < 2^62."""
    root = 0
    step = 1 << 30
    while step:
        if (root + step) * (root + step) <= x:
            root += step
        step >>= 1
    return root


@njit
def target_delay(M, k, f):
    """Return the target delay with the present window, in picoseconds."""
    topology = min(M[f + SMALLEST], M[k + K_RTT]) if M[f + SMALLEST] else M[k + K_RTT]
    # sqrt(cwnd) << 12; a window is at least 2^-10 packets, so the root is at least 2^7
    scaling = M[k + K_SCALE] // square_root(M[f + SHARE] << 2 * ROOT - SHIFT) - M[k + K_OFFSET]
    return M[k + K_BASE] + topology + min(max(scaling, 0), M[k + K_RANGE])


@njit
def _set_window(M, k, f, window, now):
    window = min(max(window, M[k + K_LEAST]), M[k + K_MOST])
    if window < M[f + SHARE]:
        M[f + LOWERED_AT] = now
    M[f + SHARE] = window
    M[f + CWND] = max(window, WIDE)
    if window < WIDE:
        rtt = min(M[f + DELAY] if M[f + DELAY] else M[k + K_RTT], SECOND)
        M[f + S_GAP] = ((rtt << SHIFT) // window << SHIFT) // M[k + K_PACKET]
    else:
        M[f + S_GAP] = 0


@njit
def _may_fall(M, f, now):
    return M[f + LOWERED_AT] == 0 or now - M[f + LOWERED_AT] >= M[f + SRTT]


@njit
def _fall(M, k, f, now):
    """Shrink the window by the largest step."""
    if _may_fall(M, f, now):
        _set_window(M, k, f, M[f + SHARE] - (M[f + SHARE] * M[k + K_FALL] >> 20), now)


@njit
def start(M, k, f, now):
    start_window(M, k, f, now)
    M[f + SHARE] = min(M[k + K_INITIAL] << SHIFT, M[k + K_MOST])
    M[f + CWND] = M[f + SHARE]


@njit
def pull(M, k, f, now):
    """Return retransmissions, then new packets, as the window and, below one packet, the pace allow."""
    sequence = next_packet(M, k, f, now)
    if sequence != BLOCKED:
        stamp(M, f, sequence, now)
    return sequence


@njit
def _steer(M, k, f, delay, newly, now):
    """Set the window after an acknowledgement with a measured delay."""
    M[f + DELAY] = delay
    if M[f + SMALLEST] == 0 or delay < M[f + SMALLEST]:
        M[f + SMALLEST] = delay
    window = M[f + SHARE]
    target = target_delay(M, k, f)
    if delay < target:
        step = M[k + K_AI] * newly
        if window >= WIDE:
            step = (step << SHIFT) // window
        _set_window(M, k, f, window + step, now)
    elif _may_fall(M, f, now):
        share = (delay - target) * ONE // delay
        share = min(share * M[k + K_BETA] >> 20, M[k + K_FALL])
        _set_window(M, k, f, window - (window * share >> 20), now)


@njit
def on_control(M, k, f, kind, sequence, argument, echo, now):
    """Process an acknowledgement: scoreboard, the window by its delay, losses."""
    delay = delay_of(M, f, kind, sequence, now)
    newly = acknowledge(M, k, f, sequence, argument, now)
    if M[f + S_DONE]:
        return
    if delay:
        _steer(M, k, f, delay, newly, now)
    if M[f + UNA] <= M[f + HIGHEST] and find_losses(M, f) > 0 and M[f + UNA] >= M[f + RECOVER]:
        M[f + RECOVER] = M[f + NXT]
        M[f + STATE] = URGENT
        _fall(M, k, f, now)


@njit
def on_timer(M, k, f, now):
    """Handle a time-out: all packets in flight are retransmitted."""
    time_out(M, k, f, now)
    if M[f + BACKOFF] >= FRESH_START:
        _set_window(M, k, f, M[k + K_LEAST], now)
    else:
        _fall(M, k, f, now)
    M[f + CWND] = max(M[f + SHARE], WIDE)


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

    @model_validator(mode="after")
    def _windows(self) -> Swift:
        if self.fs_min_window >= self.fs_max_window:
            what = "is not below fs_max_window"
            raise single_mistake("fs_min_window", what, self.fs_min_window, "fs_min_window < fs_max_window")
        return self

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
        """Return those of NewReno; then times in picoseconds, fractions in 20-bit fixed point, windows in packets <<
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
