"""A load balancer of one's own: of two ways drawn at random and the one that won last, that with the shortest queue.

So DRILL(2, 1) of Ghorbani et al., SIGCOMM 2017 [recalled]: to look at two queues is nearly as good as to look at all.
"""

from numba import njit

from gradwire.jit.counter_rng import choice, draw
from gradwire.jit.layout import N_KEY, N_TABLE, P_BUSY, P_QUEUE, P_SPEED, SPEED_SHIFT
from gradwire.protocols.load_balancers.base import Balancer


@njit
def wait(M, port, now):
    """Picoseconds until the port has sent what it sends and what waits at it."""
    return max(M[port + P_BUSY] - now, 0) + ((M[port + P_QUEUE] >> 8) * M[port + P_SPEED] >> SPEED_SHIFT)


@njit
def choose(M, node, ways, n, A, B, count, now):
    """The way of this packet, below `n`; the last winner unless one of the other two is better."""
    last = M[node + N_TABLE]
    best = min(M[last], n - 1)
    least = wait(M, M[ways + best], now)
    for i in range(2):
        way = choice(draw(M[node + N_KEY], 2 * count + i), n)
        time = wait(M, M[ways + way], now)
        if time < least:
            best, least = way, time
    M[last] = best
    return best


class TwoChoices(Balancer):
    choose = staticmethod(choose)
    sees_queues = True
    table_words = 1
