"""The sending host cycles through its path entropies in an order that changes with every round.

This is the oblivious spraying of Ultra Ethernet's simulator [code: htsim]. A message has `switch.path_entropies`
entropies, a power of two, 64 if absent. They share random upper bits; the lower ones count the packets of the round,
XORed with a number drawn for the round. Switches hash entropies as with ECMP. Control packets carry the entropy of the
packet they answer.
"""

from gradwire.jit.compiled import njit
from gradwire.jit.records import Word
from gradwire.jit.records.flows import Sender
from gradwire.jit.records.packets import entropy_of
from gradwire.protocols.load_balancers.base import Balancer
from gradwire.protocols.load_balancers.ecmp import select
from gradwire.protocols.load_balancers.source_random import message_draw

DEFAULT_PATHS = 64
ROUND_DRAWS = 1 << 29  # from this count on, the draws are those of rounds


class CycleFlow(Sender, space="paths"):
    """The sender of a flow whose packets cycle through its entropies."""

    position = Word("entropies passed so far, in all rounds")


@njit
def path_count(flow: Sender) -> int:
    """Return the number of the message's entropies."""
    paths = flow.state.path_entropies
    return paths if paths else DEFAULT_PATHS


@njit
def entropy_at(flow: Sender, position: int) -> int:
    """Return the entropy at a position of the cycle."""
    paths = path_count(flow)
    order = message_draw(flow, ROUND_DRAWS + position // paths)
    return (entropy_of(flow.data_header) & ~(paths - 1)) | ((position ^ order) & (paths - 1))


@njit
def pick_path(flow: Sender, draws: int) -> int:
    """Return the entropy after that of the last packet."""
    cycle = CycleFlow(flow, flow.base)
    position = cycle.position
    cycle.position = position + 1
    return entropy_at(flow, position)


class Oblivious(Balancer):
    """Load balancer `oblivious`."""

    kind = "oblivious"
    per_packet = True
    select = staticmethod(select)
    pick_path = staticmethod(pick_path)
    numbers_paths = True
