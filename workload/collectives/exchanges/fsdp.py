"""The table `fsdp` declares the settings of fully sharded data parallelism (ZeRO, stage 3); `fsdp_rounds` builds its
messages. Parameters are gathered on demand, and gradients scattered.

Rajbhandari et al., "ZeRO", SC '20, the third stage; Zhao et al., "PyTorch FSDP: Experiences on Scaling Fully Sharded
Data Parallel", VLDB '23. Every worker stores an N-th of the parameters, gradients and optimiser state. The model is cut
into units of consecutive layers. A unit's parameters are gathered from all workers before its forward step and freed
after it, and gathered again before its backward step; its gradients are reduce-scattered once ready, and every worker
updates its N-th when all are reduced. Gathers are serial, and so are reduce-scatters, each on a stream of their own
[recalled]. The unit that ends the forward pass is not freed, since backward begins with it (our choice).

All waiting for the network happens inside passes: `prefetch` units are requested ahead of use. With 1, the next unit's
parameters arrive while a worker computes one unit (FSDP's backward prefetch, and the effect of its limit of two gathers
on a CPU that runs ahead in forward [recalled]); with 0 a unit is requested when it is needed.

In groups of G consecutive workers (PyTorch's hybrid sharding, HSDP, of the same paper) every worker has a G-th, gathers
stay inside the groups, and after a reduce-scatter inside a group every worker all-reduces its part with the owners of
the same part in the other R = N/G groups, by both halves of the algorithm; the traffic between groups is a G-th of an
all-reduce's. Each micro-batch does so separately, as in FSDP2 by default [recalled].

Bytes sent by all workers, of a model of S bytes whose last unit has L: (N - 1)(3 S - L); (N - 1) 2 S if parameters are
kept from forward to backward; in groups (N - R)(3 S - L) + 2(R - 1) S. On an idle network, where a message of m bytes
takes a + m b, a gather and a reduce-scatter of a unit of U bytes by rings take (N - 1)(a + b U/N) each; in groups a
gather takes (G - 1)(a + b U/G), and a reduction 2(R - 1)(a + b U/N) more. Lost parts of a gather are parameters that a
worker has from its last update or lacks; those of a reduction are missing from a sum.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

from gradwire.scenarios.errors import Mistake
from gradwire.scenarios.schema.base import Count, Flag, Natural
from gradwire.scenarios.schema.job.exchange import ExchangeTable
from gradwire.scenarios.units import Bytes, Size
from gradwire.workload.collectives.common.half_collectives import (
    Algorithm,
    algorithm_mistakes,
    count_first_transfers,
    count_grouped_transfers,
    host_mistakes,
    largest_message_divisor,
)

if TYPE_CHECKING:
    from gradwire.scenarios.schema.job.job import Job


class FullyShardedExchange(ExchangeTable):
    """Parameters are gathered unit by unit for every pass, gradients reduce-scattered, and every worker updates its own
    part (FSDP; ZeRO, stage 3)."""

    kind: Literal["fsdp"]
    unit: Size = Bytes(64 * 2**20)
    """Minimum size of a unit of consecutive layers; the last one may be smaller. Our default; in FSDP the user chooses
    the units, such as the blocks of a transformer."""
    prefetch: Natural = 1
    """Number of units ahead of use that parameters are requested."""
    reshard: Flag = True
    """If true, parameters are freed after a unit's forward step, and gathered again for its backward step."""
    group: Count | None = None
    """Consecutive workers, in the order of their placement, that share a model: those of one host, for instance.
    Other groups have copies of it (hybrid sharding). All workers if absent."""
    algorithm: Algorithm = "ring"
    """Algorithm of gathers and reduce-scatters: rings, direct exchange between all workers, recursive halving and
    doubling, or rings inside hosts of accelerators and across them. All-reduces across groups use the same one
    (hierarchical: rings)."""

    @property
    def unit_key(self) -> str:
        return "unit"

    def misfits(self, job: Job) -> Iterator[Mistake]:
        yield from super().misfits(job)
        yield from algorithm_mistakes(self.algorithm, job, self.group)
        if job.workers < 2:
            yield Mistake("workers", f"is too small for {self.kind}", job.workers, "at least two workers")
        if job.scheduler is not None or job.order != "fifo":
            key, value = ("order", job.order) if job.scheduler is None else ("scheduler", job.scheduler.kind)
            yield Mistake(key, "has nothing to order: units are sent when they are needed", value, "to leave it out")

    def gpu_conflicts(self, job: Job, gpus: int) -> Iterator[Mistake]:
        return host_mistakes(self.algorithm, job, gpus, self.group)

    def longest(self, tensor: int, workers: int) -> tuple[str, int]:
        return "unit", (self.unit + tensor) // largest_message_divisor(self.algorithm, self.group or workers)

    def messages_of(self, setting: Any) -> int | None:
        from gradwire.workload.collectives.exchanges.fsdp_rounds import units_of

        units, micros = len(units_of(setting, self.unit)), setting.table.accumulate
        workers = len(setting.workers)
        sizes = workers, setting.rails, setting.inside, self.group or workers
        gather, scatter = count_grouped_transfers(self.algorithm, *sizes)
        gathered = micros * (2 * units - 1) if self.reshard else units
        return gathered * gather + micros * units * scatter

    def simultaneous_messages(self, setting: Any) -> int:
        group = self.group or len(setting.workers)
        return count_first_transfers(self.algorithm, group, setting.rails) * (len(setting.workers) // group)

    def collective(self, context: Any) -> Any:
        from gradwire.workload.collectives.exchanges.fsdp_rounds import FullyShardedExchange

        return FullyShardedExchange(context, self)
