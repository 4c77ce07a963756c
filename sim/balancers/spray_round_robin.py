"""Per-packet round robin: a switch deals its packets out over the ways, one counter per switch (our choice)."""

from numba import njit

from sim.balancers.base import Balancer


@njit
def choose(M, node, ways, n, A, B, count, now):
    """The next way after the last packet's."""
    return count % n


class SprayRoundRobin(Balancer):
    """Load balancer `spray_round_robin`."""

    choose = staticmethod(choose)
