"""Declares the exchange `tree`, a reduce and broadcast along a binomial tree, and schedules its transfers. MPI
libraries use it for short messages.

Worker r, whose lowest set bit is 2^k, sends the sum of its own and its children's buckets to worker r - 2^k. Worker 0
has the sum after ceil(log2 N) steps, and it goes back the same way [Thakur et al. 2005].

A worker sends S on the way to the root, and up to ceil(log2 N) S on the way back, to the farthest child first and one
after the other; all together 2(N - 1) S. On an idle network, where a message of m bytes takes a + m b, a bucket takes
2 log2(N)(a + S b) with N a power of two, plus an acknowledgement time for every message of the root but the first: a
host sends the next message when the previous one has arrived.
"""

from __future__ import annotations

from typing import Literal

from gradwire.workload.collectives.common.staged_table import StagedTable
from gradwire.workload.collectives.common.transfer_schedule import Transfers, binomial, transfers


class Tree(StagedTable):
    """Reduce to the first worker along a binomial tree, and broadcast back: for short buckets."""

    kind: Literal["tree"]
    slots = 1
    slots_apart = False

    def parts(self, workers: int) -> int:
        return 1

    def sent(self, workers: int, rails: int, inside: int) -> int:
        return 2 * (workers - 1) * rails

    def transfers(self, workers: int, rails: int) -> Transfers:
        return transfers(binomial(workers), 1, rails)
