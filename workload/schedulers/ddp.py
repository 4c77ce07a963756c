"""Declares the scheduler `ddp`, by which gradients travel in the buckets of PyTorch's DistributedDataParallel.

Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training", VLDB '20, and its code [code: the
reducer]: parameters go into buckets in the reverse order of the model, since gradients become ready in about that
order; the tensor that reaches the cap closes a bucket. The cap is 25 MiB, that of the first bucket 1 MiB unless the
user has set another cap, so that communication begins early. After the first iteration buckets are rebuilt in the order
in which gradients actually became ready. A bucket is reduced when all its gradients are ready and the previous bucket
has begun, so that all workers reduce them in the same order.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Literal

from gradwire.scenarios.errors import Mistake
from gradwire.scenarios.schema.effect_conditions import SEVERAL_ITERATIONS
from gradwire.scenarios.schema.job.scheduler import SchedulerTable
from gradwire.scenarios.units import Bytes, Size
from gradwire.workload.scheduling import Scheduling

if TYPE_CHECKING:
    from gradwire.scenarios.schema.job.job import Job

CAP = Bytes(25 * 2**20)
FIRST_CAP = Bytes(2**20)


class Ddp(SchedulerTable):
    """Buckets of PyTorch's DDP: a small one first, rebuilt after an iteration, each reduced when it is full."""

    kind: Literal["ddp"]
    unit_key = "bucket"
    bucket: Size | None = None
    """Cap of the buckets (`bucket_cap_mb`): 25 MiB, and 1 MiB for the first one; or this one for all of them."""
    rebuild: Annotated[bool, SEVERAL_ITERATIONS] = True
    """If true, buckets are rebuilt after the first iteration in the order in which gradients became ready."""

    def misfits(self, job: Job) -> Iterator[Mistake]:
        if job.exchange.unit_key == "bucket":
            yield from super().misfits(job)
        else:
            what = f"has no buckets to fill with {job.exchange.kind}"
            yield Mistake("scheduler", what, self.kind, "an exchange that reduces buckets, such as ring")

    @property
    def caps(self) -> tuple[int, ...]:
        """Bytes at which the first bucket, and those after it, are closed."""
        return (FIRST_CAP, CAP) if self.bucket is None else (self.bucket,)

    def scheduling(self, job: Job, trace: Any) -> Scheduling:
        return Scheduling(caps=self.caps, fills=("model", "ready") if self.rebuild else ("model",), forward=self.waits)

    def longest(self, tensor: int) -> int | None:
        return self.caps[-1] + tensor
