"""Into how many parts a job splits its model, and with whom workers then communicate besides."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from gradwire.scenarios.errors import Mistake
from gradwire.scenarios.schema.base import Count, Table


class ModelSplit(Table):
    """A model that is split over workers, as imported workloads have it: those that share a layer's matrices follow one
    another (tensor), then those that share its experts (expert), then copies of all that. What passes of the trace wait
    for goes inside of these groups, gradients among the copies. An empty table takes the sizes from the trace."""

    tensor: Count | None = None
    """Workers that share the matrices of a layer; what the trace says if absent."""
    expert: Count | None = None
    """Groups of these that share the experts of a layer; what the trace says if absent."""
    pipeline: Count | None = None
    """Stages; what the trace says if absent. Only 1 can be played, which takes the trace as one stage by itself."""
    algorithm: Literal["ring", "all_to_all", "halving"] = "ring"
    """How all-reduces, reduce-scatters and all-gathers inside of passes go. All-to-alls go at once, broadcasts along a
    binomial tree."""

    def misfits(self, job: Any) -> Iterator[Mistake]:
        """What of its [[job]] does not fit, with paths in the job's table."""
        if not job.exchange.grouped:
            what = f"{job.exchange.kind} goes among all workers, and these have other parts of the model"
            yield Mistake("exchange.kind", what, expected="ring, halving_doubling, transpose, hierarchical or sharded")
        held = job.scheduler is not None and job.scheduler.holds_back
        if held or job.order != "fifo":
            key, value = ("order", job.order) if job.scheduler is None else ("scheduler", job.scheduler.kind)
            what = "lets messages wait for others, and what passes wait for goes at once"
            yield Mistake(key, what, value, "none, fifo, barrier or ddp")
