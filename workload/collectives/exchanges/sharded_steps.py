"""Sharded update as steps of a program; see `gradwire.workload.collectives.exchanges.sharded`.

The schedule is that of an all-reduce whose first half leaves every worker a part of the sums; between the halves every
worker runs the optimiser on its part. As events, beside those of a staged collective: all arrivals at a worker in the
first half, its own gradients ready -> reduced; reduced -> the worker's optimiser -> updated; updated, sums -> the
worker's messages with its part.
"""

from __future__ import annotations

import numpy as np

from gradwire.scenarios.arrays import Flags
from gradwire.workload.collectives.common.staged import Staged
from gradwire.workload.collectives.common.transfer_schedule import Dependencies, Transfers


class ShardedExchange(Staged):
    """The exchange of one job by a schedule, with an update between its halves."""

    worker_optimizes = False
    repeats = True
    updates = True

    def _holds(self, plan: Transfers, dependencies: Dependencies) -> Flags:
        """Return the groups that are the first to send their worker's sums: some of their inputs were added."""
        held = np.zeros(len(dependencies.lead), dtype=np.bool_)
        owner = np.repeat(np.arange(len(held)), dependencies.counts)
        held[owner[plan.adds[dependencies.needs]]] = True
        return held & ~plan.adds[dependencies.lead]
