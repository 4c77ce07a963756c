"""When each packet was sent: what delay-based transports keep beside the scoreboard of `window`.

A real header carries a time stamp that the receiver echoes. A packet of the fabric has no room for one, so the sender
keeps the time itself, one word per packet: 32 bitmaps' worth of words after the three of the window machinery. The
difference is the same for packets sent once; for packets sent again no delay is measured (Karn's rule), since nobody
could tell which sending the acknowledgement answers.
"""

from gradwire.components.compiled import njit
from gradwire.components.layout import ACK, S_BITS, S_WORDS
from gradwire.components.transports.base import bit

SCOREBOARD = 3  # bitmaps of the window machinery
BITMAPS = SCOREBOARD + 32
LONGEST = 1 << 42  # 4.4 s: no longer delay is told, so that fractions of it in 20 bits fit a word


@njit
def stamp(M, f, sequence, now):
    """A packet leaves."""
    M[M[f + S_BITS] + SCOREBOARD * M[f + S_WORDS] + sequence] = now


@njit
def delay_of(M, f, kind, sequence, now):
    """The round trip of the packet that an acknowledgement answers, from the start of its transmission; 0 when it was
    sent more than once. To be asked before the acknowledgement is taken into the scoreboard."""
    bits = M[f + S_BITS]
    words = M[f + S_WORDS]
    if kind != ACK or bit(M, bits, sequence) or bit(M, bits + 2 * words, sequence):
        return 0
    # at least 1: sockets may send a little ahead of their schedule
    return min(max(now - M[bits + SCOREBOARD * words + sequence], 1), LONGEST)
