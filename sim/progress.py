"""`Observer` reports the progress of a simulation, and ends it on Ctrl-C or at a wall-clock limit.

Both happen where the engine rests and no process of a job is half-way through a step, about every twentieth of a
second. An interrupt or time limit is noticed inside a long call of the fabric, which then returns early, and is raised
between two steps of the coupling. The state is consistent there, so the results so far form a valid Result.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from gradwire.scenarios.inner_units import Ps
from gradwire.scenarios.interrupt import DeferredInterrupt


class ProgressReport(NamedTuple):
    """The progress of a run.

    Attributes
    ----------
    done, total : iterations that all their workers have completed, of all jobs; without jobs, flows delivered and flows
        known so far.
    share : 0 to 1: the share of bytes delivered, which determines the simulator's run time, or of the scenario's
        duration if that is larger.
    now_ps : simulated time.
    packet_hops : packet-hops so far.
    """

    done: int
    total: int
    share: float
    now_ps: Ps
    packet_hops: int


Progress = Callable[[ProgressReport], None]

PROGRESS_INTERVAL_S = 0.1
MAX_PROGRESS_SHARE = 0.05
"""Largest share of the run time that progress reports may take (our choice): with many messages each takes a while."""


class WallClockLimit(Exception):
    """The run has used up its limit on the wall clock."""


class Observer:
    """Reports the progress of a run, and ends it on Ctrl-C or at a time limit.

    Parameters
    ----------
    standing : function from simulated time to progress.
    progress : called when the run begins and about every `PROGRESS_INTERVAL_S`; may be None.
    ctrl_c : checked every time.
    max_wall_s : seconds from now after which the run has to end; None for no limit.
    """

    def __init__(
        self,
        standing: Callable[[Ps], ProgressReport],
        progress: Progress | None,
        ctrl_c: DeferredInterrupt,
        max_wall_s: float | None = None,
    ) -> None:
        self._standing, self._progress, self._ctrl_c = standing, progress, ctrl_c
        self._due = time.monotonic()
        self._end = None if max_wall_s is None else time.monotonic() + max_wall_s

    def report_within_call(self, now_ps: Ps) -> bool:
        """Report progress from within a long call of the fabric; return True if the call is to return."""
        self.report(now_ps)
        return self._ctrl_c.is_requested or self._late

    def report_progress(self, now_ps: Ps) -> None:
        """Report progress between two steps of the coupling; raise what ends the run."""
        self._ctrl_c.check()
        if self._late:
            raise WallClockLimit
        self.report(now_ps)

    def report(self, now_ps: Ps, last: bool = False) -> None:
        """Report progress if it is due, or for the `last` time."""
        started = time.monotonic()
        if self._progress is None or (started < self._due and not last):
            return
        self._progress(self._standing(now_ps))
        ended = time.monotonic()
        self._due = ended + max(PROGRESS_INTERVAL_S, (ended - started) / MAX_PROGRESS_SHARE)

    @property
    def _late(self) -> bool:
        return self._end is not None and time.monotonic() >= self._end
