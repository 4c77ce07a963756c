"""Ring all-reduce, as data-parallel PyTorch does it.

The N workers form a ring in the order of their placement; a bucket of S bytes is cut into N segments:

* reduce-scatter, steps 0 .. N-2: in step s worker w sends segment (w - s) mod N to worker w + 1, which adds it to
  its own;
* all-gather, steps N-1 .. 2N-3: the same walk goes on with finished segments.

What a worker sends in step s + 1 is what it received in step s, so step s + 1 waits for that message (and,
in the reduce-scatter, for the worker's own bucket), and for nothing else.  Every worker sends 2(N - 1) S/N bytes. On an
idle network, where a message of m bytes takes a + m b, a bucket takes 2(N - 1)(a + b S/N).

Where hosts have C network cards, or a host has `channels` on each, a segment is cut into as many parts, and there are
as many such rings side by side, each on a rail of its own: a worker sends on by the card by which it received.  NCCL
does the same ("creates 4 rings, each using a different NIC" [its issue 601]).  Where hosts have different numbers of
cards, C is the largest.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from gradwire.experiment.collectives.staged_table import StagedTable
from gradwire.scenarios.schema.base import Count

if TYPE_CHECKING:
    from gradwire.experiment.collectives.schedule import Transfers


class Ring(StagedTable):
    """Ring all-reduce of buckets of tensors: 2(N-1) steps of a bucket's N-th part each."""

    kind: Literal["ring"]
    channels: Count = 1
    """Rings side by side on each network card, each for its share of a bucket: flows of their own, that may take other
    ways."""

    def parts(self, workers: int) -> int:
        return workers

    def transfers(self, workers: int, rails: int) -> Transfers:
        from gradwire.experiment.collectives.schedule import transfers
        from gradwire.experiment.collectives.walks import ring

        lanes = rails * self.channels
        made = transfers(ring(workers), workers, lanes, rails)
        # the parts of a segment lie side by side
        return replace(made, first=made.first % workers * lanes + made.first // workers)
