"""Source routes drawn at random: the sending host chooses the whole path of every packet, the switches follow.

A path is a number of 16 bits that switches take apart: where there are n ways, the remainder by n is the way, and the
quotient is left in the packet for the switches behind. Where paths are more than 65,536, or no power of two, some are a
little likelier than others. Control packets carry the path of the packet they answer, or else that of their message.
"""

from sim.balancers.base import Balancer
from sim.fabric.compiled import njit
from sim.fabric.draws import MASK, draw, mix, stream
from sim.fabric.layout import A_ENTROPY, KEY_ORDER, S_DATA, S_ORDER


@njit
def choose(M, node, ways, n, A, B, count, now):
    """This switch's digit of the path."""
    return ((A >> A_ENTROPY) & 0xFFFF) % n


@njit
def own_draw(M, f, count):
    """A random number of a message's own: 16 bits, another one for every count."""
    message = mix((M[f + S_ORDER] >> KEY_ORDER) & MASK)
    entropy = (M[f + S_DATA] >> A_ENTROPY) & 0xFFFF
    return draw(stream(message ^ mix(entropy), mix(message ^ entropy)), count) >> 16


@njit
def pick(M, f, count):
    """Every packet draws its path anew."""
    return own_draw(M, f, count)


class SourceRandom(Balancer):
    """Load balancer `source_random`."""

    choose = staticmethod(choose)
    pick = staticmethod(pick)
    source_routes = True
