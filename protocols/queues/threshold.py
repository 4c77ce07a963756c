"""One threshold per queue that marks important packets and drops droppable ones.

This is the RED/ECN behaviour of commodity switches with Kmin = Kmax on the instantaneous queue: ECN-capable packets
(ECT; here *important*) are marked, others (Not-ECT; *droppable*) are dropped. Aeolus (SIGCOMM '20) and DLCP (arXiv
2008.08445) use it to drop selectively [notes]. Without selective drop the threshold marks ECT packets, as DCTCP
requires, and the others wait until the buffer is full.
"""

from gradwire.jit.compiled import njit
from gradwire.jit.layout import A_IMPORTANT, C_BYTES, C_THRESHOLD, CLASS_WORDS, P_CLASSES, P_FLAGS, PORT_FLAG_SELECTIVE

ACCEPT, MARK, DROP_SELECTIVE = 0, 1, 3


@njit
def admit(M, p, c, A):
    """Return the verdict on a packet for class `c` of the busy port `p`, after its buffer has admitted it."""
    record = p + P_CLASSES + c * CLASS_WORDS
    if M[record + C_BYTES] >= M[record + C_THRESHOLD]:
        if (A >> A_IMPORTANT) & 1:
            return MARK
        if M[p + P_FLAGS] & PORT_FLAG_SELECTIVE:
            return DROP_SELECTIVE
    return ACCEPT


class Threshold:
    """Queue policy `threshold`."""

    kind = "threshold"
    forgets = True
    admit = staticmethod(admit)
