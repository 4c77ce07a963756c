"""What happens to a run from the outside while it is under way: somebody looks how far it is, or ends it.

Both are done where the engine rests and no process of a job is half-way through a step, about every twentieth of a
second. What ends a run is noted inside a long call of the fabric, which then returns early, and raised between two
steps of the coupling: there everything is in order, and what has been seen so far is a valid Result.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from gradwire.scenarios.inner_units import Ps
from gradwire.scenarios.interrupt import CtrlC


class Standing(NamedTuple):
    """How far a run is.

    Attributes
    ----------
    done, total : iterations of all jobs, over at all their workers; or without jobs flows: delivered, and in all as far
        as they are known.
    share : 0 to 1: of the bytes that there are to carry, which is what takes the simulator's time; of the scenario's
        duration if that is nearer.
    now_ps : simulated time.
    packet_hops : so far.
    """

    done: int
    total: int
    share: float
    now_ps: Ps
    packet_hops: int


Progress = Callable[[Standing], None]

PROGRESS_SECONDS = 0.1
MOST_OF_THE_TIME = 0.05
"""Looking how far a run is may take this share of its time (our choice): with many messages it takes a while."""


class OutOfTime(Exception):
    """The run has had the wall-clock time that it was given."""


class Observer:
    """An observer of a run: looks how far it is from time to time.

    Parameters
    ----------
    standing : simulated time -> how far the run is.
    progress : is told as the run begins and about every `PROGRESS_SECONDS`; None: nobody is.
    ctrl_c : asked every time.
    max_wall_s : seconds from now after which the run has to end; None: it may take its time.
    """

    def __init__(
        self,
        standing: Callable[[Ps], Standing],
        progress: Progress | None,
        ctrl_c: CtrlC,
        max_wall_s: float | None = None,
    ) -> None:
        self._standing, self._progress, self._ctrl_c = standing, progress, ctrl_c
        self._due = time.monotonic()
        self._end = None if max_wall_s is None else time.monotonic() + max_wall_s

    def within(self, now_ps: Ps) -> bool:
        """To be called from within a long call of the fabric; true if it is to return where it is."""
        self.report(now_ps)
        return self._ctrl_c.asked or self._late

    def between(self, now_ps: Ps) -> None:
        """To be called between two steps of the coupling: raises what ends the run."""
        self._ctrl_c.check()
        if self._late:
            raise OutOfTime
        self.report(now_ps)

    def report(self, now_ps: Ps, last: bool = False) -> None:
        """Tell how far the run is, if it is time or for the `last` time."""
        started = time.monotonic()
        if self._progress is None or (started < self._due and not last):
            return
        self._progress(self._standing(now_ps))
        ended = time.monotonic()
        self._due = ended + max(PROGRESS_SECONDS, (ended - started) / MOST_OF_THE_TIME)

    @property
    def _late(self) -> bool:
        return self._end is not None and time.monotonic() >= self._end
