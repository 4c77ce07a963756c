"""ByteScheduler: partitions of tensors by priority, within a credit.

Peng et al., "A Generic Communication Scheduler for Distributed DNN Training Acceleration", SOSP '19. Tensors are cut
into partitions; those of the layer nearest the input go first, while less than the credit is under way: a sliding
window, so that the line is busy and yet little is in front of what comes with a higher priority. Forward of a layer
waits for this layer only, whatever the framework's barrier. The paper tunes partition and credit by search; the
defaults are those of its code [notes].
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from gradwire.experiment.scheduling import LAYER, Scheduling
from gradwire.scenarios.schema.scheduler import SchedulerTable
from gradwire.scenarios.units import Bytes, Size

if TYPE_CHECKING:
    from gradwire.scenarios.schema.job import Job

SERVERS = Bytes(4_000_000), Bytes(16_000_000)
"""Partition and credit with parameter servers: 1 and 4 million float32 values."""
REDUCED = Bytes(32_000_000), Bytes(64_000_000)
"""The same with collectives: 8 and 16 million."""


class ByteScheduler(SchedulerTable):
    """Partitions of tensors, those of the front layers first, while less than a credit is under way; forward layer by
    layer."""

    kind: Literal["bytescheduler"]
    waits = "layerwise"
    holds_back = True
    unit_key = "partition"
    partition: Size | None = None
    """Largest part of a tensor that is exchanged by itself; 4 MB with parameter servers and 32 MB with collectives if
    absent [notes]."""
    credit: Size | None = None
    """Bytes of a host's messages that may be under way; 16 MB with parameter servers and 64 MB with collectives if
    absent [notes]. A message larger than that goes alone."""

    def scheduling(self, job: Job, trace: Any) -> Scheduling:
        partition, credit = SERVERS if job.servers else REDUCED
        return Scheduling(
            LAYER, credit_bytes=credit if self.credit is None else self.credit, forward=self.waits, in_turn=False,
            cut=partition if self.partition is None else self.partition,
        )  # fmt: skip

    def longest(self, tensor: int) -> int | None:
        return min(REDUCED[0] if self.partition is None else self.partition, tensor)
