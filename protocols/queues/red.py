"""The queue policy `red` marks packets with a probability rising from 0 at Kmin to Pmax at Kmax (instantaneous queue).

Above Kmax every packet is treated as above the threshold of `threshold`, which is this policy with Kmin = Kmax.
Switches are configured like this for DCQCN (SIGCOMM '15), which needs flows to be marked in proportion to their share
of the queue. Floyd and Jacobson's RED (1993) averages the queue; switches that mark for DCTCP and DCQCN do not [notes].
"""

from gradwire.jit.compiled import njit
from gradwire.jit.counter_rng import draw
from gradwire.jit.records.constants import PORT_FLAG_SELECTIVE
from gradwire.jit.records.network import Port, QueueClass
from gradwire.jit.records.packets import is_important

ACCEPT, MARK, DROP_SELECTIVE = 0, 1, 3


@njit
def admit(port: Port, waiting: QueueClass, header: int) -> int:
    """Return the verdict on a packet for a class of a busy port, after its buffer has admitted it."""
    kmin = waiting.threshold
    queue = waiting.nbytes
    if queue < kmin:
        return ACCEPT
    kmax = port.red_kmax
    if queue < kmax:
        count = port.red_draws
        port.red_draws = count + 1
        if draw(port.red_key, count) >= port.state.red_pmax * (queue - kmin) // (kmax - kmin):
            return ACCEPT
    if is_important(header):
        return MARK
    if port.flags & PORT_FLAG_SELECTIVE:
        return DROP_SELECTIVE
    return ACCEPT


class Red:
    """Queue policy `red`."""

    kind = "red"
    forgets = True
    admit = staticmethod(admit)
