"""The send time of each packet, for delay-based transports.

A real header carries a timestamp that the receiver echoes. A simulated packet has no room for one, so the sender stores
the time itself, one word per packet: 32 bitmaps' worth of words after the three of the window machinery. The difference
is the same for packets sent once; for retransmitted packets no delay is measured (Karn's rule), because the
acknowledgement may answer either transmission.
"""

from gradwire.jit.compiled import njit
from gradwire.jit.layout import ACK, S_BITS, S_WORDS
from gradwire.protocols.transports.base import bit

SCOREBOARD = 3  # bitmaps of the window machinery
BITMAPS = SCOREBOARD + 32
LONGEST = 1 << 42  # 4.4 s: upper limit of a delay, so that fractions of it in 20 bits fit a word


@njit
def stamp(M, f, sequence, now):
    """Record the send time of a packet."""
    M[M[f + S_BITS] + SCOREBOARD * M[f + S_WORDS] + sequence] = now


@njit
def delay_of(M, f, kind, sequence, now):
    """Return the round trip of an acknowledged packet, from the start of its transmission; 0 if it was sent more than
    once. Must be called before the acknowledgement enters the scoreboard."""
    bits = M[f + S_BITS]
    words = M[f + S_WORDS]
    if kind != ACK or bit(M, bits, sequence) or bit(M, bits + 2 * words, sequence):
        return 0
    # at least 1: sockets may send a little ahead of their schedule
    return min(max(now - M[bits + SCOREBOARD * words + sequence], 1), LONGEST)
