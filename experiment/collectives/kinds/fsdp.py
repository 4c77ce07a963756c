"""Fully sharded data parallelism: parameters are gathered when they are needed, and gradients scattered.

Rajbhandari et al., "ZeRO", SC '20, the third stage; Zhao et al., "PyTorch FSDP: Experiences on Scaling Fully
Sharded Data Parallel", VLDB '23. Every worker keeps an N-th of the parameters, gradients and optimiser state. The
model is cut into units of layers that follow one another. Before a unit's forward step its parameters are gathered from
all workers, and freed behind it; before its backward step they are gathered again; its gradients are reduce-scattered
when they are there, and every worker updates its N-th when all are. Gathers go one after the other, and so do
reduce-scatters, each on a stream of their own [recalled]. The unit that ends the forward pass is not freed, since
backward begins with it (our choice).

All that waits for the network does so inside of passes: `prefetch` units are asked for before they are needed. With 1,
while a worker computes one unit the next one's parameters come in (FSDP's backward prefetch, and what its limit of two
gathers leaves of a CPU that runs ahead in forward [recalled]); with 0 a unit is asked for when it is needed.

In groups of G workers that follow one another (PyTorch's hybrid sharding, HSDP, of the same paper) every worker has a
G-th, gathers go inside of the groups, and behind a reduce-scatter inside of a group every worker reduces its part with
those who have the same part in the other R = N/G groups, by both halves of the algorithm; what leaves a group is a
G-th of what an all-reduce sends. Micro-batches do so one by one, as FSDP2 does unless told otherwise [recalled].

Bytes sent by all workers, of a model of S bytes whose last unit has L: (N - 1)(3 S - L); (N - 1) 2 S if parameters are
kept from forward to backward; in groups (N - R)(3 S - L) + 2(R - 1) S. On an idle network, where a message of m bytes
takes a + m b, a gather and a reduce-scatter of a unit of U bytes by rings take (N - 1)(a + b U/N) each; in groups a
gather takes (G - 1)(a + b U/G), and a reduction 2(R - 1)(a + b U/N) more. Lost parts of a gather are parameters that a
worker has from its last update or lacks; those of a reduction are missing from a sum.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

from gradwire.experiment.collectives.halves import Algorithm, first_of, misfits, parts, sent_in_groups, unfit
from gradwire.scenarios.errors import Mistake
from gradwire.scenarios.schema.base import Count, Flag, Natural
from gradwire.scenarios.schema.exchange import ExchangeTable
from gradwire.scenarios.units import Bytes, Size

if TYPE_CHECKING:
    from gradwire.scenarios.schema.job import Job


class FullySharded(ExchangeTable):
    """Parameters are gathered unit by unit for every pass, gradients reduce-scattered, and every worker updates its own
    part (FSDP; ZeRO, stage 3)."""

    kind: Literal["fsdp"]
    unit: Size = Bytes(64 * 2**20)
    """Layers that follow one another make a unit of at least this size; the last one may be smaller. Ours; FSDP wraps
    what its user says, such as the blocks of a transformer."""
    prefetch: Natural = 1
    """How many units ahead parameters are asked for."""
    reshard: Flag = True
    """Whether parameters are freed behind a unit's forward step, and gathered again for its backward step."""
    group: Count | None = None
    """Workers that share a model, one after the other in the order of their placement: those of one host, for instance.
    Other groups have copies of it (hybrid sharding). All workers if absent."""
    algorithm: Algorithm = "ring"
    """How gathers and reduce-scatters go: step by step round a ring, at once from everybody to everybody, by recursive
    halving and doubling, or by rings inside hosts and across them, of accelerators. All-reduces across groups go in the
    same way (hierarchical: by rings)."""

    @property
    def unit_key(self) -> str:
        return "unit"

    def misfits(self, job: Job) -> Iterator[Mistake]:
        yield from super().misfits(job)
        yield from misfits(self.algorithm, job, self.group)
        if job.workers < 2:
            yield Mistake("workers", f"makes no {self.kind}", job.workers, "at least two workers")
        if job.scheduler is not None or job.order != "fifo":
            key, value = ("order", job.order) if job.scheduler is None else ("scheduler", job.scheduler.kind)
            yield Mistake(key, "has nothing to order: units go when they are needed", value, "to leave it out")

    def unfit(self, job: Job, gpus: int) -> Iterator[Mistake]:
        return unfit(self.algorithm, job, gpus, self.group)

    def longest(self, tensor: int, workers: int) -> tuple[str, int]:
        return "unit", (self.unit + tensor) // parts(self.algorithm, self.group or workers)

    def messages_of(self, setting: Any) -> int | None:
        from gradwire.experiment.collectives.fsdp import units_of

        units, micros = len(units_of(setting, self.unit)), setting.table.accumulate
        group = self.group or len(setting.workers)
        gather, scatter = sent_in_groups(
            self.algorithm, len(setting.workers), setting.rails, setting.inside, group
        )
        gathered = micros * (2 * units - 1) if self.reshard else units
        return gathered * gather + micros * units * scatter

    def at_once(self, setting: Any) -> int:
        group = self.group or len(setting.workers)
        return first_of(self.algorithm, group, setting.rails) * (len(setting.workers) // group)

    def collective(self, context: Any) -> Any:
        from gradwire.experiment.collectives.fsdp import FullySharded

        return FullySharded(context, self)
