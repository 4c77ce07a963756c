"""Sharded update: reduce-scatter, every worker updates its own part of the parameters, all-gather.

The schedule is that of an all-reduce whose first half leaves every worker a part of the sums, and between whose halves
every worker runs the optimiser on its part; see `gradwire.experiment.collectives.kinds.sharded`.

As events, beside those of a staged collective: all that arrives at a worker on the way to sums, its own gradients ready
-> reduced; reduced -> the worker's optimiser -> updated; updated, sums -> what the worker sends of its part.
"""

from __future__ import annotations

import numpy as np

from gradwire.experiment.collectives.schedule import Links, Transfers
from gradwire.experiment.collectives.staged import Staged
from gradwire.scenarios.arrays import Flags


class Sharded(Staged):
    """The exchange of one job by a schedule, with an update between its halves."""

    worker_optimizes = False
    repeats = True
    updates = True

    def _holds(self, plan: Transfers, found: Links) -> Flags:
        """Those that send for the first time what their worker has summed up: of what they are made some was added."""
        held = np.zeros(len(found.lead), dtype=np.bool_)
        owner = np.repeat(np.arange(len(held)), found.counts)
        held[owner[plan.adds[found.needs]]] = True
        return held & ~plan.adds[found.lead]
