"""ECMP: a hash of the flow picks the way, a different hash at every switch (RFC 2992 on hash-based multipath)."""

from gradwire.components.balancers.base import Balancer
from gradwire.components.compiled import njit
from gradwire.components.draws import choice, draw
from gradwire.components.layout import A_ENTROPY, N_KEY


@njit
def choose(M, node, ways, n, A, B, count, now):
    """Every packet of a flow carries the same 16 bits of entropy, so it takes the same way."""
    return choice(draw(M[node + N_KEY], (A >> A_ENTROPY) & 0xFFFF), n)


class Ecmp(Balancer):
    """Load balancer `ecmp`."""

    kind = "ecmp"
    by_entropy = True
    choose = staticmethod(choose)
