"""Per packet, the next hop with the shortest wait in the switch's own queues.

DRILL (SIGCOMM '17) does so with samples [recalled]; here all next hops are compared.
"""

from gradwire.jit.compiled import njit
from gradwire.jit.counter_rng import choice, draw
from gradwire.jit.layout import N_KEY, P_BUSY, P_QUEUE, P_SPEED, SPEED_SHIFT
from gradwire.protocols.load_balancers.base import Balancer


@njit
def wait(M, p, now):
    """Return the picoseconds until all queued packets of port `p`, of any class, have left."""
    return max(M[p + P_BUSY] - now, 0) + ((M[p + P_QUEUE] >> 8) * M[p + P_SPEED] >> SPEED_SHIFT)


@njit
def shortest_wait(M, node, ways, n, count, now):
    """Return the next hop with the shortest wait; ties go to the first one after a random start."""
    first = choice(draw(M[node + N_KEY], count), n)
    best = first
    least = wait(M, M[ways + first], now)
    for turn in range(1, n):
        i = first + turn
        if i >= n:
            i -= n
        time = wait(M, M[ways + i], now)
        if time < least:
            best = i
            least = time
    return best


@njit
def choose(M, node, ways, n, A, B, count, now):
    return shortest_wait(M, node, ways, n, count, now)


class LeastQueue(Balancer):
    """Load balancer `least_queue`."""

    kind = "least_queue"
    per_packet = True
    choose = staticmethod(choose)
    sees_queues = True
