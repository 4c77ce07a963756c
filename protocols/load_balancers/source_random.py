"""Random source routes: the sending host chooses the whole path of every packet, and the switches follow.

A path is a 16-bit number that switches decode: with n next hops, the remainder by n selects one, and the quotient is
left in the packet for later switches. If there are more than 65,536 paths, or their number is not a power of two, some
are slightly more likely. Control packets carry the path of the packet they answer, or else that of their message.

With `switch.path_entropies`, a message draws this number of paths once (two may be equal), and its packets draw among
them: real NICs keep path state in small tables (htsim has 64 entries [code]).
"""

from gradwire.jit.compiled import njit
from gradwire.jit.counter_rng import MASK, choice, draw, mix, stream
from gradwire.jit.layout import A_ENTROPY, H_ENTROPIES, KEY_ORDER, S_DATA, S_ORDER
from gradwire.protocols.load_balancers.base import Balancer

OWN_PATHS = 1 << 30  # draws from this count on are the message's paths


@njit
def choose(M, node, ways, n, A, B, count, now):
    """Return this switch's digit of the path."""
    return ((A >> A_ENTROPY) & 0xFFFF) % n


@njit
def own_draw(M, f, count):
    """Return a 32-bit random number of a message, different for every count."""
    message = mix((M[f + S_ORDER] >> KEY_ORDER) & MASK)
    entropy = (M[f + S_DATA] >> A_ENTROPY) & 0xFFFF
    return draw(stream(message ^ mix(entropy), mix(message ^ entropy)), count)


@njit
def own_path(M, f, number):
    """Return one of the 16-bit paths of a message with a limited number of paths."""
    return own_draw(M, f, OWN_PATHS + number) >> 16


@njit
def pick(M, f, count):
    """Draw the path of every packet anew, from all paths or from those of its message."""
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
