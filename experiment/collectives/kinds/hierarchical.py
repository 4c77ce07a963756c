"""Hierarchical all-reduce: inside groups, across groups, inside groups.

Jia et al., "Highly Scalable Deep Learning Training System with Mixed-Precision", 2018, and NCCL's and Horovod's way
with hosts of several GPUs. With G groups of g workers that follow one another, and a bucket of S bytes: (1) a ring
reduce-scatter inside every group leaves each of its workers a g-th, added up over the group; (2) the i-th workers of
all groups reduce their g-th in a ring, or by halving and doubling; (3) a ring all-gather inside every group.

A worker sends 2(g - 1)/g S to its group, and 2(G - 1)/(G g) S to others: across groups goes a g-th of what a ring
sends; between machines of g accelerators, i-th workers are on rail i, and nothing leaves its rail. On an idle network,
where a message of m bytes takes a + m b, a bucket takes 2(g - 1)(a + S b / g) + 2(G - 1)(a + S b / (G g)), with the a
and b of scale-up links in the first term where groups are machines. Across by halving and doubling, with G a power of
two, the same bytes go in 2 log2(G) messages instead of 2(G - 1): 2 log2(G) a + 2(G - 1) S b / (G g). Libraries leave
rings across for trees where there are very many machines [recalled: NCCL], of which this is the one that sends no more
bytes (our choice).
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
    across: Literal["ring", "halving"] = "ring"
    """How the groups reduce among them: in rings, or, where they are a power of two, by halving and doubling."""

    def unfit(self, job: Job, gpus: int) -> Iterator[Mistake]:
        group = self.group or gpus
        if job.workers % group or not 1 < group < job.workers:
            what = f"does not divide {job.workers} workers into groups"
            if self.group is None:
                inside = f"{gpus} accelerator{'s' * (gpus > 1)}"
                what = f"is absent, and by hosts of {inside} {job.workers} workers make no groups"
            expected = "at least two groups of two workers or more, all as large"
            yield Mistake("exchange.group", what, self.group, expected)
        elif self.across == "halving" and (job.workers // group).bit_count() > 1:
            what = f"makes halving go among {job.workers // group} groups"
            yield Mistake("exchange.across", what, self.across, "a power of two of them; or ring")

    def parts(self, workers: int) -> int:
        return self.group or 2

    def sent(self, workers: int, rails: int, inside: int) -> int:
        return sent_nested(workers, rails, self.group or inside, self.across)

    def schedule(self, workers: int, rails: int, inside: int) -> Transfers:
        return nested(workers, rails, self.group or inside, self.across)

    def transfers(self, workers: int, rails: int) -> Transfers:
        return self.schedule(workers, rails, 1)


def sent_nested(workers: int, rails: int, g: int, across: str = "ring") -> int:
    """How many transfers `nested` has."""
    from gradwire.experiment.collectives.walks import SENT

    return (2 * (g - 1) * workers + SENT[across](workers // g) * g) * rails


def nested(workers: int, rails: int, g: int, across: str = "ring") -> Transfers:
    """The schedule among groups of g workers: rings inside of them, and a walk across (`WALKS`)."""
    import numpy as np

    from gradwire.experiment.collectives.schedule import Rows, transfers
    from gradwire.experiment.collectives.walks import WALKS

    groups = workers // g
    rank = np.arange(workers)
    group, place = rank // g, rank % g
    following = group * g + (place + 1) % g
    between = [row._replace(stage=g - 1 + row.stage) for row in WALKS[across](groups)]
    last = max(row.stage for row in between) + 1
    rows = []
    for s in range(g - 1):
        rows.append(Rows(s, rank, following, (place - s) % g * groups, groups, True))
        rows.append(Rows(last + s, rank, following, (place + 1 - s) % g * groups, groups, False))
    for row in between:  # its ranks are groups: of each the i-th workers, with the g-th that the reduce-scatter left
        src, dst, first = (np.asarray(each)[:, None] for each in np.broadcast_arrays(row.src, row.dst, row.first))
        each = np.arange(g)
        mine = (each + 1) % g * groups
        rows.append(Rows(
            row.stage, (src * g + each).ravel(), (dst * g + each).ravel(), (first + mine).ravel(), row.length, row.adds,
        ))  # fmt: skip
    return transfers(rows, workers, rails)
