"""Declares the table `ModelSplit`, model parallelism of a job by sizes of its worker groups and their collectives."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from gradwire.scenarios.errors import Mistake
from gradwire.scenarios.schema.base import Count, ScenarioTable


class ModelSplit(ScenarioTable):
    """Model that is split over workers, as in imported workloads. Workers that share a layer's matrices have
    consecutive numbers (tensor), then those that share a sample (context), those that share the experts of a layer
    (expert), then copies of all that. Collectives inside the trace's passes run in these groups, gradients among the
    copies. An empty table takes the sizes from the trace."""

    tensor: Count | None = None
    """Workers that share the matrices of a layer; from the trace if absent."""
    context: Count | None = None
    """Groups of these that share a sample, each a part of its length; from the trace if absent."""
    expert: Count | None = None
    """Groups of these that share the experts of a layer; from the trace if absent."""
    pipeline: Count | None = None
    """Stages; from the trace if absent. Only 1 is supported here, which replays the trace as a single stage; graphs of
    ranks replay all stages."""
    algorithm: Literal["ring", "all_to_all", "halving"] = "ring"
    """Algorithm of all-reduces, reduce-scatters and all-gathers inside of passes. All-to-alls send everything at once,
    broadcasts use a binomial tree."""

    def misfits(self, job: Any) -> Iterator[Mistake]:
        """Yield the job's conflicts with the split, with paths in the job's table."""
        if not job.exchange.grouped:
            what = f"{job.exchange.kind} involves all workers, but they hold different parts of the model"
            yield Mistake("exchange.kind", what, expected="ring, halving_doubling, transpose, hierarchical or sharded")
        holds_back = job.scheduler is not None and job.scheduler.holds_back
        if holds_back or job.order != "fifo":
            key, value = ("order", job.order) if job.scheduler is None else ("scheduler", job.scheduler.kind)
            what = "holds messages back, but collectives inside of passes are sent at once"
            yield Mistake(key, what, value, "none, fifo, barrier or ddp")
