"""What a message does not lose of its bound, later ones may: a budget of one worker's step, kept at its receiver.

Every message has a part of the budget of its own, R_ALLOWED, which it may lose in any case. Where it is delivered with
less, what is left over is put by, at the receiver, for the messages that follow it on the same way between the same two
hosts in the same step (R_POOL); each of them may lose so much more, but no more than R_MOST in all, and what it does
lose beyond its own part is taken away again. So at any time the messages that have been delivered have lost no more
than their parts together, and the messages of a worker in a step no more than the budget. A receiver needs to know
nothing of others: what a worker leaves over at one server is not spent at another (ours).

A pair keeps two budgets, forth and back, the last ones that it has heard of: another step's, or another job's between
the same two hosts, takes the place, and what was left over is forfeited.
"""

from __future__ import annotations

from gradwire.components.compiled import njit
from gradwire.components.layout import R_ALLOWED, R_MOST, R_PAIR, R_POOL
from gradwire.components.transports.dlcp_words import P_POOLS


@njit
def affordable(M, r, lost):
    """Whether a message may be delivered with so many bytes lost."""
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
    """It is delivered with so many lost, which are affordable."""
    pool = M[r + R_POOL]
    if pool:
        p = M[r + R_PAIR]
        place = P_POOLS + 2 * (pool & 1)
        if M[p + place] != pool:
            M[p + place] = pool
            M[p + place + 1] = 0
        M[p + place + 1] += M[r + R_ALLOWED] - lost
