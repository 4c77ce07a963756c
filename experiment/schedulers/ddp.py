"""Buckets of PyTorch's DistributedDataParallel.

Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training", VLDB '20, and its code [code:
the reducer]: parameters go into buckets in the reverse order of the model, since gradients become ready in about that
order; a bucket is closed by the tensor that brings it to its cap. The cap is 25 MiB, that of the first bucket 1 MiB
unless the user has set another cap, so that communicating begins early. After the first iteration buckets are rebuilt
in the order in which gradients really became ready. A bucket is reduced when all its gradients are there and the
bucket before it was begun, so that all workers reduce them in the same order.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Literal

from gradwire.experiment.scheduling import Scheduling
from gradwire.scenarios.errors import Mistake
from gradwire.scenarios.schema.effect_conditions import SEVERAL_ITERATIONS
from gradwire.scenarios.schema.scheduler import SchedulerTable
from gradwire.scenarios.units import Bytes, Size

if TYPE_CHECKING:
    from gradwire.scenarios.schema.job import Job

CAP = Bytes(25 * 2**20)
FIRST = Bytes(2**20)


class Ddp(SchedulerTable):
    """Buckets as PyTorch's DDP makes them: a small one first, rebuilt after an iteration, each reduced when it is
    full."""

    kind: Literal["ddp"]
    unit_key = "bucket"
    bucket: Size | None = None
    """Cap of the buckets (`bucket_cap_mb`): 25 MiB, and 1 MiB for the first one; or this one for all of them."""
    rebuild: Annotated[bool, SEVERAL_ITERATIONS] = True
    """Whether buckets are rebuilt after the first iteration in the order in which gradients became ready."""

    def misfits(self, job: Job) -> Iterator[Mistake]:
        if job.exchange.unit_key == "bucket":
            yield from super().misfits(job)
        else:
            what = f"has no buckets to fill with {job.exchange.kind}"
            yield Mistake("scheduler", what, self.kind, "an exchange that reduces buckets, such as ring")

    @property
    def caps(self) -> tuple[int, ...]:
        """Bytes at which the first bucket, and those after it, are closed."""
        return (FIRST, CAP) if self.bucket is None else (self.bucket,)

    def scheduling(self, job: Job, trace: Any) -> Scheduling:
        return Scheduling(
            caps=self.caps, fills=("model", "ready") if self.rebuild else ("model",), forward=self.waits
        )  # fmt: skip

    def longest(self, tensor: int) -> int | None:
        return self.caps[-1] + tensor
