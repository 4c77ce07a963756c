"""Declares the exchange `ring`, a ring all-reduce as in data-parallel PyTorch, and schedules its transfers.

The N workers form a ring in the order of their placement; a bucket of S bytes is cut into N segments:

* reduce-scatter, steps 0 .. N-2: in step s worker w sends segment (w - s) mod N to worker w + 1, which adds it to
  its own;
* all-gather, steps N-1 .. 2N-3: the walk continues with finished segments.

In step s + 1 a worker sends the segment received in step s, so step s + 1 waits for that message only (and, in the
reduce-scatter, for the worker's own bucket). Every worker sends 2(N - 1) S/N bytes. On an idle network, where a message
of m bytes takes a + m b, a bucket takes 2(N - 1)(a + b S/N).

With C NICs per host, or `channels` rings on each, a segment is cut into as many parts for as many rings side by side,
each on its own rail: a worker sends on the NIC on which it received. NCCL does the same ("creates 4 rings, each using a
different NIC" [its issue 601]). If hosts have different numbers of NICs, C is the largest.

If machines hold g accelerators, a ring visits all of one machine before the next, and so crosses between two machines
once. Ring k begins a machine at accelerator k mod g; it goes up in one machine and down in the next, so it leaves each
machine by the rail by which it enters the next, and g rings use all rails (our choice of the order; with an odd number
of machines, one crossing of each ring changes rails).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

from gradwire.scenarios.arrays import Ints
from gradwire.scenarios.lazily import np
from gradwire.scenarios.schema.base import Count
from gradwire.workload.collectives.common.staged_table import StagedTable
from gradwire.workload.collectives.common.transfer_schedule import Transfers, ring, transfers


class Ring(StagedTable):
    """Ring all-reduce of buckets of tensors: 2(N-1) steps of a bucket's N-th part each."""

    kind: Literal["ring"]
    channels: Count | None = None
    """Rings side by side on each NIC, each for its share of a bucket: separate flows, which may take different paths.
    If absent, 1; with accelerators, the accelerators of a host."""

    def parts(self, workers: int) -> int:
        return workers

    @property
    def multiplies(self) -> tuple[str, ...]:
        return ("channels",)

    def sent(self, workers: int, rails: int, inside: int) -> int:
        return 2 * workers * (workers - 1) * rails * (inside if self.channels is None else self.channels)

    def simultaneous_messages(self, setting: Any) -> int:
        return self.sent(setting.members, setting.rails, setting.inside) * setting.copies // (2 * (setting.members - 1))

    def transfers(self, workers: int, rails: int) -> Transfers:
        return self.schedule(workers, rails, 1)

    def schedule(self, workers: int, rails: int, inside: int) -> Transfers:
        return ring_transfers(workers, rails, inside, inside if self.channels is None else self.channels)


def ring_transfers(workers: int, rails: int, inside: int, channels: int) -> Transfers:
    """Return the schedule of `channels` rings per NIC, with `inside` consecutive workers per machine."""
    lanes = rails * channels
    plan = transfers(ring(workers), workers, lanes, rails)
    lane, segment = plan.first // workers, plan.first % workers
    plan = replace(plan, first=segment * lanes + lane)  # the parts of a segment lie side by side
    if inside == 1:
        return plan
    order = _orders(workers, lanes, inside)
    return replace(plan, src=order[lane, plan.src], dst=order[lane, plan.dst])


def _orders(workers: int, lanes: int, inside: int) -> Ints:
    """Return the workers in the order of every ring: int64[lanes, workers]."""
    machine, step = np.divmod(np.arange(workers), inside)
    lane, odd = np.arange(lanes)[:, None] % inside, machine % 2
    return machine * inside + np.where(odd, lane - 1 - step, lane + step) % inside
