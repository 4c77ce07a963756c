"""Hierarchical all-reduce: inside groups, across groups, inside groups.

Jia et al., "Highly Scalable Deep Learning Training System with Mixed-Precision", 2018, and NCCL's and Horovod's way
with hosts of several GPUs. With G groups of g workers that follow one another, and a bucket of S bytes: (1) a ring
reduce-scatter inside every group leaves each of its workers a g-th, added up over the group; (2) the i-th workers of
all groups reduce their g-th in a ring; (3) a ring all-gather inside every group.

A worker sends 2(g - 1)/g S to its group, and 2(G - 1)/(G g) S to others: across groups goes a g-th of what a ring
sends; between machines of g accelerators, i-th workers are on rail i, and nothing leaves its rail. On an idle network,
where a message of m bytes takes a + m b, a bucket takes 2(g - 1)(a + S b / g) + 2(G - 1)(a + S b / (G g)), with the a
and b of scale-up links in the first term where groups are machines.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

from gradwire.experiment.collectives.staged_table import StagedTable
from gradwire.scenarios.errors import Mistake
from gradwire.scenarios.schema.base import Count

if TYPE_CHECKING:
    from gradwire.experiment.collectives.schedule import Transfers
    from gradwire.scenarios.schema.job import Job


class Hierarchical(StagedTable):
    """All-reduce by rings inside groups of workers, across the groups, and inside again."""

    kind: Literal["hierarchical"]
    group: Count | None = None
    """Workers of a group, in the order of their placement: those of one host, rack or pod. If absent, the accelerators
    of a host."""

    def unfit(self, job: Job, gpus: int) -> Iterator[Mistake]:
        group = self.group or gpus
        if job.workers % group or not 1 < group < job.workers:
            yield Mistake(
                "exchange.group", f"does not divide {job.workers} workers into groups", group,
                "at least two groups of two workers or more, all as large",
            )  # fmt: skip

    def parts(self, workers: int) -> int:
        return self.group or 2

    def schedule(self, workers: int, rails: int, inside: int) -> Transfers:
        return nested_rings(workers, rails, self.group or inside)

    def transfers(self, workers: int, rails: int) -> Transfers:
        return self.schedule(workers, rails, 1)


def nested_rings(workers: int, rails: int, g: int) -> Transfers:
    """The schedule among groups of g workers."""
    import numpy as np

    from gradwire.experiment.collectives.schedule import Rows, transfers

    groups = workers // g
    rank = np.arange(workers)
    group, place = rank // g, rank % g
    inside, across = group * g + (place + 1) % g, (rank + g) % workers
    rows = []
    for s in range(g - 1):
        last = g - 1 + 2 * (groups - 1)
        rows.append(Rows(s, rank, inside, (place - s) % g * groups, groups, True))
        rows.append(Rows(last + s, rank, inside, (place + 1 - s) % g * groups, groups, False))
    mine = (place + 1) % g * groups  # what the reduce-scatter leaves
    for s in range(2 * (groups - 1)):
        rows.append(Rows(g - 1 + s, rank, across, mine + (group - s) % groups, 1, s < groups - 1))
    return transfers(rows, workers, rails)
