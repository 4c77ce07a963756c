"""Declares the scheduler `barrier`, by which all communication starts after the backward pass, so that nothing
overlaps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from gradwire.scenarios.schema.job.scheduler import SchedulerTable
from gradwire.workload.scheduling import Scheduling

if TYPE_CHECKING:
    from gradwire.scenarios.schema.job.job import Job


class Barrier(SchedulerTable):
    """Gradients are communicated when the backward pass is over, and forward waits for all: nothing overlaps."""

    kind: Literal["barrier"]

    def scheduling(self, job: Job, trace: Any) -> Scheduling:
        return Scheduling(starts="backward", forward=self.waits)
