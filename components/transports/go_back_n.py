"""Go-back-N, as the reliable connections of RoCE have it: what DCQCN and HPCC stand on.

The receiver takes packets in their order only (InfiniBand specification, chapter 9 [recalled], and as the ns-3 of the
HPCC paper has it [code]):

* the packet it expects is taken and acknowledged; every packet is, cumulatively (our choice: adapters may acknowledge
  several at once);
* a packet beyond it is dropped and, once per gap, refused: a NACK tells which packet is expected, and what else
  arrives before that one is dropped in silence. (The ns-3 code refuses again after 500 us; adapters do not
  [recalled], so here a refusal or a resent packet that is lost costs a time-out);
* a packet from before is dropped and acknowledged again.

A refused sender goes back to the packet that is expected and sends everything from there on again. For lost tails
there is a time-out, which does the same: after `rto`, never less than three unloaded round trips, counted from the last
progress. It doubles with every time-out in a row, up to `max_rto`, and is itself again with progress (ours; adapters
have a fixed time-out of 4.096 us times a power of two, and vendors' refinements). Nothing is ever given up (ours;
adapters break the connection after seven time-outs).

There is no list of what arrived: a lost packet costs up to a round trip of packets sent in vain, and so does a packet
that was overtaken. So RoCE wants a fabric that loses none (`switch.pfc`) and keeps the order (no spraying).
"""

from __future__ import annotations

from pydantic import model_validator

from gradwire.components.compiled import njit
from gradwire.components.layout import (
    ACK,
    BLOCKED,
    NACK,
    R_BITS,
    R_BYTES,
    R_DONE,
    R_GOT,
    R_USER,
    S_DONE,
    S_PACKETS,
    S_TIMEOUTS,
    S_TIMER,
    S_USER,
)
from gradwire.components.transports.base import Context, set_bit
from gradwire.scenarios.schema.base import refuse
from gradwire.scenarios.schema.transport_base import Transport
from gradwire.scenarios.units import PositiveTime, Ps, format_time

# a sender's own words; a transport's begin at OWN
UNA = S_USER  # everything below has been acknowledged
NXT = S_USER + 1  # the next packet to send
HIGH = S_USER + 2  # packets that have been sent at least once
BACKOFF = S_USER + 3  # time-outs in a row
OWN = S_USER + 4
# a receiver's own words; a transport's begin at R_OWN
EXPECTED = R_USER
REFUSED = R_USER + 1  # the packet that the latest refusal asked for, plus one
R_OWN = R_USER + 2

# parameters; a transport's begin at K_OWN
K_RTO, K_MAX_RTO, K_OWN = 0, 1, 2

MOST_BACKOFF = 12
SILENT = 0  # what `take` says beside ACK and NACK


@njit
def timeout(M, k, f):
    """The current time-out."""
    return min(M[k + K_RTO] << M[f + BACKOFF], M[k + K_MAX_RTO])


@njit
def pull(M, k, f, now):
    """The next packet, wherever the sender has gone back to."""
    sequence = M[f + NXT]
    if sequence == M[f + S_PACKETS]:
        return BLOCKED
    M[f + NXT] = sequence + 1
    if sequence == M[f + HIGH]:
        M[f + HIGH] = sequence + 1
    if M[f + S_TIMER] == 0:
        M[f + S_TIMER] = now + timeout(M, k, f)
    return sequence


@njit
def hear(M, k, f, kind, expected, now):
    """An acknowledgement or a refusal. Returns 1 when the sender went back."""
    if expected < M[f + UNA]:
        return 0
    if expected > M[f + UNA]:
        M[f + UNA] = expected
        M[f + BACKOFF] = 0
        M[f + NXT] = max(M[f + NXT], expected)
        M[f + S_TIMER] = 0 if expected == M[f + NXT] else now + timeout(M, k, f)
        if expected == M[f + S_PACKETS]:
            M[f + S_DONE] = 1
            return 0
    if kind != NACK:
        return 0
    M[f + NXT] = expected
    M[f + S_TIMER] = 0
    return 1


@njit
def on_timer(M, k, f, now):
    """Time-out: go back."""
    M[f + S_TIMEOUTS] += 1
    M[f + NXT] = M[f + UNA]
    if M[f + BACKOFF] < MOST_BACKOFF:
        M[f + BACKOFF] += 1


@njit
def take(M, r, sequence, size):
    """A packet reaches the receiver. Returns what it deserves: ACK, NACK or SILENT; EXPECTED is what to tell."""
    expected = M[r + EXPECTED]
    if sequence > expected:
        if M[r + REFUSED] == expected + 1:
            return SILENT
        M[r + REFUSED] = expected + 1
        return NACK
    if sequence == expected:
        set_bit(M, M[r + R_BITS], sequence)
        M[r + EXPECTED] = expected + 1
        M[r + R_GOT] += size
        if M[r + R_GOT] == M[r + R_BYTES]:
            M[r + R_DONE] = 1
    return ACK


@njit
def on_probe(M, k, r, argument, now):
    """No probes are sent."""
    return 0


class GoBackN(Transport):
    """What the transports over RoCEv2 share: go-back-N, as its reliable connections have it [recalled].

    A loss costs a round trip, a packet out of order as much: they want `switch.pfc` and no spraying.
    """

    wants_pfc = True
    wants_order = True

    rto: PositiveTime = Ps(2_000_000_000)
    """Time-out without progress; at least three unloaded round trips. It doubles each time in a row. Ours."""
    max_rto: PositiveTime = Ps(1_000_000_000_000)
    """Largest time-out."""

    @model_validator(mode="after")
    def _rto_ordered(self) -> GoBackN:
        if self.rto > self.max_rto:
            raise refuse("rto", "is above max_rto", format_time(self.rto), "rto <= max_rto")
        return self

    wire = "roce"

    sender_bitmaps = 0
    receiver_bitmaps = 1
    fresh_word = HIGH
    probe_word = 0
    on_timer = staticmethod(on_timer)
    on_probe = staticmethod(on_probe)

    @staticmethod
    def parameters(settings: dict, context: Context) -> list[int]:
        """Smallest and largest time-out in picoseconds."""
        rto = max(settings["rto"], 3 * context.base_rtt)
        return [rto, max(settings["max_rto"], rto)]
