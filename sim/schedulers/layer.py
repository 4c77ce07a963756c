"""Messages of front layers first, as far as they have not been released yet.

The front layers' gradients are ready last and needed first.  Ready messages wait in a queue ordered by layer
(then by readiness) and are released while the bytes under way are below a credit: small enough that a message
of a front layer never stands behind much, large enough that the line stays full.

The idea is that of P3 and ByteScheduler [notes]; the credit is theirs in proportion: ByteScheduler has
partitions of 1 M and a credit of 4 M parameters for parameter servers.  The rest is our choice: credit comes
back when the sender knows that the message has arrived (by the last acknowledgement, or DLCP's Stop), and a host
has one credit for all its destinations, or one for each of its network cards.
"""

from __future__ import annotations

from heapq import heappop, heappush

from gradwire.sim.coupling import Message
from gradwire.sim.schedulers.base import Release, Scheduler

CREDIT_PARTITIONS = 4
"""Bytes under way, in partitions [notes: ByteScheduler]."""


class LayerOrder(Scheduler):
    """A queue by rank (layer) with a credit of `CREDIT_PARTITIONS` partitions."""

    def __init__(self, release: Release, partition: int) -> None:
        super().__init__(release, partition)
        self.credit = CREDIT_PARTITIONS * partition
        self._queue: list[tuple[int, int, Message]] = []
        self._offered = 0
        self._under_way = 0

    def offer(self, message: Message) -> None:
        message.settled = self._settled
        heappush(self._queue, (message.rank, self._offered, message))
        self._offered += 1
        self._fill()

    def _settled(self, message: Message) -> None:
        self._under_way -= message.bytes
        self._fill()

    def _fill(self) -> None:
        """Release what the credit allows; a message larger than all of it goes when nothing else does."""
        queue = self._queue
        while queue and (not self._under_way or self._under_way + queue[0][2].bytes <= self.credit):
            message = heappop(queue)[2]
            self._under_way += message.bytes
            self.release(message)
