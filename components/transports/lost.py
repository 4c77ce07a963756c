"""Packets that a sender knows to be lost: a bitmap behind that of acknowledged ones; the first goes out again first."""

from gradwire.components.compiled import njit
from gradwire.components.layout import S_BITS, S_USER, S_WORDS
from gradwire.components.transports.base import bit, clear_bit, set_bit

# a sender's own words, among those of `window`
LOST = S_USER + 5  # packets known lost and not sent again yet
LOST_AT = S_USER + 6  # no such packet below


@njit
def note_lost(M, f, sequence):
    """A packet counts as lost, and waits to be sent again."""
    set_bit(M, M[f + S_BITS] + M[f + S_WORDS], sequence)
    if M[f + LOST] == 0 or sequence < M[f + LOST_AT]:
        M[f + LOST_AT] = sequence
    M[f + LOST] += 1


@njit
def next_lost(M, f):
    """The first packet that waits to be sent again, and does so no more; there has to be one."""
    lost = M[f + S_BITS] + M[f + S_WORDS]
    sequence = M[f + LOST_AT]
    while bit(M, lost, sequence) == 0:
        sequence += 1
    clear_bit(M, lost, sequence)
    M[f + LOST] -= 1
    M[f + LOST_AT] = sequence + 1
    return sequence
