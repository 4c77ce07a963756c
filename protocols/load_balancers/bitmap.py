"""The sending host cycles through its path entropies and skips those with penalties.

This is the bitmap of Ultra Ethernet's simulator [code: htsim], which cycles as `oblivious` does. A marked
acknowledgement adds 1 to its path's penalty and the header of a trimmed packet 4, up to 15. A path with a penalty is
passed over; of the paths passed over for one packet the first one loses 1. If all have penalties, the packet takes the
next one. At most 128 entropies. Our choice: a header counts the same wherever the packet was trimmed, as NACKs do not
say; htsim adds nothing if it was the last hop, where all paths are alike.
"""

from gradwire.jit.compiled import njit
from gradwire.jit.records import Array, Word
from gradwire.jit.records.constants import NACK, PULL
from gradwire.jit.records.flows import Sender
from gradwire.protocols.load_balancers.oblivious import Oblivious, entropy_at, path_count

PER_WORD = 15  # penalties of 4 bits
MOST_PENALTY, MARK_PENALTY, NACK_PENALTY = 15, 1, 4


class BitmapFlow(Sender, space="paths"):
    """The sender of a flow that keeps penalties of its paths."""

    position = Word("entropies passed so far, in all rounds")
    penalties = Array(9, "penalties of the paths, 4 bits each, fifteen to a word")


@njit
def penalty_of(flow: BitmapFlow, path: int) -> int:
    """Return the penalty of a path."""
    return (flow.penalties[path // PER_WORD] >> (4 * (path % PER_WORD))) & MOST_PENALTY


@njit
def change_penalty(flow: BitmapFlow, path: int, change: int) -> None:
    """Add to the penalty of a path, up to the largest."""
    change = min(change, MOST_PENALTY - penalty_of(flow, path))
    flow.penalties[path // PER_WORD] += change << (4 * (path % PER_WORD))


@njit
def next_entropy(flow: BitmapFlow) -> int:
    """Return the next entropy without a penalty."""
    paths = path_count(flow)
    position = flow.position
    entropy = entropy_at(flow, position)
    passed = 0
    while passed <= paths and penalty_of(flow, entropy & (paths - 1)):
        if passed == 0:
            change_penalty(flow, entropy & (paths - 1), -1)
        passed += 1
        if passed <= paths:
            position += 1
            entropy = entropy_at(flow, position)
    flow.position = position + 1
    return entropy


@njit
def note_feedback(flow: BitmapFlow, kind: int, entropy: int, echo: int) -> None:
    """Add the penalty that a control packet means for its path."""
    if kind == NACK:
        change_penalty(flow, entropy & (path_count(flow) - 1), NACK_PENALTY)
    elif kind != PULL and echo:
        change_penalty(flow, entropy & (path_count(flow) - 1), MARK_PENALTY)


@njit
def pick_path(flow: Sender, draws: int) -> int:
    """Return the next entropy without a penalty."""
    return next_entropy(BitmapFlow(flow, flow.base))


@njit
def on_feedback(flow: Sender, kind: int, entropy: int, echo: int, now: int) -> None:
    """Add the penalty that a control packet means for its path."""
    note_feedback(BitmapFlow(flow, flow.base), kind, entropy, echo)


class Bitmap(Oblivious):
    """Load balancer `bitmap`."""

    kind = "bitmap"
    pick_path = staticmethod(pick_path)
    on_feedback = staticmethod(on_feedback)
