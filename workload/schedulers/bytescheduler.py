"""Declares the scheduler `bytescheduler`, by which partitions of tensors go by priority, within a credit of bytes in
flight.

Peng et al., "A Generic Communication Scheduler for Distributed DNN Training Acceleration", SOSP '19. Tensors are cut
into partitions; those of the layer nearest the input go first, while less than the credit is in flight: a sliding
window that keeps the link busy with little data ahead of a higher priority. Forward of a layer waits for this layer
only, even if the framework has a barrier. The paper tunes partition and credit by search; the defaults are those of its
code [notes].
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from gradwire.scenarios.schema.job.scheduler import SchedulerTable
from gradwire.scenarios.units import Bytes, Size
from gradwire.workload.scheduling import LAYER, Scheduling

if TYPE_CHECKING:
    from gradwire.scenarios.schema.job.job import Job

SERVER_DEFAULTS = Bytes(4_000_000), Bytes(16_000_000)
"""Partition and credit with parameter servers: 1 and 4 million float32 values."""
COLLECTIVE_DEFAULTS = Bytes(32_000_000), Bytes(64_000_000)
"""The same with collectives: 8 and 16 million."""


class ByteScheduler(SchedulerTable):
    """Partitions of tensors, those of the front layers first, while less than a credit is in flight; forward layer by
    layer."""

    kind: Literal["bytescheduler"]
    waits = "layerwise"
    holds_back = True
    unit_key = "partition"
    partition: Size | None = None
    """Largest part of a tensor that is exchanged separately; if absent, 4 MB with parameter servers and 32 MB with
    collectives [notes]."""
    credit: Size | None = None
    """Maximum bytes in flight of a host's messages; if absent, 16 MB with parameter servers and 64 MB with collectives
    [notes]. A larger message goes alone."""

    def scheduling(self, job: Job, trace: Any) -> Scheduling:
        partition, credit = SERVER_DEFAULTS if job.servers else COLLECTIVE_DEFAULTS
        credit = credit if self.credit is None else self.credit
        cut = partition if self.partition is None else self.partition
        return Scheduling(LAYER, credit_bytes=credit, forward=self.waits, in_turn=False, cut=cut)

    def longest(self, tensor: int) -> int | None:
        return min(COLLECTIVE_DEFAULTS[0] if self.partition is None else self.partition, tensor)
