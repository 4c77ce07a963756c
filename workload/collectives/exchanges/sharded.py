"""Declares the exchange `sharded` (reduce-scatter, every worker updates its own N-th of the parameters, all-gather),
and schedules its transfers.

Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", SC '20, the first of its
stages: every worker stores the optimiser's state of an N-th of the parameters only; Megatron calls it the distributed
optimizer [recalled]. On the wire it is an all-reduce, 2(N - 1) S for a bucket of S bytes. Its second half carries
parameters and waits for the update, and so for the whole first half of all buckets, since optimisers first compute the
norm of all gradients (our choice; a library may begin earlier). The update takes an N-th of the captured optimiser time
(our choice: it is the worker's share of the parameters).

On an idle network, where a message of m bytes takes a + m b, one bucket by rings takes 2(N - 1)(a + b S/N) and an N-th
of the optimiser's time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

from gradwire.scenarios.errors import Mistake
from gradwire.workload.collectives.common.half_collectives import (
    Algorithm,
    algorithm_mistakes,
    count_first_transfers,
    count_transfers,
    host_mistakes,
    largest_message_divisor,
    schedule,
)
from gradwire.workload.collectives.common.staged_table import StagedTable
from gradwire.workload.collectives.common.transfer_schedule import Transfers

if TYPE_CHECKING:
    from gradwire.scenarios.schema.job.job import Job


class ShardedUpdate(StagedTable):
    """Reduce-scatter; every worker updates its own part of the parameters; all-gather (ZeRO, stage 1). Layerwise,
    forward of a layer waits for the gathers of its buckets; the update is over by then."""

    kind: Literal["sharded"]
    algorithm: Algorithm = "ring"
    """Algorithm of both halves: rings, direct exchange between all workers, recursive halving and doubling, or rings
    inside hosts of accelerators and across them."""

    def misfits(self, job: Job) -> Iterator[Mistake]:
        yield from super().misfits(job)
        yield from algorithm_mistakes(self.algorithm, job)
        if self.blocking:
            what = "would deadlock: a bucket's parameters are gathered only when all buckets have been reduced"
            yield Mistake("exchange.blocking", what, True, "false")

    def gpu_conflicts(self, job: Job, gpus: int) -> Iterator[Mistake]:
        return host_mistakes(self.algorithm, job, gpus)

    def parts(self, workers: int) -> int:
        return largest_message_divisor(self.algorithm, workers)

    def sent(self, workers: int, rails: int, inside: int) -> int:
        return count_transfers(self.algorithm, workers, rails, inside)

    def simultaneous_messages(self, setting: Any) -> int:
        return count_first_transfers(self.algorithm, setting.members, setting.rails) * setting.copies

    def transfers(self, workers: int, rails: int) -> Transfers:
        return self.schedule(workers, rails, 1)

    def schedule(self, workers: int, rails: int, inside: int) -> Transfers:
        return schedule(self.algorithm, workers, rails, inside)

    def collective(self, context: Any) -> Any:
        from gradwire.workload.collectives.common.staged import Staged

        return Staged(context, self, updates=True)
