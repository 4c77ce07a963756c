"""Recycled entropies (REPS, arXiv 2407.21625 [recalled]): packets of a message reuse entropies of good paths.

Switches hash as with ECMP, but every packet has its own entropy. The acknowledgement of a packet returns its entropy;
if it reports no mark, the entropy enters a ring of eight and replaces the oldest. A packet takes the oldest unused one
of the ring or, if there is none, a random one, as in `source_random`. So the first round trip explores, and congested
or cut paths are not reused, because their acknowledgements are marked or never come. Left out: the paper's freezing
mode after time-outs, in which the ring is used over and over.
"""

from gradwire.jit.compiled import njit
from gradwire.jit.layout import NACK, PULL, S_PATHS
from gradwire.protocols.load_balancers.base import Balancer
from gradwire.protocols.load_balancers.ecmp import choose
from gradwire.protocols.load_balancers.source_random import pick as any_path

RING = 8
KEPT = S_PATHS  # number of unused ones | index of the next one << 8
ENTROPIES = S_PATHS + 1  # three to a word


@njit
def pick(M, f, count):
    """Return the oldest unused entropy that came back, or a new one."""
    state = M[f + KEPT]
    unused = state & 0xFF
    if unused == 0:
        return any_path(M, f, count)
    place = ((state >> 8) - unused) & (RING - 1)
    M[f + KEPT] = state - 1
    return (M[f + ENTROPIES + place // 3] >> (16 * (place % 3))) & 0xFFFF


@njit
def heard(M, f, kind, entropy, echo, now):
    """Store the entropy of an unmarked acknowledgement for reuse. A receiver that acknowledges several packets at once
    answers with a BITMAP. A NACK reports a trimmed packet or a gap; a PULL answers no packet."""
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
