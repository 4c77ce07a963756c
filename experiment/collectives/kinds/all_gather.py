"""All-gather alone: every worker hands its own N-th of a bucket to all others.

It is the second half of an all-reduce, and what sharded training (ZeRO, FSDP) does with parameters, which have the
sizes of gradients.

Every worker sends (N - 1)/N S. On an idle network, where a message of m bytes takes a + m b, a bucket takes (N - 1)(a
+ S b / N) by a ring, a + (N - 1)/N S b by an all-to-all, and log2(N) a + (N - 1)/N S b by recursive doubling, for
which N is a power of two.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

from gradwire.experiment.collectives.halves import first_of
from gradwire.experiment.collectives.staged_table import StagedTable
from gradwire.scenarios.errors import Mistake

if TYPE_CHECKING:
    from gradwire.experiment.collectives.schedule import Transfers
    from gradwire.scenarios.schema.job import Job


class AllGather(StagedTable):
    """Every worker hands its own N-th of a bucket to all others: sharded training's parameters."""

    kind: Literal["all_gather"]
    algorithm: Literal["ring", "all_to_all", "halving"] = "ring"
    """Step by step round a ring, at once from everybody to everybody, or by recursive doubling."""

    def misfits(self, job: Job) -> Iterator[Mistake]:
        yield from super().misfits(job)
        if self.algorithm == "halving" and job.workers & (job.workers - 1):
            yield Mistake("workers", "is no power of two, which halving wants", job.workers, "ring or all_to_all")

    def parts(self, workers: int) -> int:
        return 2 if self.algorithm == "halving" else workers

    def sent(self, workers: int, rails: int, inside: int) -> int:
        from gradwire.experiment.collectives.walks import SENT

        return SENT[self.algorithm](workers) // 2 * rails

    def at_once(self, setting: Any) -> int:
        return first_of(self.algorithm, setting.members, setting.rails) * setting.copies

    def transfers(self, workers: int, rails: int) -> Transfers:
        from gradwire.experiment.collectives.schedule import transfers
        from gradwire.experiment.collectives.walks import half

        return transfers(half(self.algorithm, workers, adds=False), workers, rails)
