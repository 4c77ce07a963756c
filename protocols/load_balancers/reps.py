"""REPS (arXiv 2407.21625 [recalled]) sends packets with random path entropies and reuses those of unmarked
acknowledgements.

Switches hash as with ECMP, but every packet has its own entropy. The acknowledgement of a packet returns its entropy;
if it reports no mark, the entropy enters a ring of eight and replaces the oldest. A packet takes the oldest unused one
of the ring or, if there is none, a random one, as in `source_random`. So the first round trip explores, and congested
or cut paths are not reused, because their acknowledgements are marked or never come. Left out: the paper's freezing
mode after time-outs, in which the ring is used over and over.
"""

from gradwire.jit.compiled import njit
from gradwire.jit.records import Array, Word
from gradwire.jit.records.constants import NACK, PULL
from gradwire.jit.records.flows import Sender
from gradwire.protocols.load_balancers.base import Balancer
from gradwire.protocols.load_balancers.ecmp import select
from gradwire.protocols.load_balancers.source_random import pick_path as random_path

RING = 8


class RepsFlow(Sender, space="paths"):
    """The sender of a flow whose packets recycle entropies."""

    unused = Word("entropies in the ring that may be used")
    next_slot = Word("slot of the ring that is filled next")
    ring = Array(3, "entropies, 16 bits each, three to a word")


@njit
def pick_path(flow: Sender, draws: int) -> int:
    """Return the oldest unused entropy that came back, or a new one."""
    reps = RepsFlow(flow, flow.base)
    if reps.unused == 0:
        return random_path(flow, draws)
    slot = (reps.next_slot - reps.unused) & (RING - 1)
    reps.unused -= 1
    return (reps.ring[slot // 3] >> (16 * (slot % 3))) & 0xFFFF


@njit
def on_feedback(flow: Sender, kind: int, entropy: int, echo: int, now: int) -> None:
    """Store the entropy of an unmarked acknowledgement for reuse. One of several packets may be a BITMAP.
    A NACK reports a trimmed packet or a gap, and a PULL answers no packet."""
    if kind == NACK or kind == PULL or echo:
        return
    reps = RepsFlow(flow, flow.base)
    slot = reps.next_slot
    shift = 16 * (slot % 3)
    reps.ring[slot // 3] = (reps.ring[slot // 3] & ~(0xFFFF << shift)) | (entropy << shift)
    reps.unused = min(reps.unused + 1, RING)
    reps.next_slot = (slot + 1) & (RING - 1)


class Reps(Balancer):
    """Load balancer `reps`."""

    kind = "reps"
    per_packet = True
    select = staticmethod(select)
    pick_path = staticmethod(pick_path)
    on_feedback = staticmethod(on_feedback)
