"""Declares the exchange `double_tree`, an all-reduce along two binary trees as in NCCL, and schedules its transfers.

Sanders, Speck and Traeff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan", 2009; NCCL 2.4
[code: its trees]. Both binary trees contain all workers, and the second is the mirror of the first (with an odd number
of workers: shifted by one), so a worker is an inner node of at most one tree and a leaf of the other. Each tree carries
half of the bucket as a pipeline of chunks: every worker adds its children's chunk to its own on the way up to the root,
and the sums go down again.

In the first tree worker 0 is the root. The parent of worker r, whose lowest set bit is 2^k, is r with that bit cleared
and the next one set, or only cleared if that worker does not exist.

Every worker sends and receives at most 2 S; all workers together send 2(N - 1) S. On an idle network, where a message
of m bytes takes a + m b, a single chunk of c bytes takes 2 D (a + c b), where D, the depth of the tree, is about log2
N; this is the time of a short bucket. If c b is not small compared with a, the chunks of two children and of the other
tree share a link, and the time grows up to 2 D (a + 2 c b). A bucket of many chunks takes at least 2(N - 1)/N S b, the
bound of any all-reduce, and 2.3 to 2.6 S b measured if chunks take longer than a round trip, since both directions of
two trees share every link.

Our choices: `chunks` per half of a bucket whatever its size, and two of them in flight between two workers (NCCL has
eight slots of fixed size).
"""

from __future__ import annotations

from typing import Literal

from gradwire.scenarios.lazily import np
from gradwire.scenarios.schema.base import Count
from gradwire.workload.collectives.common.staged_table import StagedTable
from gradwire.workload.collectives.common.transfer_schedule import TransferRows, Transfers, transfers


class DoubleTree(StagedTable):
    """All-reduce along two binary trees that each carry half of a bucket as a pipeline of chunks."""

    kind: Literal["double_tree"]
    slots = 2
    chunks: Count = 16
    """Number of chunks of each half of a bucket."""

    def parts(self, workers: int) -> int:
        return 2 * self.chunks

    @property
    def multiplies(self) -> tuple[str, ...]:
        return ("chunks",)

    def sent(self, workers: int, rails: int, inside: int) -> int:
        return 4 * self.chunks * (workers - 1) * rails

    def transfers(self, workers: int, rails: int) -> Transfers:
        up = parents_of_workers(workers)
        chunk = np.arange(self.chunks)
        rows = []
        for tree, parent_of in enumerate((up, second_parents(up))):
            depth = tree_depths(parent_of)
            deepest = max(depth)
            for child, parent in enumerate(parent_of):
                if parent < 0:
                    continue
                part = (tree * self.chunks + chunk, 1)
                rows.append(TransferRows(deepest - depth[child], child, parent, *part, True))
                rows.append(TransferRows(deepest + depth[child], parent, child, *part, False))
        return transfers(rows, 2 * self.chunks, rails)


def parents_of_workers(workers: int) -> list[int]:
    """Return the parent of every worker in the first tree; -1 for the root."""
    parent_of = [-1]
    for rank in range(1, workers):
        bit = rank & -rank
        parent = (rank ^ bit) | bit << 1
        parent_of.append(parent if parent < workers else rank ^ bit)
    return parent_of


def second_parents(first: list[int]) -> list[int]:
    """Return the parents in the second tree: the first one mirrored, or shifted by one."""
    count = len(first)
    moved_rank = [(rank + 1) % count if count % 2 else count - 1 - rank for rank in range(count)]
    parent_of = [-1] * count
    for rank, parent in enumerate(first):
        parent_of[moved_rank[rank]] = moved_rank[parent] if parent >= 0 else -1
    return parent_of


def tree_depths(parent_of: list[int]) -> list[int]:
    """Return the distance of every worker from the root, in steps."""
    depths = []
    for rank in range(len(parent_of)):
        steps = 0
        while parent_of[rank] >= 0:
            rank, steps = parent_of[rank], steps + 1
        depths.append(steps)
    return depths
