"""The queue policy `threshold` marks important packets and drops droppable ones from one queue length on.

This is the RED/ECN behaviour of commodity switches with Kmin = Kmax on the instantaneous queue: ECN-capable packets
(ECT; here *important*) are marked, others (Not-ECT; *droppable*) are dropped. Aeolus (SIGCOMM '20) and DLCP (arXiv
2008.08445) use it to drop selectively [notes]. Without selective drop the threshold marks ECT packets, as DCTCP
requires, and the others wait until the buffer is full.
"""

from gradwire.jit.compiled import njit
from gradwire.jit.records.constants import PORT_FLAG_SELECTIVE
from gradwire.jit.records.network import Port, QueueClass
from gradwire.jit.records.packets import is_important

ACCEPT, MARK, DROP_SELECTIVE = 0, 1, 3


@njit
def admit(port: Port, waiting: QueueClass, header: int) -> int:
    """Return the verdict on a packet for a class of a busy port, after its buffer has admitted it."""
    if waiting.nbytes >= waiting.threshold:
        if is_important(header):
            return MARK
        if port.flags & PORT_FLAG_SELECTIVE:
            return DROP_SELECTIVE
    return ACCEPT


class Threshold:
    """Queue policy `threshold`."""

    kind = "threshold"
    forgets = True
    admit = staticmethod(admit)
