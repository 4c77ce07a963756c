"""Declares the exchange `hierarchical`, an all-reduce inside groups, across groups, and inside again, and schedules its
transfers.

Jia et al., "Highly Scalable Deep Learning Training System with Mixed-Precision", 2018; NCCL and Horovod do the same for
hosts with several GPUs. With G groups of g consecutive workers and a bucket of S bytes: (1) a ring reduce-scatter
inside every group leaves each of its workers a g-th, summed over the group; (2) the i-th workers of all groups reduce
their g-th in a ring, or by halving and doubling; (3) a ring all-gather inside every group.

A worker sends 2(g - 1)/g S to its group, and 2(G - 1)/(G g) S to other groups: a g-th of a plain ring's bytes. Between
machines of g accelerators, i-th workers are on rail i, and nothing leaves its rail. On an idle network, where a message
of m bytes takes a + m b, a bucket takes 2(g - 1)(a + S b / g) + 2(G - 1)(a + S b / (G g)); if groups are machines, the
first term has the a and b of scale-up links. Halving and doubling across groups, with G a power of two, sends the same
bytes in 2 log2(G) messages instead of 2(G - 1): 2 log2(G) a + 2(G - 1) S b / (G g). With very many machines libraries
use trees instead of rings across [recalled: NCCL]; halving is the tree that sends no more bytes (our choice).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

from gradwire.scenarios.errors import Mistake
from gradwire.scenarios.lazily import np
from gradwire.scenarios.schema.base import Count
from gradwire.workload.collectives.common.staged_table import StagedTable
from gradwire.workload.collectives.common.transfer_schedule import (
    TRANSFER_COUNTS,
    WALKS,
    TransferRows,
    Transfers,
    transfers,
)

if TYPE_CHECKING:
    from gradwire.scenarios.schema.job.job import Job


class Hierarchical(StagedTable):
    """All-reduce by rings inside groups of workers, across the groups, and inside again."""

    kind: Literal["hierarchical"]
    group: Count | None = None
    """Workers of a group, in the order of their placement: those of one host, rack or pod. If absent, the accelerators
    of a host."""
    across: Literal["ring", "halving"] = "ring"
    """Algorithm between the groups: rings, or halving and doubling if the groups are a power of two."""

    def gpu_conflicts(self, job: Job, gpus: int) -> Iterator[Mistake]:
        group = self.group or gpus
        if job.workers % group or not 1 < group < job.workers:
            what = f"does not divide {job.workers} workers into groups"
            if self.group is None:
                inside = f"{gpus} accelerator{'s' * (gpus > 1)}"
                what = f"is absent, and {job.workers} workers on hosts of {inside} make no groups"
            expected = "at least two groups of the same size, two workers or more"
            yield Mistake("exchange.group", what, self.group, expected)
        elif self.across == "halving" and (job.workers // group).bit_count() > 1:
            what = f"halving does not work for {job.workers // group} groups"
            yield Mistake("exchange.across", what, self.across, "a power of two groups; or ring")

    def parts(self, workers: int) -> int:
        return self.group or 2

    def sent(self, workers: int, rails: int, inside: int) -> int:
        return count_nested_transfers(workers, rails, self.group or inside, self.across)

    def schedule(self, workers: int, rails: int, inside: int) -> Transfers:
        return nested_transfers(workers, rails, self.group or inside, self.across)

    def transfers(self, workers: int, rails: int) -> Transfers:
        return self.schedule(workers, rails, 1)


def count_nested_transfers(workers: int, rails: int, g: int, across: str = "ring") -> int:
    """Return the number of transfers of `nested_transfers`."""
    return (2 * (g - 1) * workers + TRANSFER_COUNTS[across](workers // g) * g) * rails


def nested_transfers(workers: int, rails: int, g: int, across: str = "ring") -> Transfers:
    """Return the schedule for groups of g workers: rings inside them, and the walk `across` (`WALKS`)."""
    groups = workers // g
    rank = np.arange(workers)
    group, position = rank // g, rank % g
    following = group * g + (position + 1) % g
    between = [row._replace(stage=g - 1 + row.stage) for row in WALKS[across](groups)]
    last = max(row.stage for row in between) + 1
    rows = []
    for s in range(g - 1):
        rows.append(TransferRows(s, rank, following, (position - s) % g * groups, groups, True))
        rows.append(TransferRows(last + s, rank, following, (position + 1 - s) % g * groups, groups, False))
    for row in between:  # its ranks are groups: the i-th workers of all groups, with the g-th of the reduce-scatter
        src, dst, first = (np.asarray(column)[:, None] for column in np.broadcast_arrays(row.src, row.dst, row.first))
        member = np.arange(g)
        ends = (src * g + member).ravel(), (dst * g + member).ravel()
        share = (first + (member + 1) % g * groups).ravel()
        rows.append(TransferRows(row.stage, *ends, share, row.length, row.adds))
    return transfers(rows, workers, rails)
