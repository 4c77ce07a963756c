"""The sending host reuses the entropies of unmarked acknowledgements, and takes those of `bitmap` if there are none.

This is the default of Ultra Ethernet's simulator [code: htsim]: each acknowledgement without a mark puts its entropy
into a queue, from which packets take the oldest. Our choice: the queue holds 24 entropies, and a further one replaces
the oldest; htsim has no limit.
"""

from gradwire.jit.compiled import njit
from gradwire.jit.records import Array, Word
from gradwire.jit.records.constants import NACK, PULL
from gradwire.jit.records.flows import Sender
from gradwire.jit.records.packets import entropy_of
from gradwire.protocols.load_balancers.bitmap import BitmapFlow, next_entropy, note_feedback
from gradwire.protocols.load_balancers.oblivious import Oblivious, path_count

RING, PER_WORD = 24, 8  # 7 bits each


class MixedFlow(BitmapFlow, space="paths"):
    """The sender of a flow that recycles paths and keeps penalties."""

    first = Word("slot of the oldest path in the queue | paths in the queue << 8", at=10)
    queue = Array(3, "paths in the queue, 7 bits each, eight to a word", at=11)


@njit
def pick_path(flow: Sender, draws: int) -> int:
    """Return the oldest entropy in the queue, or the next one without a penalty."""
    mixed = MixedFlow(flow, flow.base)
    slot, waiting = mixed.first & 0xFF, mixed.first >> 8
    if waiting == 0:
        return next_entropy(mixed)
    mixed.first = (slot + 1) % RING | (waiting - 1) << 8
    path = (mixed.queue[slot // PER_WORD] >> (7 * (slot % PER_WORD))) & 0x7F
    return entropy_of(flow.data_header) & ~(path_count(flow) - 1) | path


@njit
def on_feedback(flow: Sender, kind: int, entropy: int, echo: int, now: int) -> None:
    """Put the path of an unmarked acknowledgement into the queue; add the penalties of others."""
    mixed = MixedFlow(flow, flow.base)
    note_feedback(mixed, kind, entropy, echo)
    if kind == NACK or kind == PULL or echo:
        return
    first, waiting = mixed.first & 0xFF, mixed.first >> 8
    slot = (first + waiting) % RING
    shift = 7 * (slot % PER_WORD)
    path = entropy & (path_count(flow) - 1)
    mixed.queue[slot // PER_WORD] = mixed.queue[slot // PER_WORD] & ~(0x7F << shift) | path << shift
    if waiting == RING:
        first = (first + 1) % RING
    else:
        waiting += 1
    mixed.first = first | waiting << 8


class Mixed(Oblivious):
    """Load balancer `mixed`."""

    kind = "mixed"
    pick_path = staticmethod(pick_path)
    on_feedback = staticmethod(on_feedback)
