"""Per-packet round robin: a switch deals its packets out over the ways, one counter per switch (our choice)."""

from numba import njit


@njit
def choose(M, node, A, B, n, count):
    """The next way after the last packet's."""
    return count % n


class SprayRoundRobin:
    """Load balancer `spray_round_robin`."""

    choose = staticmethod(choose)
