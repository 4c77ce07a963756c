"""Per-packet random spraying: every packet picks its way anew."""

from numba import njit

from sim.fabric.draws import choice, draw
from sim.fabric.layout import N_KEY


@njit
def choose(M, node, A, B, n, count):
    """A draw keyed by the switch and its packet count."""
    return choice(draw(M[node + N_KEY], count), n)


class SprayRandom:
    """Load balancer `spray_random`."""

    choose = staticmethod(choose)
