"""A constant rate: packets leave at a share of the line, whatever happens. For tests, background load and examples.

No paper. The sender paces its packets and listens for one thing only, the Stop by which the receiver says that it has
as many bytes as the bound asks for. There are no acknowledgements. When the whole message has been sent and no Stop
has come for `repeat_after`, it is sent again, so that every message ends on links that lose packets too; on links
that lose none, every packet is sent once. Each pass begins elsewhere in the message: constant rates that meet at a
full queue lose packets in the same places each time, and the same packets would otherwise be lost for ever.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from gradwire.components.compiled import njit
from gradwire.components.layout import (
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
from gradwire.components.transports.base import ONE, Context, bit, fraction, reply, set_bit
from gradwire.scenarios.schema.transport_base import Transport
from gradwire.scenarios.units import PositiveTime, Ps
from gradwire.scenarios.wire import DLCP_ACK_BYTES, UDP_OVERHEAD

FRESH = S_USER  # packets that have been sent at least once
NEXT = S_USER + 1  # packets sent in this pass
FIRST = S_USER + 2  # the packet that this pass began with

K_SHARE, K_REPEAT = 0, 1


@njit
def start(M, k, f, now):
    """Set the pace."""
    M[f + S_GAP] = M[f + S_LINE] * ONE // M[k + K_SHARE]


@njit
def pull(M, k, f, now):
    """The next packet; after the last one, wait for Stop."""
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
    """Stop, the only thing the receiver says."""
    M[f + S_DONE] = 1
    M[f + S_TIMER] = 0


@njit
def on_timer(M, k, f, now):
    """No Stop: once more, beginning elsewhere. An odd step of 0.618 of the message soon brings every packet to every
    part of a pass, whether whole stretches of it are lost or every other packet."""
    M[f + S_TIMEOUTS] += 1
    packets = M[f + S_PACKETS]
    M[f + NEXT] = 0
    M[f + FIRST] = (M[f + FIRST] + (packets * 633 >> 10 | 1)) % packets


@njit
def on_data(M, k, r, sequence, size, ce, now):
    """Count what is new, until it is enough. After that only a repetition can bring a packet that is there already:
    the Stop was lost, say it again."""
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
    """No probes are sent."""
    return 0


class ConstantRate(Transport):
    """Packets at a constant rate over UDP: for tests and background load. Packets are not acknowledged; a message that
    has been delivered is answered by one Stop, a smallest frame on the way back."""

    acknowledges = False

    forgets = True
    kind: Literal["constant_rate"]
    share: Annotated[float, Field(ge=0.00001, le=1, strict=True)] = 1.0
    """Of the line rate of the sending host."""
    repeat_after: PositiveTime = Ps(1_000_000_000)
    """Silence after the last packet before the message is sent again; at least the longest unloaded
    round trip."""

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
        """Untagged packets are droppable: the sender would not notice a mark."""
        return False

    @staticmethod
    def parameters(settings: dict, context: Context) -> list[int]:
        """The share of the line rate in 20-bit fixed point, and how long to wait for a Stop in picoseconds."""
        share = max(1, fraction(settings["share"]))
        return [share, max(settings["repeat_after"], context.base_rtt)]
