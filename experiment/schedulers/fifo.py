"""Wait-free backpropagation, as in Poseidon: a gradient is communicated as soon as it is ready.

Zhang et al., "Poseidon: An Efficient Communication Architecture for Distributed Deep Learning on GPU Clusters", USENIX
ATC '17. Communicating overlaps with the rest of the backward pass; the next iteration waits for all layers there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from gradwire.experiment.scheduling import Scheduling
from gradwire.scenarios.schema.effect_conditions import SEVERAL_ITERATIONS
from gradwire.scenarios.schema.scheduler import SchedulerTable

if TYPE_CHECKING:
    from gradwire.scenarios.schema.job import Job


class Fifo(SchedulerTable):
    """Gradients are communicated as they become ready, all at once: Poseidon's wait-free backpropagation."""

    kind: Literal["fifo"]
    forward: Annotated[Literal["barrier", "layerwise"], SEVERAL_ITERATIONS] = "barrier"
    """Whether forward waits for all layers, as in Poseidon, or for each one by itself."""

    def scheduling(self, job: Job, trace: Any) -> Scheduling:
        return Scheduling(forward=self.forward)
