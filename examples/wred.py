"""A queue policy of one's own: packets that are not ECN-capable are dropped at random from half the threshold on.

Weighted random early detection as switches have it: those that could be marked are marked at the threshold, the others
are dropped with a chance that rises from 0 at half of it to 1.
"""

from numba import njit

from gradwire.jit.counter_rng import draw
from gradwire.jit.layout import A_IMPORTANT, C_BYTES, C_THRESHOLD, CLASS_WORDS, P_CLASSES, P_RED_KEY, P_TESTS

ACCEPT, MARK, DROP = 0, 1, 3


@njit
def admit(M, p, c, A):
    """What becomes of a packet of class `c` for which port `p` has room."""
    record = p + P_CLASSES + c * CLASS_WORDS
    queue, threshold = M[record + C_BYTES], M[record + C_THRESHOLD]
    if (A >> A_IMPORTANT) & 1:
        return MARK if queue >= threshold else ACCEPT
    half = threshold // 2
    if queue < half:
        return ACCEPT
    count = M[p + P_TESTS]
    M[p + P_TESTS] = count + 1
    chance = ((queue - half) << 32) // (threshold - half)
    return DROP if draw(M[p + P_RED_KEY], count) < chance else ACCEPT


class Wred:
    """Drops before the threshold what cannot be marked."""

    admit = staticmethod(admit)
