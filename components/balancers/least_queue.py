"""Per packet, the way on which it would leave soonest, by the switch's own queues (as DRILL, SIGCOMM '17, does with
samples [recalled]; here all ways are looked at)."""

from gradwire.components.balancers.base import Balancer
from gradwire.components.compiled import njit
from gradwire.components.draws import choice, draw
from gradwire.components.layout import N_KEY, P_BUSY, P_QUEUE, P_SPEED, SPEED_SHIFT


@njit
def wait(M, p, now):
    """Picoseconds until everything that waits at port `p`, of whatever class, has left."""
    return max(M[p + P_BUSY] - now, 0) + ((M[p + P_QUEUE] >> 8) * M[p + P_SPEED] >> SPEED_SHIFT)


@njit
def soonest(M, node, ways, n, count, now):
    """The way with the shortest wait; among equals the first from a way on that is drawn for every packet."""
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
    """Every packet anew."""
    return soonest(M, node, ways, n, count, now)


class LeastQueue(Balancer):
    """Load balancer `least_queue`."""

    kind = "least_queue"
    per_packet = True
    choose = staticmethod(choose)
    sees_queues = True
