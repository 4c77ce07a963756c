"""Implements go-back-N of RoCE's reliable connections, the base class of DCQCN and HPCC.

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

from gradwire.jit.compiled import njit
from gradwire.jit.records import Bitmap, Word
from gradwire.jit.records.constants import ACK, BLOCKED, NACK
from gradwire.jit.records.flows import Parameters, Receiver, Sender
from gradwire.protocols.transports.base import Context, set_bit
from gradwire.scenarios.schema.network.transport_base import Transport
from gradwire.scenarios.units import PositiveTime, Ps


class GoBackNFlow(Sender):
    """The sender of go-back-N."""

    una = Word("first unacknowledged packet")
    nxt = Word("next packet to send")
    sent_once = Word("packets sent at least once", "packets")
    backoff = Word("consecutive time-outs: each doubles the time-out")


class GoBackNReceiver(Receiver):
    """The receiver of go-back-N."""

    expected = Word("next packet in order: the only one that is accepted")
    nacked = Word("1 + packet that the last NACK requested, 0 = none")
    arrived_packets = Bitmap(0, "packets that have arrived")


class GoBackNParameters(Parameters):
    """The parameters of go-back-N."""

    rto = Word("retransmission time-out", "ps")
    max_rto = Word("largest retransmission time-out", "ps")


MOST_BACKOFF = 12
SILENT = 0  # return value of `accept` besides ACK and NACK


@njit
def timeout(params: GoBackNParameters, flow: GoBackNFlow) -> int:
    """Return the time-out in picoseconds."""
    return min(params.rto << flow.backoff, params.max_rto)


@njit
def pull(params: GoBackNParameters, flow: GoBackNFlow, now: int) -> int:
    """Return the next packet, from where the sender has gone back to."""
    sequence = flow.nxt
    if sequence == flow.packets:
        return BLOCKED
    flow.nxt = sequence + 1
    if sequence == flow.sent_once:
        flow.sent_once = sequence + 1
    if flow.timer == 0:
        flow.timer = now + timeout(params, flow)
    return sequence


@njit
def process_answer(params: GoBackNParameters, flow: GoBackNFlow, kind: int, expected: int, now: int) -> int:
    """Process an acknowledgement or a NACK; return 1 if the sender went back."""
    if expected < flow.una:
        return 0
    if expected > flow.una:
        flow.una = expected
        flow.backoff = 0
        flow.nxt = max(flow.nxt, expected)
        flow.timer = 0 if expected == flow.nxt else now + timeout(params, flow)
        if expected == flow.packets:
            flow.is_done = 1
            return 0
    if kind != NACK:
        return 0
    flow.nxt = expected
    flow.timer = 0
    return 1


@njit
def on_timer(params: GoBackNParameters, flow: GoBackNFlow, now: int) -> None:
    """Go back after a time-out."""
    flow.timeouts += 1
    flow.nxt = flow.una
    if flow.backoff < MOST_BACKOFF:
        flow.backoff += 1


@njit
def accept(receiver: GoBackNReceiver, sequence: int, size: int) -> int:
    """Process an arriving packet; return its answer: ACK, NACK or SILENT, with `expected` as the argument."""
    expected = receiver.expected
    if sequence > expected:
        if receiver.nacked == expected + 1:
            return SILENT
        receiver.nacked = expected + 1
        return NACK
    if sequence == expected:
        set_bit(receiver.arrived_packets, sequence)
        receiver.expected = expected + 1
        receiver.received_bytes += size
        if receiver.received_bytes == receiver.nbytes:
            receiver.is_done = 1
    return ACK


@njit
def on_probe(params: GoBackNParameters, receiver: GoBackNReceiver, argument: int, now: int) -> int:
    """Return 0: the sender sends no probes."""
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

    must_not_exceed = ("rto", "max_rto")

    wire = "roce"

    sender_bitmaps = 0
    receiver_bitmaps = 1
    fresh_word = GoBackNFlow.sent_once.offset
    probe_word = 0
    on_timer = staticmethod(on_timer)
    on_probe = staticmethod(on_probe)

    @staticmethod
    def parameters(settings: dict, context: Context) -> list[int]:
        """Return the smallest and largest time-out in picoseconds."""
        rto = max(settings["rto"], 3 * context.base_rtt)
        return [rto, max(settings["max_rto"], rto)]
