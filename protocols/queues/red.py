"""Random early detection on the instantaneous queue: the marking probability rises from 0 at Kmin to Pmax at Kmax.

Above Kmax every packet is treated as above the threshold of `threshold`, which is this policy with Kmin = Kmax.
Switches are configured like this for DCQCN (SIGCOMM '15), which needs flows to be marked in proportion to their share
of the queue. Floyd and Jacobson's RED (1993) averages the queue; switches that mark for DCTCP and DCQCN do not [notes].
"""

from gradwire.jit.compiled import njit
from gradwire.jit.counter_rng import draw
from gradwire.jit.layout import (
    A_IMPORTANT,
    C_BYTES,
    C_THRESHOLD,
    CLASS_WORDS,
    H_RED_KMAX,
    H_RED_PMAX,
    P_CLASSES,
    P_FLAGS,
    P_RED_KEY,
    P_TESTS,
    PORT_FLAG_SELECTIVE,
)

ACCEPT, MARK, DROP_SELECTIVE = 0, 1, 3


@njit
def admit(M, p, c, A):
    """Return the verdict on a packet for class `c` of the busy port `p`, after its buffer has admitted it."""
    record = p + P_CLASSES + c * CLASS_WORDS
    kmin = M[record + C_THRESHOLD]
    queue = M[record + C_BYTES]
    if queue < kmin:
        return ACCEPT
    kmax = M[H_RED_KMAX]
    if queue < kmax:
        count = M[p + P_TESTS]
        M[p + P_TESTS] = count + 1
        if draw(M[p + P_RED_KEY], count) >= M[H_RED_PMAX] * (queue - kmin) // (kmax - kmin):
            return ACCEPT
    if (A >> A_IMPORTANT) & 1:
        return MARK
    if M[p + P_FLAGS] & PORT_FLAG_SELECTIVE:
        return DROP_SELECTIVE
    return ACCEPT


class Red:
    """Queue policy `red`."""

    kind = "red"
    forgets = True
    admit = staticmethod(admit)
