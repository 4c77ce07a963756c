"""Broadcast along a binomial tree: the first worker hands its bucket to all others.

The root sends to the farthest of its children first, and then to the nearer ones; each of these does the same with
its own [Thakur et al. 2005]. All together (N - 1) S. On an idle network, where a message of m bytes takes a + m b, a
bucket takes log2(N)(a + S b) with N a power of two, and the time of an acknowledgement more for every message of the
root but the first: a host sends the next message when the one before has arrived.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from gradwire.experiment.collectives.staged_table import StagedTable

if TYPE_CHECKING:
    from gradwire.experiment.collectives.schedule import Transfers


class Broadcast(StagedTable):
    """The first worker hands its buckets to all others along a binomial tree."""

    kind: Literal["broadcast"]
    slots = 1
    slots_apart = False

    def parts(self, workers: int) -> int:
        return 1

    def sent(self, workers: int, rails: int, inside: int) -> int:
        return (workers - 1) * rails

    def transfers(self, workers: int, rails: int) -> Transfers:
        from gradwire.experiment.collectives.schedule import transfers
        from gradwire.experiment.collectives.walks import binomial

        return transfers([row for row in binomial(workers) if not row.adds], 1, rails)
