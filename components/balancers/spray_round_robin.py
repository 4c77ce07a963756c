"""Per-packet round robin: a switch deals its packets out over the ways, one counter per switch (our choice).

Every switch begins where its key says: were it the first way for all, switches whose hosts send in step would send to
the same switch of the next layer at the same time, packet after packet.
"""

from gradwire.components.balancers.base import Balancer
from gradwire.components.compiled import njit
from gradwire.components.layout import N_KEY


@njit
def choose(M, node, ways, n, A, B, count, now):
    """The next way after the last packet's."""
    return ((M[node + N_KEY] & 0xFFFF) + count) % n


class SprayRoundRobin(Balancer):
    """Load balancer `spray_round_robin`."""

    kind = "spray_round_robin"
    per_packet = True
    choose = staticmethod(choose)
