"""A constant rate: packets leave at a fixed share of the line. For tests, background load and examples.

No paper. The sender paces its packets and handles only the Stop that the receiver sends once it has as many bytes as
the bound requires. There are no acknowledgements. If the whole message has been sent and no Stop has come for
`repeat_after`, it is repeated, so that every message ends on lossy links as well; on lossless links every packet is
sent once. Each pass begins elsewhere in the message: constant rates that meet at a full queue lose packets at the same
positions each time, and the same packets would otherwise be lost forever.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from gradwire.jit.compiled import njit
from gradwire.jit.layout import (
    BLOCKED,
    R_ALLOWED,
    R_BITS,
    R_BYTES,
    R_DONE,
    R_GOT,
    S_DONE,
    S_GAP,
    S_LINE,
    S_PACKETS,
    S_TIMEOUTS,
    S_TIMER,
    S_USER,
    STOP,
)
from gradwire.protocols.transports.base import ONE, Context, bit, fraction, reply, set_bit
from gradwire.scenarios.schema.network.transport_base import Transport
from gradwire.scenarios.units import PositiveTime, Ps
from gradwire.scenarios.wire import DLCP_ACK_BYTES, UDP_OVERHEAD

FRESH = S_USER  # packets that have been sent at least once
NEXT = S_USER + 1  # packets sent in this pass
FIRST = S_USER + 2  # the packet that this pass began with

K_SHARE, K_REPEAT = 0, 1


@njit
def start(M, k, f, now):
    M[f + S_GAP] = M[f + S_LINE] * ONE // M[k + K_SHARE]


@njit
def pull(M, k, f, now):
    """Return the next packet; after the last one, wait for Stop."""
    packets = M[f + S_PACKETS]
    if M[f + NEXT] == packets:
        if M[f + S_TIMER] == 0:
            M[f + S_TIMER] = now + M[k + K_REPEAT]
        return BLOCKED
    sequence = M[f + FIRST] + M[f + NEXT]
    if sequence >= packets:
        sequence -= packets
    M[f + NEXT] += 1
    if sequence == M[f + FRESH]:
        M[f + FRESH] = sequence + 1
    return sequence


@njit
def on_control(M, k, f, kind, sequence, argument, echo, now):
    """End the flow at Stop, the only control packet."""
    M[f + S_DONE] = 1
    M[f + S_TIMER] = 0


@njit
def on_timer(M, k, f, now):
    """Start another pass at another packet. An odd step of 0.618 of the message soon brings every packet to every part
    of a pass, whether whole runs of packets are lost or every other one."""
    M[f + S_TIMEOUTS] += 1
    packets = M[f + S_PACKETS]
    M[f + NEXT] = 0
    M[f + FIRST] = (M[f + FIRST] + (packets * 633 >> 10 | 1)) % packets


@njit
def on_data(M, k, r, sequence, size, ce, now):
    """Count new packets until enough have arrived; afterwards, answer a duplicate by repeating the Stop, which was
    lost."""
    bits = M[r + R_BITS]
    known = bit(M, bits, sequence)
    if M[r + R_DONE]:
        if known:
            return reply(STOP, 0, 0, 0, 1)
        return 0
    if known == 0:
        set_bit(M, bits, sequence)
        M[r + R_GOT] += size
    if M[r + R_BYTES] - M[r + R_GOT] <= M[r + R_ALLOWED]:
        M[r + R_DONE] = 1
        return reply(STOP, 0, 0, 0, 1)
    return 0


@njit
def on_probe(M, k, r, argument, now):
    return 0


class ConstantRate(Transport):
    """Packets at a constant rate over UDP: for tests and background load. Packets are not acknowledged; a delivered
    message is answered by one Stop, a smallest frame on the way back."""

    acknowledges = False

    forgets = True
    kind: Literal["constant_rate"]
    share: Annotated[float, Field(ge=0.00001, le=1, strict=True)] = 1.0
    """Share of the line rate of the sending host."""
    repeat_after: PositiveTime = Ps(1_000_000_000)
    """Silence after the last packet before the message is repeated; at least the longest unloaded round trip. Each
    repetition begins 0.618 of the message further on, so that every packet comes to every position of the order."""

    wire = "udp"

    may_lose = True

    control_bytes = DLCP_ACK_BYTES
    data_overhead = UDP_OVERHEAD
    sender_bitmaps = 0
    receiver_bitmaps = 1
    fresh_word = FRESH
    probe_word = 0
    start = staticmethod(start)
    pull = staticmethod(pull)
    on_control = staticmethod(on_control)
    on_timer = staticmethod(on_timer)
    on_data = staticmethod(on_data)
    on_probe = staticmethod(on_probe)

    @staticmethod
    def important(settings: dict) -> bool:
        """Return False: untagged packets are droppable, as the sender would not notice a mark."""
        return False

    @staticmethod
    def parameters(settings: dict, context: Context) -> list[int]:
        """Return the share of the line rate in 20-bit fixed point, and the wait for a Stop in picoseconds."""
        share = max(1, fraction(settings["share"]))
        return [share, max(settings["repeat_after"], context.base_rtt)]
