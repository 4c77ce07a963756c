"""The sending host cycles through all paths from packet to packet, and the switches follow them.

Paths are numbers as in `source_random`; consecutive numbers use every next hop of the first switch, then of the next.
Every message starts with a different path. With `switch.path_entropies` the paths are those of the message, as in
`source_random`.
"""

from gradwire.jit.compiled import njit
from gradwire.jit.records.flows import Sender
from gradwire.jit.records.packets import entropy_of
from gradwire.protocols.load_balancers.base import Balancer
from gradwire.protocols.load_balancers.source_random import path_of_message, select


@njit
def pick_path(flow: Sender, draws: int) -> int:
    """Return the path after that of the last packet."""
    paths = flow.state.path_entropies
    if paths:
        return path_of_message(flow, draws % paths)
    return (entropy_of(flow.data_header) + draws) & 0xFFFF


class SourceRoundRobin(Balancer):
    """Load balancer `source_round_robin`."""

    kind = "source_round_robin"
    per_packet = True
    select = staticmethod(select)
    pick_path = staticmethod(pick_path)
    source_routes = True
