"""ECMP: a hash of the flow picks the way, a different hash at every switch (RFC 2992 on hash-based multipath)."""

from gradwire.sim.balancers.base import Balancer
from gradwire.sim.fabric.compiled import njit
from gradwire.sim.fabric.draws import choice, draw
from gradwire.sim.fabric.layout import A_ENTROPY, N_KEY


@njit
def choose(M, node, ways, n, A, B, count, now):
    """Every packet of a flow carries the same 16 bits of entropy, so it takes the same way."""
    return choice(draw(M[node + N_KEY], (A >> A_ENTROPY) & 0xFFFF), n)


class Ecmp(Balancer):
    """Load balancer `ecmp`."""

    choose = staticmethod(choose)
