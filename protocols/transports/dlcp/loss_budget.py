"""Loss budget of a worker's step, held by the receiver: later messages may use the rest that earlier ones left.

Every message has its part of the budget, `allowed_loss`, which it may lose in any case. If it is delivered with less
loss, the rest is saved at the receiver for later messages of the same step between the same two hosts in the same
direction (`pool`). Each of them may lose that much more, but no more than `max_loss` in all, and its loss beyond its
own part is subtracted. So at any time the delivered messages have lost no more than the sum of their parts, and the
messages of a worker in a step no more than the budget. Receivers need no information about each other: what a worker
leaves over at one server is not spent at another (ours).

A pair keeps the latest two budgets, one per direction: another step, or another job between the same two hosts,
replaces the budget, and the rest of the old one is forfeited.
"""

from __future__ import annotations

from gradwire.jit.compiled import njit
from gradwire.protocols.transports.dlcp.layout import DlcpReceiver


@njit
def is_affordable(receiver: DlcpReceiver, lost: int) -> bool:
    """Return True if a message may be delivered with `lost` bytes missing."""
    if lost <= receiver.allowed_loss:
        return True
    pool = receiver.pool
    if pool == 0 or lost > receiver.max_loss:
        return False
    pools = receiver.pair.pools
    entry = 2 * (pool & 1)
    return pools[entry] == pool and lost <= receiver.allowed_loss + pools[entry + 1]


@njit
def spend(receiver: DlcpReceiver, lost: int) -> None:
    """Account for a delivery with `lost` bytes missing, which are affordable."""
    pool = receiver.pool
    if pool:
        pools = receiver.pair.pools
        entry = 2 * (pool & 1)
        if pools[entry] != pool:
            pools[entry] = pool
            pools[entry + 1] = 0
        pools[entry + 1] += receiver.allowed_loss - lost
