"""No scheduling: first all computing, then all communicating."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from gradwire.experiment.scheduling import Scheduling
from gradwire.scenarios.schema.scheduler import SchedulerTable

if TYPE_CHECKING:
    from gradwire.scenarios.schema.job import Job


class Barrier(SchedulerTable):
    """Gradients are communicated when the backward pass is over, and forward waits for all: nothing overlaps."""

    kind: Literal["barrier"]

    def scheduling(self, job: Job, trace: Any) -> Scheduling:
        return Scheduling(starts="backward", forward=self.waits)
