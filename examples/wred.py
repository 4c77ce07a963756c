"""A user-defined queue policy: drops packets that are not ECN-capable at random, from half the threshold on.

This is weighted random early detection as in switches. ECN-capable packets are marked at the threshold. The others are
dropped with a probability that rises from 0 at half the threshold to 1 at the threshold.
"""

from numba import njit

from gradwire.jit.counter_rng import draw
from gradwire.jit.records.network import Port, QueueClass
from gradwire.jit.records.packets import is_important

ACCEPT, MARK, DROP = 0, 1, 3


@njit
def admit(port: Port, waiting: QueueClass, header: int) -> int:
    """Return the verdict on a packet for which the port has room."""
    queue, threshold = waiting.nbytes, waiting.threshold
    if is_important(header):
        return MARK if queue >= threshold else ACCEPT
    half = threshold // 2
    if queue < half:
        return ACCEPT
    count = port.red_draws
    port.red_draws = count + 1
    probability = ((queue - half) << 32) // (threshold - half)
    return DROP if draw(port.red_key, count) < probability else ACCEPT


class Wred:
    """Drops packets that cannot be marked, below the threshold."""

    admit = staticmethod(admit)
