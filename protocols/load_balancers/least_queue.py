"""Sends each packet to the next hop with the shortest wait in the switch's own queues.

DRILL (SIGCOMM '17) does so with samples [recalled]; here all next hops are compared.
"""

from gradwire.jit.compiled import njit
from gradwire.jit.counter_rng import choice, draw
from gradwire.jit.records import Words
from gradwire.jit.records.constants import SPEED_SHIFT
from gradwire.jit.records.network import Port, Switch
from gradwire.protocols.load_balancers.base import Balancer


@njit
def wait(port: Port, now: int) -> int:
    """Return the picoseconds until all queued packets of a port, of any class, have left."""
    return max(port.busy_until - now, 0) + ((port.queue >> 8) * port.ps_per_byte >> SPEED_SHIFT)


@njit
def shortest_wait(switch: Switch, next_hops: Words, hop_count: int, draws: int, now: int) -> int:
    """Return the next hop with the shortest wait; ties go to the first one after a random start."""
    first = choice(draw(switch.key, draws), hop_count)
    best = first
    least = wait(Port(switch, next_hops[first]), now)
    for step in range(1, hop_count):
        hop = first + step
        if hop >= hop_count:
            hop -= hop_count
        time = wait(Port(switch, next_hops[hop]), now)
        if time < least:
            best = hop
            least = time
    return best


@njit
def select(switch: Switch, next_hops: Words, hop_count: int, header: int, body: int, draws: int, now: int) -> int:
    """Return the next hop with the shortest wait."""
    return shortest_wait(switch, next_hops, hop_count, draws, now)


class LeastQueue(Balancer):
    """Load balancer `least_queue`."""

    kind = "least_queue"
    per_packet = True
    select = staticmethod(select)
    sees_queues = True
