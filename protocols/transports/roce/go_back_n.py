"""Go-back-N of RoCE's reliable connections: the base of DCQCN and HPCC.

The receiver accepts packets in order only (InfiniBand specification, chapter 9 [recalled], and the ns-3 code of the
HPCC paper [code]):

* the expected packet is accepted and acknowledged; every packet is, cumulatively (our choice: adapters may acknowledge
  several at once);
* a packet beyond it is dropped and, once per gap, answered with a NACK that names the expected packet; other packets
  before that one are dropped silently. (The ns-3 code repeats the NACK after 500 us; adapters do not [recalled], so
  here a lost NACK or retransmission costs a time-out);
* an earlier packet is dropped and acknowledged again.

After a NACK the sender goes back to the expected packet and resends everything from there on. Lost tails are handled by
a time-out with the same effect: after `rto`, at least three unloaded round trips, since the last progress. It doubles
with every consecutive time-out, up to `max_rto`, and is reset by progress (ours; adapters have a fixed time-out of
4.096 us times a power of two, and vendors' refinements). The sender never gives up (ours; adapters break the connection
after seven time-outs).

There is no list of arrived packets: a lost packet costs up to a round trip of useless packets, and so does reordering.
So RoCE needs a lossless network (`switch.pfc`) that keeps the order (no spraying).
"""

from __future__ import annotations

from pydantic import model_validator

from gradwire.jit.compiled import njit
from gradwire.jit.layout import (
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
from gradwire.protocols.transports.base import Context, set_bit
from gradwire.scenarios.schema.base import single_mistake
from gradwire.scenarios.schema.network.transport_base import Transport
from gradwire.scenarios.units import PositiveTime, Ps, format_time

# a sender's own words; a transport's begin at OWN
UNA = S_USER  # everything below has been acknowledged
NXT = S_USER + 1  # the next packet to send
HIGH = S_USER + 2  # packets sent at least once
BACKOFF = S_USER + 3  # time-outs in a row
SENDER_WORDS_END = S_USER + 4
# a receiver's own words; a transport's begin at R_OWN
EXPECTED = R_USER
REFUSED = R_USER + 1  # the packet that the latest NACK requested, plus one
R_OWN = R_USER + 2

# parameters; a transport's begin at K_OWN
K_RTO, K_MAX_RTO, K_OWN = 0, 1, 2

MOST_BACKOFF = 12
SILENT = 0  # return value of `accept` besides ACK and NACK


@njit
def timeout(M, k, f):
    return min(M[k + K_RTO] << M[f + BACKOFF], M[k + K_MAX_RTO])


@njit
def pull(M, k, f, now):
    """Return the next packet, from where the sender has gone back to."""
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
def process_answer(M, k, f, kind, expected, now):
    """Process an acknowledgement or a NACK; return 1 if the sender went back."""
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
    """Go back after a time-out."""
    M[f + S_TIMEOUTS] += 1
    M[f + NXT] = M[f + UNA]
    if M[f + BACKOFF] < MOST_BACKOFF:
        M[f + BACKOFF] += 1


@njit
def accept(M, r, sequence, size):
    """Process an arriving packet; return its answer: ACK, NACK or SILENT, with EXPECTED as the argument."""
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
    return 0


class GoBackN(Transport):
    """Base class of the transports over RoCEv2: go-back-N of its reliable connections [recalled]. A loss costs a round
    trip, and so does a packet out of order: they need `switch.pfc` and no spraying."""

    wants_pfc = True
    wants_order = True

    rto: PositiveTime = Ps(2_000_000_000)
    """Time-out without progress; at least three unloaded round trips. It doubles with each consecutive one. Ours."""
    max_rto: PositiveTime = Ps(1_000_000_000_000)
    """Largest time-out."""

    @model_validator(mode="after")
    def _rto_ordered(self) -> GoBackN:
        if self.rto > self.max_rto:
            raise single_mistake("rto", "is above max_rto", format_time(self.rto), "rto <= max_rto")
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
        """Return the smallest and largest time-out in picoseconds."""
        rto = max(settings["rto"], 3 * context.base_rtt)
        return [rto, max(settings["max_rto"], rto)]
