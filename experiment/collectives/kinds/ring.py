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

Where machines hold g accelerators, a ring goes through all of one machine before it goes to the next, and so crosses
between two machines once. Ring k begins a machine at accelerator k mod g; it goes up in one machine and down in the
next, so that it leaves each by the rail by which it enters the next, and g rings use all rails (our choice of the
order; with an odd number of machines, one crossing of each ring changes rails).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from gradwire.experiment.collectives.staged_table import StagedTable
from gradwire.scenarios.schema.base import Count

if TYPE_CHECKING:
    from gradwire.experiment.collectives.schedule import Transfers
    from gradwire.scenarios.arrays import Ints


class Ring(StagedTable):
    """Ring all-reduce of buckets of tensors: 2(N-1) steps of a bucket's N-th part each."""

    kind: Literal["ring"]
    channels: Count | None = None
    """Rings side by side on each network card, each for its share of a bucket: flows of their own, that may take other
    ways. If absent one; of accelerators, as many as a host holds."""

    def parts(self, workers: int) -> int:
        return workers

    @property
    def multiplies(self) -> tuple[str, ...]:
        return ("channels",)

    def sent(self, workers: int, rails: int, inside: int) -> int:
        return 2 * workers * (workers - 1) * rails * (inside if self.channels is None else self.channels)

    def at_once(self, setting: Any) -> int:
        return self.sent(setting.members, setting.rails, setting.inside) * setting.copies // (2 * (setting.members - 1))

    def transfers(self, workers: int, rails: int) -> Transfers:
        return self.schedule(workers, rails, 1)

    def schedule(self, workers: int, rails: int, inside: int) -> Transfers:
        return rings(workers, rails, inside, inside if self.channels is None else self.channels)


def rings(workers: int, rails: int, inside: int, channels: int) -> Transfers:
    """The schedule of so many rings on every network card, of workers of which so many follow one another in a machine.
    """
    from gradwire.experiment.collectives.schedule import transfers
    from gradwire.experiment.collectives.walks import ring

    lanes = rails * channels
    made = transfers(ring(workers), workers, lanes, rails)
    lane, segment = made.first // workers, made.first % workers
    made = replace(made, first=segment * lanes + lane)  # the parts of a segment lie side by side
    if inside == 1:
        return made
    order = _orders(workers, lanes, inside)
    return replace(made, src=order[lane, made.src], dst=order[lane, made.dst])


def _orders(workers: int, lanes: int, inside: int) -> Ints:
    """The workers in the order of every ring: int64[lanes, workers]."""
    import numpy as np

    machine, step = np.divmod(np.arange(workers), inside)
    lane, odd = np.arange(lanes)[:, None] % inside, machine % 2
    return machine * inside + np.where(odd, lane - 1 - step, lane + step) % inside
