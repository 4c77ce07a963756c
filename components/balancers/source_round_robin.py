"""Source routes by turns: the sending host deals the packets of a message out over all paths, the switches follow.

Paths are numbers as in `source_random`; one after the other uses every way of the first switch, then of the next. A
message begins with a path of its own. With `switch.path_entropies` the paths are those that the message has, as in
`source_random`.
"""

from gradwire.components.balancers.base import Balancer
from gradwire.components.balancers.source_random import choose, own_path
from gradwire.components.compiled import njit
from gradwire.components.layout import A_ENTROPY, H_ENTROPIES, S_DATA


@njit
def pick(M, f, count):
    """The path after that of the last packet."""
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
