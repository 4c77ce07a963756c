"""Ring all-reduce: the table; `gradwire.experiment.collectives.ring` carries it out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

from gradwire.scenarios.errors import Mistake
from gradwire.scenarios.schema.exchange import ExchangeTable
from gradwire.scenarios.units import Bytes, Size

if TYPE_CHECKING:
    from gradwire.experiment.collectives.base import Exchange, JobContext
    from gradwire.scenarios.schema.job import Job


class Ring(ExchangeTable):
    """Ring all-reduce of buckets of tensors: 2(N-1) steps of a bucket's N-th part each."""

    kind: Literal["ring"]
    bucket: Size = Bytes(25 * 2**20)
    """Tensors are gathered into buckets of about this size, 25 MiB in PyTorch DDP [code]."""

    def misfits(self, job: Job) -> Iterator[Mistake]:
        if job.servers:
            yield Mistake("servers", "has no meaning in a ring", job.servers, "no servers")
        if job.workers < 2:
            yield Mistake("workers", "makes no ring", job.workers, "at least two workers")

    def longest(self, tensor: int, workers: int) -> tuple[str, int]:
        return "bucket", (self.bucket + tensor) // workers

    def collective(self, context: JobContext) -> Exchange:
        from gradwire.experiment.collectives.ring import RingReduce

        return RingReduce(context, self)
