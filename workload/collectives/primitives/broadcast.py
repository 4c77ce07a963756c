"""Declares the exchange `broadcast` of the first worker's bucket to all others along a binomial tree, and schedules its
transfers.

The root sends to the farthest of its children first, and then to the nearer ones; each child does the same [Thakur et
al. 2005]. All together (N - 1) S. On an idle network, where a message of m bytes takes a + m b, a bucket takes
log2(N)(a + S b) with N a power of two, plus an acknowledgement time for every message of the root but the first: a host
sends the next message when the previous one has arrived.
"""

from __future__ import annotations

from typing import Literal

from gradwire.workload.collectives.common.staged_table import StagedTable
from gradwire.workload.collectives.common.transfer_schedule import Transfers, binomial, transfers


class Broadcast(StagedTable):
    """The first worker sends its buckets to all others along a binomial tree."""

    kind: Literal["broadcast"]
    slots = 1
    slots_apart = False

    def parts(self, workers: int) -> int:
        return 1

    def sent(self, workers: int, rails: int, inside: int) -> int:
        return (workers - 1) * rails

    def transfers(self, workers: int, rails: int) -> Transfers:
        return transfers([row for row in binomial(workers) if not row.adds], 1, rails)
