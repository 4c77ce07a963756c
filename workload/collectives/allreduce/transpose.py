"""Declares the exchange `transpose`, an all-reduce by two all-to-alls, and schedules its transfers.

Every worker owns an N-th of the bucket. All workers send every owner its part (an all-to-all, in effect a
reduce-scatter); the owner sums, and sends the sum to all (an all-gather by an all-to-all). There are two rounds,
however many workers; a value takes part in two messages. OptiReduce calls it the transpose all-reduce (NSDI '25
[notes]); sharded, co-located parameter servers do the same.

Every worker sends 2(N - 1)/N S. On an idle network, where a message of m bytes takes a + m b and messages share a
link evenly, a bucket takes 2 a + 2(N - 1)/N S b: every worker sends to the N - 1 others at once, beginning with its
successor, so that all receive at the same rate at any time.
"""

from __future__ import annotations

from typing import Any, Literal

from gradwire.workload.collectives.common.staged_table import StagedTable
from gradwire.workload.collectives.common.transfer_schedule import Transfers, all_to_all, transfers


class Transpose(StagedTable):
    """All-reduce by two all-to-alls: every worker sums its own N-th of a bucket and sends it to all."""

    kind: Literal["transpose"]

    def parts(self, workers: int) -> int:
        return workers

    def sent(self, workers: int, rails: int, inside: int) -> int:
        return 2 * workers * (workers - 1) * rails

    def simultaneous_messages(self, setting: Any) -> int:
        return setting.copies * setting.members * (setting.members - 1) * setting.rails

    def transfers(self, workers: int, rails: int) -> Transfers:
        return transfers(all_to_all(workers), workers, rails)
