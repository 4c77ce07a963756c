"""Declares the table of the fault `host_slow`, a host that computes slower by a factor; `gradwire.sim.faults` applies
it.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from gradwire.scenarios.schema.effect_conditions import Precondition, TableContext
from gradwire.scenarios.schema.network.fault import HostFault
from gradwire.scenarios.schema.network.hosts_in_use import hosts_of_jobs


def _has_worker(at: TableContext) -> bool:
    """Return True if a worker or a server may be on the host."""
    used = hosts_of_jobs(at.scenario)
    return used is None or at.table.host in used


def _computes(at: TableContext) -> bool:
    """Return True if computing may take time in some job; a host without jobs is reported separately."""
    jobs, training = at.scenario.job, at.scenario.training
    if not jobs or any(job.optimizer is not None for job in jobs):
        return True
    return any(job.compute_scale > 0 for job in jobs) and (training is None or training.has_compute_times)


class HostSlow(HostFault):
    """A host computes more slowly. Computations that its workers start in this time take `factor` times as long: a
    layer, or all layers up to the next wait or send (such as a whole forward pass in the first iteration and after a
    barrier), and the time to the next gradient."""

    kind: Literal["host_slow"]
    host: Annotated[str, Precondition(_has_worker, "no worker of a job is on this host", "a host with a worker")]
    """Name of the host."""
    factor: Annotated[
        float,
        Field(gt=1, le=1000, strict=True),
        Precondition(_computes, "computing takes no time", "job.compute_scale above 0"),
    ]
    """Factor by which computing takes longer."""

    @property
    def slowness(self) -> float:
        return self.factor
