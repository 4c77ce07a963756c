"""Per-packet random spraying: every packet picks a random next hop."""

from gradwire.jit.compiled import njit
from gradwire.jit.counter_rng import choice, draw
from gradwire.jit.layout import N_KEY
from gradwire.protocols.load_balancers.base import Balancer


@njit
def choose(M, node, ways, n, A, B, count, now):
    return choice(draw(M[node + N_KEY], count), n)


class SprayRandom(Balancer):
    """Load balancer `spray_random`."""

    kind = "spray_random"
    per_packet = True
    choose = staticmethod(choose)
