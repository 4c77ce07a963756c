"""Sharded update: reduce-scatter, every worker updates its own N-th of the parameters, all-gather.

Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", SC '20, the first of its
stages: every worker keeps the optimiser's state of an N-th of the parameters only; Megatron calls it the distributed
optimizer [recalled]. On the wire it is an all-reduce, 2(N - 1) S for a bucket of S bytes, whose second half carries
parameters and waits for the update, and so for the whole first half: for all buckets, since optimisers look at the norm
of all gradients first (our choice; a library may begin earlier). The update takes an N-th of the captured optimiser
time (our choice: it is the part of the parameters that a worker has).

On an idle network, where a message of m bytes takes a + m b, one bucket by rings takes 2(N - 1)(a + b S/N) and an N-th
of the optimiser's time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

from gradwire.experiment.collectives.halves import Algorithm, first_of, misfits, parts, schedule, sent, unfit
from gradwire.experiment.collectives.staged_table import StagedTable
from gradwire.scenarios.errors import Mistake

if TYPE_CHECKING:
    from gradwire.experiment.collectives.schedule import Transfers
    from gradwire.scenarios.schema.job import Job


class ShardedUpdate(StagedTable):
    """Reduce-scatter; every worker updates its own part of the parameters; all-gather (ZeRO, stage 1). Layerwise,
    forward of a layer waits for the gathers that have something of it, and the update is over before."""

    kind: Literal["sharded"]
    algorithm: Algorithm = "ring"
    """How both halves go: step by step round a ring, at once from everybody to everybody, by recursive halving and
    doubling, or by rings inside hosts and across them, of accelerators."""

    def misfits(self, job: Job) -> Iterator[Mistake]:
        yield from super().misfits(job)
        yield from misfits(self.algorithm, job)
        if self.blocking:
            what = "would wait for ever: parameters of a bucket come when all buckets have been reduced"
            yield Mistake("exchange.blocking", what, True, "false")

    def unfit(self, job: Job, gpus: int) -> Iterator[Mistake]:
        return unfit(self.algorithm, job, gpus)

    def parts(self, workers: int) -> int:
        return parts(self.algorithm, workers)

    def sent(self, workers: int, rails: int, inside: int) -> int:
        return sent(self.algorithm, workers, rails, inside)

    def at_once(self, setting: Any) -> int:
        return first_of(self.algorithm, setting.members, setting.rails) * setting.copies

    def transfers(self, workers: int, rails: int) -> Transfers:
        return self.schedule(workers, rails, 1)

    def schedule(self, workers: int, rails: int, inside: int) -> Transfers:
        return schedule(self.algorithm, workers, rails, inside)

    def collective(self, context: Any) -> Any:
        from gradwire.experiment.collectives.sharded import Sharded

        return Sharded(context, self)
