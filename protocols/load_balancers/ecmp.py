"""ECMP: a hash of the flow picks the next hop, a different hash at every switch (RFC 2992 on hash-based multipath)."""

from gradwire.jit.compiled import njit
from gradwire.jit.counter_rng import choice, draw
from gradwire.jit.layout import A_ENTROPY, N_KEY
from gradwire.protocols.load_balancers.base import Balancer


@njit
def choose(M, node, ways, n, A, B, count, now):
    """Choose by the 16 bits of entropy that every packet of a flow carries, so that a flow keeps its path."""
    return choice(draw(M[node + N_KEY], (A >> A_ENTROPY) & 0xFFFF), n)


class Ecmp(Balancer):
    """Load balancer `ecmp`."""

    kind = "ecmp"
    by_entropy = True
    choose = staticmethod(choose)
