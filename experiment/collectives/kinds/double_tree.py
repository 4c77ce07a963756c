"""Double binary trees, as NCCL has them for many workers.

Sanders, Speck and Traeff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan", 2009; NCCL 2.4
[code: its trees]. There are two binary trees over all workers, the second one the mirror of the first (with an odd
number of workers: shifted by one), so that a worker is inside at most one of them and a leaf in the other. Each
carries half of the bucket, in chunks one behind the other: up to the root, where a chunk is added to those of the
children at every worker, and down again.

In the first tree worker 0 is the root, and the parent of worker r, whose lowest set bit is 2^k, is r with that bit
off and the next one on, or only off where there is no such worker.

Every worker sends and receives 2 S at the most, all together 2(N - 1) S. On an idle network, where a message of m
bytes takes a + m b, one chunk of c bytes alone takes 2 D (a + c b), D being the steps from the deepest leaf to the
root, about log2 N: what a short bucket takes. Where c b is not small beside a, what comes of two children and of the
other tree shares a line, up to 2 D (a + 2 c b). A bucket of many chunks takes at least 2(N - 1)/N S b, the bound of any
all-reduce, and 2.3 to 2.6 S b measured where chunks take longer than a round trip: both directions of two trees share
every line.

Our choices: `chunks` for every half of a bucket whatever its size, and two of them under way between two workers, where
NCCL has eight slots of fixed size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from gradwire.experiment.collectives.staged_table import StagedTable
from gradwire.scenarios.schema.base import Count

if TYPE_CHECKING:
    from gradwire.experiment.collectives.schedule import Transfers


class DoubleTree(StagedTable):
    """All-reduce along two binary trees, each with half of a bucket, in chunks that follow one another."""

    kind: Literal["double_tree"]
    slots = 2
    chunks: Count = 16
    """Into how many chunks each half of a bucket is cut."""

    def parts(self, workers: int) -> int:
        return 2 * self.chunks

    @property
    def multiplies(self) -> tuple[str, ...]:
        return ("chunks",)

    def sent(self, workers: int, rails: int, inside: int) -> int:
        return 4 * self.chunks * (workers - 1) * rails

    def transfers(self, workers: int, rails: int) -> Transfers:
        import numpy as np

        from gradwire.experiment.collectives.schedule import Rows, transfers

        up = parents(workers)
        chunk = np.arange(self.chunks)
        rows = []
        for tree, of in enumerate((up, _second(up))):
            depth = _depths(of)
            deepest = max(depth)
            for child, parent in enumerate(of):
                if parent < 0:
                    continue
                part = (tree * self.chunks + chunk, 1)
                rows.append(Rows(deepest - depth[child], child, parent, *part, True))
                rows.append(Rows(deepest + depth[child], parent, child, *part, False))
        return transfers(rows, 2 * self.chunks, rails)


def parents(workers: int) -> list[int]:
    """The parent of every worker in the first tree; -1 of the root."""
    found = [-1]
    for rank in range(1, workers):
        bit = rank & -rank
        up = (rank ^ bit) | bit << 1
        found.append(up if up < workers else rank ^ bit)
    return found


def _second(first: list[int]) -> list[int]:
    """The same of the second tree: the first one mirrored, or shifted by one."""
    count = len(first)
    turned = [(rank + 1) % count if count % 2 else count - 1 - rank for rank in range(count)]
    found = [-1] * count
    for rank, parent in enumerate(first):
        found[turned[rank]] = turned[parent] if parent >= 0 else -1
    return found


def _depths(of: list[int]) -> list[int]:
    """How many steps every worker is from the root."""
    found = []
    for rank in range(len(of)):
        steps = 0
        while of[rank] >= 0:
            rank, steps = of[rank], steps + 1
        found.append(steps)
    return found
