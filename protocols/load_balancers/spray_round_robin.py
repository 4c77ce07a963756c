"""Sprays packets in turn, each switch cycling through the next hops with one counter (our choice).

Every switch starts at an index from its key. If all started at the first next hop, switches whose hosts send in step
would send to the same switch of the next layer at the same time, packet after packet.
"""

from gradwire.jit.compiled import njit
from gradwire.jit.records import Words
from gradwire.jit.records.network import Switch
from gradwire.protocols.load_balancers.base import Balancer


@njit
def select(switch: Switch, next_hops: Words, hop_count: int, header: int, body: int, draws: int, now: int) -> int:
    """Return the next hop after that of the last packet."""
    return ((switch.key & 0xFFFF) + draws) % hop_count


class SprayRoundRobin(Balancer):
    """Load balancer `spray_round_robin`."""

    kind = "spray_round_robin"
    per_packet = True
    select = staticmethod(select)
