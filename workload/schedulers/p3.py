"""Declares the scheduler `p3`, by which slices of layers go by priority, front layers first.

Jayarajan et al., "Priority-based Parameter Propagation for Distributed DNN Training", MLSys '19. Tensors are cut into
slices of 50,000 values; workers and servers send the waiting slice of the layer nearest the input first, and a server
returns a slice as soon as it has all workers'; forward of a layer waits for this layer only. A slice is not
interrupted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from gradwire.scenarios.schema.base import Count
from gradwire.scenarios.schema.job.scheduler import SchedulerTable
from gradwire.scenarios.units import Bytes, Size
from gradwire.workload.scheduling import LAYER, Scheduling

if TYPE_CHECKING:
    from gradwire.scenarios.schema.job.job import Job


class P3(SchedulerTable):
    """Slices of tensors, those of the front layers first, on workers and servers; forward layer by layer."""

    kind: Literal["p3"]
    waits = "layerwise"
    holds_back = True
    unit_key = "slice"
    slice: Size = Bytes(200_000)
    """Bytes of a slice: 50,000 float32 values in the paper, 40,000 in its code [notes]."""
    credit: Count = 4
    """Maximum slices of a host in flight. The paper sends them one by one; a few keep the link busy while
    acknowledgements travel. Ours."""

    def scheduling(self, job: Job, trace: Any) -> Scheduling:
        return Scheduling(LAYER, self.credit, cut=self.slice, forward=self.waits, in_turn=False)

    def longest(self, tensor: int) -> int | None:
        return min(self.slice, tensor)
