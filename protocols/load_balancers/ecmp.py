"""ECMP (RFC 2992) picks a flow's next hop by a hash that differs at every switch."""

from gradwire.jit.compiled import njit
from gradwire.jit.counter_rng import choice, draw
from gradwire.jit.records import Words
from gradwire.jit.records.network import Switch
from gradwire.jit.records.packets import entropy_of
from gradwire.protocols.load_balancers.base import Balancer


@njit
def select(switch: Switch, next_hops: Words, hop_count: int, header: int, body: int, draws: int, now: int) -> int:
    """Return the next hop by the packet's 16 bits of entropy, which are those of its flow."""
    return choice(draw(switch.key, entropy_of(header)), hop_count)


class Ecmp(Balancer):
    """Load balancer `ecmp`."""

    kind = "ecmp"
    by_entropy = True
    select = staticmethod(select)
