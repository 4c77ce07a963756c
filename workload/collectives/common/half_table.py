"""Base class of the halves of an all-reduce as separate collectives: all-gather and reduce-scatter."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from gradwire.scenarios.errors import Mistake
from gradwire.workload.collectives.common.half_collectives import count_first_transfers
from gradwire.workload.collectives.common.staged_table import StagedTable

if TYPE_CHECKING:
    from gradwire.scenarios.schema.job.job import Job
    from gradwire.workload.collectives.common.transfer_schedule import Transfers


class HalfTable(StagedTable):
    """One half of an all-reduce of buckets."""

    adds: ClassVar[bool]
    """True for the half that sums."""

    algorithm: Literal["ring", "all_to_all", "halving"] = "ring"
    """Algorithm: a ring, direct exchange between all workers, or recursive halving (doubling in an all-gather)."""

    def misfits(self, job: Job) -> Iterator[Mistake]:
        yield from super().misfits(job)
        if self.algorithm == "halving" and job.workers & (job.workers - 1):
            yield Mistake("workers", "is not a power of two, as halving needs", job.workers, "ring or all_to_all")

    def parts(self, workers: int) -> int:
        return 2 if self.algorithm == "halving" else workers

    def sent(self, workers: int, rails: int, inside: int) -> int:
        from gradwire.workload.collectives.common.rank_walks import TRANSFER_COUNTS

        return TRANSFER_COUNTS[self.algorithm](workers) // 2 * rails

    def at_once(self, setting: Any) -> int:
        return count_first_transfers(self.algorithm, setting.members, setting.rails) * setting.copies

    def transfers(self, workers: int, rails: int) -> Transfers:
        from gradwire.workload.collectives.common.rank_walks import half_walk
        from gradwire.workload.collectives.common.transfer_schedule import transfers

        return transfers(half_walk(self.algorithm, workers, adds=self.adds), workers, rails)
