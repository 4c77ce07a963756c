"""The loss budget of one worker's step, held by the receiver: later messages may use what earlier ones left.

Every message has its own part of the budget, R_ALLOWED, which it may lose in any case. If it is delivered with less
loss, the rest is saved at the receiver for later messages of the same step between the same two hosts in the same
direction (R_POOL). Each of them may lose that much more, but no more than R_MOST in all, and its loss beyond its own
part is subtracted. So at any time the delivered messages have lost no more than the sum of their parts, and the
messages of a worker in a step no more than the budget. Receivers need no information about each other: what a worker
leaves over at one server is not spent at another (ours).

A pair keeps the latest two budgets, one per direction: another step, or another job between the same two hosts,
replaces the budget, and the rest of the old one is forfeited.
"""

from __future__ import annotations

from gradwire.jit.compiled import njit
from gradwire.jit.layout import R_ALLOWED, R_MOST, R_PAIR, R_POOL
from gradwire.protocols.transports.dlcp.layout import P_POOLS


@njit
def is_affordable(M, r, lost):
    """Return True if a message may be delivered with `lost` bytes missing."""
    if lost <= M[r + R_ALLOWED]:
        return True
    pool = M[r + R_POOL]
    if pool == 0 or lost > M[r + R_MOST]:
        return False
    p = M[r + R_PAIR]
    place = P_POOLS + 2 * (pool & 1)
    return M[p + place] == pool and lost <= M[r + R_ALLOWED] + M[p + place + 1]


@njit
def spend(M, r, lost):
    """Account for a delivery with `lost` bytes missing, which are affordable."""
    pool = M[r + R_POOL]
    if pool:
        p = M[r + R_PAIR]
        place = P_POOLS + 2 * (pool & 1)
        if M[p + place] != pool:
            M[p + place] = pool
            M[p + place + 1] = 0
        M[p + place + 1] += M[r + R_ALLOWED] - lost
