"""Declares the exchange `all_to_all`, in which every worker sends a different part to each other, and schedules its
transfers.

Expert parallelism uses it for tokens before and after its experts, twice in every pass, and so does a distributed
matrix transpose; here the data is a bucket of gradients. Worker w sends the i-th of N parts to worker i, all at once,
to the next worker first; nothing is summed, and a received part is stored (so a message is an "all_gather" in the
Result). A lost part is missing at its receiver only.

Every worker sends (N - 1)/N S of a bucket of S bytes. On an idle network, where a message of m bytes takes a + m b and
messages share a line evenly, a bucket takes a + (N - 1)/N S b.
"""

from __future__ import annotations

from typing import Any, Literal

from gradwire.workload.collectives.common.staged_table import StagedTable
from gradwire.workload.collectives.common.transfer_schedule import Transfers, scatter, transfers


class AllToAll(StagedTable):
    """Every worker sends each other one an N-th of a bucket, as expert parallelism does with tokens."""

    kind: Literal["all_to_all"]

    def parts(self, workers: int) -> int:
        return workers

    def sent(self, workers: int, rails: int, inside: int) -> int:
        return workers * (workers - 1) * rails

    def simultaneous_messages(self, setting: Any) -> int:
        return setting.copies * setting.members * (setting.members - 1) * setting.rails

    def transfers(self, workers: int, rails: int) -> Transfers:
        return transfers(scatter(workers), workers, rails)
