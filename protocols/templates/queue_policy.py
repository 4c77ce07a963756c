"""This user-defined queue policy marks important and drops other packets at a threshold, and drops all at twice the
threshold.

This file is complete and runs as it is. Change `admit` and repeat its test, test_mark_then_drop.py.

docs/extending.md of gradwire lists the fields that the function may read. The function is compiled: it holds no floats
and cannot print.
"""

from gradwire.jit.compiled import njit
from gradwire.jit.records.network import Port, QueueClass
from gradwire.jit.records.packets import is_important

ACCEPT, MARK, DROP, DROP_SELECTIVE = 0, 1, 2, 3


@njit
def admit(port: Port, waiting: QueueClass, header: int) -> int:
    """Return the verdict on a packet for which the busy port has room.

    `waiting` holds the queued packets of the same class; its threshold is `switch.ecn_threshold` of the scenario, in
    bytes. Bits of `header` tell what the packet is: important packets are marked, the others are dropped instead. A
    random number is `draw(port.red_key, port.red_draws)` of gradwire.jit.counter_rng; then add 1 to `port.red_draws`.
    """
    if waiting.nbytes < waiting.threshold:
        return ACCEPT
    if waiting.nbytes >= 2 * waiting.threshold:
        return DROP
    return MARK if is_important(header) else DROP_SELECTIVE


class MarkThenDrop:
    """Names the function."""

    admit = staticmethod(admit)
