"""Sprays packets at random, each switch picking a random next hop for every packet."""

from gradwire.jit.compiled import njit
from gradwire.jit.counter_rng import choice, draw
from gradwire.jit.records import Words
from gradwire.jit.records.network import Switch
from gradwire.protocols.load_balancers.base import Balancer


@njit
def select(switch: Switch, next_hops: Words, hop_count: int, header: int, body: int, draws: int, now: int) -> int:
    """Return a random next hop."""
    return choice(draw(switch.key, draws), hop_count)


class SprayRandom(Balancer):
    """Load balancer `spray_random`."""

    kind = "spray_random"
    per_packet = True
    select = staticmethod(select)
