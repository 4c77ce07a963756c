"""Per-packet random spraying: every packet picks its way anew."""

from gradwire.components.balancers.base import Balancer
from gradwire.components.compiled import njit
from gradwire.components.draws import choice, draw
from gradwire.components.layout import N_KEY


@njit
def choose(M, node, ways, n, A, B, count, now):
    """A draw keyed by the switch and its packet count."""
    return choice(draw(M[node + N_KEY], count), n)


class SprayRandom(Balancer):
    """Load balancer `spray_random`."""

    kind = "spray_random"
    per_packet = True
    choose = staticmethod(choose)
