"""Source routes drawn at random: the sending host chooses the whole path of every packet, the switches follow.

A path is a number of 16 bits that switches take apart: where there are n ways, the remainder by n is the way, and the
quotient is left in the packet for the switches behind. Where paths are more than 65,536, or no power of two, some are a
little likelier than others. Control packets carry the path of the packet they answer, or else that of their message.

With `switch.path_entropies` a message has so many paths of its own, drawn at random once (two may be the same), and its
packets draw among these: real NICs keep what they know of paths in small tables (htsim has 64 of them [code]).
"""

from gradwire.components.balancers.base import Balancer
from gradwire.components.compiled import njit
from gradwire.components.draws import MASK, choice, draw, mix, stream
from gradwire.components.layout import A_ENTROPY, H_ENTROPIES, KEY_ORDER, S_DATA, S_ORDER

OWN_PATHS = 1 << 30  # from this count on a message's draws are its own paths


@njit
def choose(M, node, ways, n, A, B, count, now):
    """This switch's digit of the path."""
    return ((A >> A_ENTROPY) & 0xFFFF) % n


@njit
def own_draw(M, f, count):
    """A random number of a message's own: 32 bits, another one for every count."""
    message = mix((M[f + S_ORDER] >> KEY_ORDER) & MASK)
    entropy = (M[f + S_DATA] >> A_ENTROPY) & 0xFFFF
    return draw(stream(message ^ mix(entropy), mix(message ^ entropy)), count)


@njit
def own_path(M, f, number):
    """One of the paths that a message has where their number is limited: 16 bits."""
    return own_draw(M, f, OWN_PATHS + number) >> 16


@njit
def pick(M, f, count):
    """Every packet draws its path anew, of all or of those of its message."""
    drawn = own_draw(M, f, count)
    paths = M[H_ENTROPIES]
    if paths:
        return own_path(M, f, choice(drawn, paths))
    return drawn >> 16


class SourceRandom(Balancer):
    """Load balancer `source_random`."""

    kind = "source_random"
    per_packet = True
    choose = staticmethod(choose)
    pick = staticmethod(pick)
    source_routes = True
