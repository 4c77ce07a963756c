"""Stores the send times of packets and measures their round trips, for delay-based transports.

A real header carries a timestamp that the receiver echoes. A simulated packet has no room for one, so the sender stores
the time itself, one word per packet: 32 bitmaps' worth of words after the three of the window machinery. The difference
is the same for packets sent once; for retransmitted packets no delay is measured (Karn's rule), because the
acknowledgement may answer either transmission.
"""

from gradwire.jit.compiled import njit
from gradwire.jit.records.constants import ACK
from gradwire.protocols.transports.base import bit
from gradwire.protocols.transports.common.window import WindowFlow

SCOREBOARD = 3  # bitmaps of the window machinery
BITMAPS = SCOREBOARD + 32
LONGEST = 1 << 42  # 4.4 s: upper limit of a delay, so that fractions of it in 20 bits fit a word


@njit
def stamp(flow: WindowFlow, sequence: int, now: int) -> None:
    """Record the send time of a packet."""
    flow.bitmaps[SCOREBOARD * flow.bitmap_words + sequence] = now


@njit
def delay_of(flow: WindowFlow, kind: int, sequence: int, now: int) -> int:
    """Return the round trip of an acknowledged packet, or 0 if it was sent more than once. It counts from the start of
    the transmission. Call it before the acknowledgement enters the scoreboard."""
    acknowledged = flow.acknowledged
    if kind != ACK or bit(acknowledged, sequence) or bit(flow.retransmitted, sequence):
        return 0
    # at least 1: sockets may send a little ahead of their schedule
    return min(max(now - flow.bitmaps[SCOREBOARD * flow.bitmap_words + sequence], 1), LONGEST)
