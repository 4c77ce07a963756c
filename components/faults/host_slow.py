"""A straggler."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from gradwire.scenarios.schema.effect_conditions import Needs, Situation
from gradwire.scenarios.schema.fault import HostFault
from gradwire.scenarios.schema.in_use import hosts_of_jobs


def _has_worker(at: Situation) -> bool:
    """Return True if a worker or a server may be on the host."""
    used = hosts_of_jobs(at.scenario)
    return used is None or at.table.host in used


def _computes(at: Situation) -> bool:
    """Return True if some job's computing may take time; a host that no job is on is named by itself."""
    jobs, training = at.scenario.job, at.scenario.training
    if not jobs or any(job.optimizer is not None for job in jobs):
        return True
    return any(job.compute_scale > 0 for job in jobs) and (training is None or training.takes_time)


class HostSlow(HostFault):
    """A host computes more slowly: what workers begin to compute there meanwhile takes `factor` times as long: a
    layer, or as many as follow without anything to wait for or to send, as a whole forward pass in the first iteration
    and behind a barrier; and the time to the next gradient."""

    kind: Literal["host_slow"]
    host: Annotated[
        str, Needs(_has_worker, "no worker of a job is on this host", "a host with a worker")
    ]
    """Its name."""
    factor: Annotated[
        float, Field(gt=1, le=1000, strict=True),
        Needs(_computes, "computing takes no time", "job.compute_scale above 0"),
    ]
    """How many times longer computing takes."""

    @property
    def slowness(self) -> float:
        return self.factor
