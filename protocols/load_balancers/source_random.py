"""The sending host draws the whole path of every packet at random, and the switches follow it.

A path is a 16-bit number that switches decode: with n next hops, the remainder by n selects one, and the quotient is
left in the packet for later switches. If there are more than 65,536 paths, or their number is not a power of two, some
are slightly more likely. Control packets carry the path of the packet they answer, or else that of their message.

With `switch.path_entropies`, a message draws this number of paths once (two may be equal), and its packets draw among
them: real NICs keep path state in small tables (htsim has 64 entries [code]).
"""

from gradwire.jit.compiled import njit
from gradwire.jit.counter_rng import MASK, choice, draw, mix, stream
from gradwire.jit.records import Words
from gradwire.jit.records.constants import KEY_ORDER
from gradwire.jit.records.flows import Sender
from gradwire.jit.records.network import Switch
from gradwire.jit.records.packets import entropy_of
from gradwire.protocols.load_balancers.base import Balancer

PATH_DRAWS = 1 << 30  # from this count on, the draws are the paths of the message


@njit
def select(switch: Switch, next_hops: Words, hop_count: int, header: int, body: int, draws: int, now: int) -> int:
    """Return this switch's digit of the path."""
    return entropy_of(header) % hop_count


@njit
def message_draw(flow: Sender, count: int) -> int:
    """Return a 32-bit random number of a message, different for every count."""
    message = mix((flow.order >> KEY_ORDER) & MASK)
    entropy = entropy_of(flow.data_header)
    return draw(stream(message ^ mix(entropy), mix(message ^ entropy)), count)


@njit
def path_of_message(flow: Sender, number: int) -> int:
    """Return one of the 16-bit paths of a message with a limited number of paths."""
    return message_draw(flow, PATH_DRAWS + number) >> 16


@njit
def pick_path(flow: Sender, draws: int) -> int:
    """Draw the path of every packet anew, from all paths or from those of its message."""
    random = message_draw(flow, draws)
    paths = flow.state.path_entropies
    if paths:
        return path_of_message(flow, choice(random, paths))
    return random >> 16


class SourceRandom(Balancer):
    """Load balancer `source_random`."""

    kind = "source_random"
    per_packet = True
    select = staticmethod(select)
    pick_path = staticmethod(pick_path)
    source_routes = True
