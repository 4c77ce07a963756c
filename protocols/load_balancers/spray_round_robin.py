"""Per-packet round robin: a switch cycles through the next hops, with one counter per switch (our choice).

Every switch starts at an index from its key. If all started at the first next hop, switches whose hosts send in step
would send to the same switch of the next layer at the same time, packet after packet.
"""

from gradwire.jit.compiled import njit
from gradwire.jit.layout import N_KEY
from gradwire.protocols.load_balancers.base import Balancer


@njit
def choose(M, node, ways, n, A, B, count, now):
    """Return the next hop after the last packet's."""
    return ((M[node + N_KEY] & 0xFFFF) + count) % n


class SprayRoundRobin(Balancer):
    """Load balancer `spray_round_robin`."""

    kind = "spray_round_robin"
    per_packet = True
    choose = staticmethod(choose)
