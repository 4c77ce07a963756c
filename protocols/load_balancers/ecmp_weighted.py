"""Weighted ECMP: a hash of the flow picks the next hop, with probability proportional to the link's rate.

With equal links it equals ECMP. The weights are those of the switch's own links; WCMP (EuroSys '14) also includes the
links behind them [recalled].
"""

from gradwire.jit.compiled import njit
from gradwire.jit.counter_rng import draw
from gradwire.jit.layout import A_ENTROPY, N_KEY, P_SPEED
from gradwire.protocols.load_balancers.base import Balancer

UNIT = 1 << 40  # a weight is UNIT / (picoseconds per byte << 16): 26 bits at 400 Gbps


@njit
def choose(M, node, ways, n, A, B, count, now):
    """Choose by the 16 bits of entropy that every packet of a flow carries, so that a flow keeps its path."""
    total = 0
    for i in range(n):
        total += UNIT // M[M[ways + i] + P_SPEED]
    left = ((draw(M[node + N_KEY], (A >> A_ENTROPY) & 0xFFFF) >> 8) * total) >> 24
    for i in range(n - 1):
        left -= UNIT // M[M[ways + i] + P_SPEED]
        if left < 0:
            return i
    return n - 1


class EcmpWeighted(Balancer):
    """Load balancer `ecmp_weighted`."""

    kind = "ecmp_weighted"
    choose = staticmethod(choose)
