"""Recycled entropies (REPS, arXiv 2407.21625 [recalled]): packets of a message use again what went well.

Switches hash, as with ECMP, but an entropy per packet. The acknowledgement of a packet brings its entropy back; if it
reports no mark, the entropy goes into a ring of eight, the oldest giving way. A packet takes the oldest unused one of
the ring, and where there is none, a random one, as `source_random` does: so the first round trip explores, and crowded
or cut paths are not used again because their acknowledgements are marked or never come. Not here: the paper's freezing
mode after time-outs, in which the ring is used over and over.
"""

from gradwire.components.balancers.base import Balancer
from gradwire.components.balancers.ecmp import choose
from gradwire.components.balancers.source_random import pick as any_path
from gradwire.components.compiled import njit
from gradwire.components.layout import NACK, PULL, S_PATHS

RING = 8
KEPT = S_PATHS  # unused ones | place of the next one << 8
ENTROPIES = S_PATHS + 1  # three to a word


@njit
def pick(M, f, count):
    """The oldest unused entropy that came back, or a new one."""
    state = M[f + KEPT]
    unused = state & 0xFF
    if unused == 0:
        return any_path(M, f, count)
    place = ((state >> 8) - unused) & (RING - 1)
    M[f + KEPT] = state - 1
    return (M[f + ENTROPIES + place // 3] >> (16 * (place % 3))) & 0xFFFF


@njit
def heard(M, f, kind, entropy, echo, now):
    """An unmarked answer to a packet that arrived brings back an entropy worth using again.

    A receiver that acknowledges several packets at once answers with a BITMAP. A NACK tells of a packet that was
    trimmed or of a gap; a PULL answers no packet.
    """
    if kind == NACK or kind == PULL or echo:
        return
    state = M[f + KEPT]
    place = state >> 8
    word = f + ENTROPIES + place // 3
    shift = 16 * (place % 3)
    M[word] = (M[word] & ~(0xFFFF << shift)) | (entropy << shift)
    M[f + KEPT] = min((state & 0xFF) + 1, RING) | (((place + 1) & (RING - 1)) << 8)


class Reps(Balancer):
    """Load balancer `reps`."""

    kind = "reps"
    per_packet = True
    choose = staticmethod(choose)
    pick = staticmethod(pick)
    heard = staticmethod(heard)
