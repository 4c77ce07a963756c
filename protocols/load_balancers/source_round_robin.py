"""Round-robin source routes: the sending host cycles through all paths, and the switches follow.

Paths are numbers as in `source_random`; consecutive numbers use every next hop of the first switch, then of the next.
Every message starts with a different path. With `switch.path_entropies` the paths are those of the message, as in
`source_random`.
"""

from gradwire.jit.compiled import njit
from gradwire.jit.layout import A_ENTROPY, H_ENTROPIES, S_DATA
from gradwire.protocols.load_balancers.base import Balancer
from gradwire.protocols.load_balancers.source_random import choose, own_path


@njit
def pick(M, f, count):
    """Return the path after that of the last packet."""
    paths = M[H_ENTROPIES]
    if paths:
        return own_path(M, f, count % paths)
    return ((M[f + S_DATA] >> A_ENTROPY) + count) & 0xFFFF


class SourceRoundRobin(Balancer):
    """Load balancer `source_round_robin`."""

    kind = "source_round_robin"
    per_packet = True
    choose = staticmethod(choose)
    pick = staticmethod(pick)
    source_routes = True
