"""Declares the scheduler `fifo`, by which each gradient goes as soon as it is ready (wait-free backpropagation, as in
Poseidon).

Zhang et al., "Poseidon: An Efficient Communication Architecture for Distributed Deep Learning on GPU Clusters", USENIX
ATC '17. Communication overlaps with the rest of the backward pass; the next iteration waits for all layers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from gradwire.scenarios.schema.effect_conditions import SEVERAL_ITERATIONS
from gradwire.scenarios.schema.job.scheduler import SchedulerTable
from gradwire.workload.scheduling import Scheduling

if TYPE_CHECKING:
    from gradwire.scenarios.schema.job.job import Job


class Fifo(SchedulerTable):
    """Gradients are communicated as they become ready, all at once: Poseidon's wait-free backpropagation."""

    kind: Literal["fifo"]
    forward: Annotated[Literal["barrier", "layerwise"], SEVERAL_ITERATIONS] = "barrier"
    """Forward waits for all layers (barrier, as in Poseidon), or for each layer separately."""

    def scheduling(self, job: Job, trace: Any) -> Scheduling:
        return Scheduling(forward=self.forward)
