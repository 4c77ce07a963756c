"""Packets that a sender considers lost: a bitmap after that of acknowledged ones, retransmitted in order."""

from gradwire.jit.compiled import njit
from gradwire.jit.layout import S_BITS, S_USER, S_WORDS
from gradwire.protocols.transports.base import bit, clear_bit, set_bit

# a sender's own words, among those of `window`
LOST = S_USER + 5  # packets considered lost and not retransmitted yet
LOST_AT = S_USER + 6  # no such packet below


@njit
def note_lost(M, f, sequence):
    """Declare a packet lost and queue its retransmission."""
    set_bit(M, M[f + S_BITS] + M[f + S_WORDS], sequence)
    if M[f + LOST] == 0 or sequence < M[f + LOST_AT]:
        M[f + LOST_AT] = sequence
    M[f + LOST] += 1


@njit
def next_lost(M, f):
    """Take the first packet off the retransmission queue, which must not be empty."""
    lost = M[f + S_BITS] + M[f + S_WORDS]
    sequence = M[f + LOST_AT]
    while bit(M, lost, sequence) == 0:
        sequence += 1
    clear_bit(M, lost, sequence)
    M[f + LOST] -= 1
    M[f + LOST_AT] = sequence + 1
    return sequence
