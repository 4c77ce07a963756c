"""Weighted ECMP picks a flow's next hop by a hash, with probability proportional to the link's rate.

With equal links it equals ECMP. The weights are those of the switch's own links; WCMP (EuroSys '14) also includes the
links behind them [recalled].
"""

from gradwire.jit.compiled import njit
from gradwire.jit.counter_rng import draw
from gradwire.jit.records import Words
from gradwire.jit.records.network import Port, Switch
from gradwire.jit.records.packets import entropy_of
from gradwire.protocols.load_balancers.base import Balancer

UNIT = 1 << 40  # weights have 26 bits at 400 Gbps


@njit
def weight(port: Port) -> int:
    """Return the weight of a next hop, proportional to the rate of the link to it."""
    return UNIT // port.ps_per_byte


@njit
def select(switch: Switch, next_hops: Words, hop_count: int, header: int, body: int, draws: int, now: int) -> int:
    """Return the next hop by the packet's 16 bits of entropy, which are those of its flow."""
    total = 0
    for hop in range(hop_count):
        total += weight(Port(switch, next_hops[hop]))
    remaining = ((draw(switch.key, entropy_of(header)) >> 8) * total) >> 24
    for hop in range(hop_count - 1):
        remaining -= weight(Port(switch, next_hops[hop]))
        if remaining < 0:
            return hop
    return hop_count - 1


class EcmpWeighted(Balancer):
    """Load balancer `ecmp_weighted`."""

    kind = "ecmp_weighted"
    select = staticmethod(select)
