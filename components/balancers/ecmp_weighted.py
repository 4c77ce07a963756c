"""Weighted ECMP: a hash of the flow picks the way, with odds in proportion to the rates of the links.

On networks of equal links it is ECMP. The weights are those of the switch's own links; WCMP (EuroSys '14) also weighs
what lies behind them [recalled].
"""

from gradwire.components.balancers.base import Balancer
from gradwire.components.compiled import njit
from gradwire.components.draws import draw
from gradwire.components.layout import A_ENTROPY, N_KEY, P_SPEED

UNIT = 1 << 40  # a weight is UNIT / (picoseconds per byte << 16): 26 bits at 400 Gbps


@njit
def choose(M, node, ways, n, A, B, count, now):
    """Every packet of a flow carries the same 16 bits of entropy, so it takes the same way."""
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
