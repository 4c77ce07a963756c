"""Turns: a scenario's network that stays, on which the workers of an asynchronous server push and pull one by one.

A session (`gradwire.sim.session`) plays steps that all workers make together. Here each sends when the caller says so,
while what others have sent is under way, and the caller hears of pushes and pulls as they have come, in the order of
time. It may react at that time: what it sends then enters the network one software latency later, and so far the
network has not gone (`gradwire.sim.coupling`).

A network that is to rest, because somebody wants to go on from there later, lets what is under way come first, without
anything new beside it, and is built anew at the time at which it was told to.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from typing import TYPE_CHECKING

import numpy as np

from gradwire.experiment.stepwise import played_scenario
from gradwire.experiment.turnwise import Came, Turnwise, turn_part
from gradwire.scenarios.arrays import Ints
from gradwire.scenarios.inner_units import Ps
from gradwire.sim.lasting import Lasting, hold_to_bounds, missing_by_message

if TYPE_CHECKING:
    from pathlib import Path

    from gradwire.experiment.jobs import Job
    from gradwire.experiment.program import Messages
    from gradwire.scenarios.schema.scenario import Scenario
    from gradwire.sim.network_like import Track
    from gradwire.traces.trace import Trace


class Turns:
    """The network of a scenario with one job, for the turns of that job's workers.

    Attributes
    ----------
    since_ps : the time, as callers count it, at which the network was built that there is.
    """

    def __init__(self, scenario: Scenario | str | Path, *, threads: int = 1) -> None:
        """Of a scenario, or of one that is named.

        Raises
        ------
        ScenarioError
            It cannot be simulated, its job's workers cannot come one by one, or it has more or less than one job, a
            duration, or faults.
        """
        self.scenario = played_scenario(scenario, "Turns(scenario)", beside=True)
        self._turns = Turnwise(self.scenario)
        self._network = Lasting(self.scenario, threads)
        job = self.scenario.job[0]
        self._payload = int((job.transport or self.scenario.transport).payload)
        self._flying: list[tuple[Track, int, bool, int]] = []
        self._came: list[tuple[int, int, Came]] = []
        self._counted, self.since_ps = 0, 0

    @property
    def full(self) -> bool:
        """Whether it is time to rest: what has been sent takes memory until then."""
        return self._network.full

    @property
    def built(self) -> int:
        """How often the network has been built."""
        return self._network.built

    def push(self, worker: int, turn: int, trace: Trace, begin_ps: int, kept: Sequence[int] = ()) -> None:
        """Have a worker push what it has made in the turn that begins then: the gradients of the trace's iteration of
        rank w, for worker w, each when it is ready. Not before what was heard of last.

        kept : tensors of which nothing may be lost, whatever the job's bounds.

        Raises
        ------
        TraceError, ScenarioError
            It is none that the job can send.
        """
        job = self._job(trace)
        messages, ready, last = self._turns.push(job, trace, worker, turn, kept)
        self._send(job, messages, ready, begin_ps, worker, True, begin_ps + last)

    def pull(self, worker: int, turn: int, trace: Trace, begin_ps: int) -> None:
        """Have the servers send a worker tensors as long as those of the trace, from then on. Nothing of them may be
        lost."""
        job = self._job(trace)
        messages = self._turns.pull(job, worker, turn)
        self._send(job, messages, np.zeros(len(messages), dtype=np.int64), begin_ps, worker, False, begin_ps)

    def skip(self, worker: int, pushed: bool, at_ps: int) -> None:
        """A worker pushes nothing, or pulls nothing, which has come at once."""
        self._tell(Came(at_ps, worker, pushed, None, {}))

    def next(self, until_ps: int | None = None) -> Came | None:
        """What comes next; None if nothing does before a time.

        Raises
        ------
        GradwireError
            A message was delivered with more loss than its bound.
        StallError
            Nothing can happen any more.
        """
        while self._flying:
            ends = [each for each in (until_ps, self._came[0][0] + 1 if self._came else None) if each is not None]
            if not self._run(min(ends, default=None)):
                break
        if not self._came or (until_ps is not None and self._came[0][0] >= until_ps):
            return None
        return heappop(self._came)[2]

    def rest(self, now_ps: int) -> list[Came]:
        """Let the network rest, now, and everything come that is under way, which is told in order. What is sent later
        is on one built anew."""
        while self._flying:
            self._run(None)
        found = [heappop(self._came)[2] for _ in range(len(self._came))]
        self.resume(self.built, now_ps)
        return found

    def resume(self, built: int, now_ps: int) -> None:
        """Go on where others rested: so often their network had been built, at that time."""
        self.close()
        self._network.built, self._network.since_ps, self.since_ps = built, now_ps, now_ps

    def close(self) -> None:
        """End the engine's threads; what is under way is gone."""
        self._network.close()
        self._turns.rest()
        self._flying, self._came = [], []

    # --- what is under way --------------------------------------------------------------------------------------

    def _job(self, trace: Trace) -> Job:
        self._network.ready(trace)
        return self._turns.job(trace, self._network.places, self._network.cards)

    def _send(
        self, job: Job, messages: Messages, ready: Ints, begin_ps: int, worker: int, pushed: bool, least_ps: int
    ) -> None:
        """Send messages that are ready so long after a time; they enter the network one software latency later. All of
        them have come at `least_ps`, at the earliest."""
        coupling = self._network.coupling
        assert coupling is not None
        if not len(messages):  # servers on the worker's own host have it at once
            self.skip(worker, pushed, least_ps)
            return
        track = coupling.play(turn_part(job, messages, ready + begin_ps - self.since_ps + coupling.latency))
        self._flying.append((track, worker, pushed, least_ps))
        self._network.sent += len(messages)

    def _run(self, until_ps: int | None) -> bool:
        """Let time pass until something has come, which is noted, or up to a time; whether something has."""
        coupling = self._network.coupling
        assert coupling is not None
        coupling.run(self._any, until=None if until_ps is None else Ps(max(until_ps - self.since_ps, 0)))
        over = [each for each in self._flying if each[0].finished]
        self._flying = [each for each in self._flying if not each[0].finished]
        for track, worker, pushed, least_ps in over:
            (seen,) = track.steps
            messages, first, many = seen.step.messages, int(seen.numbers[0]), len(seen.numbers)
            runs = coupling.fabric.missing_of(first, many)  # type: ignore[attr-defined]  # the packet engine's
            hold_to_bounds(runs, seen.numbers, messages)
            missing = missing_by_message(runs, seen.numbers, messages.nbytes, self._payload)
            came_ps = max(int(track.ended_ps) + self.since_ps, least_ps)
            self._tell(Came(came_ps, worker, pushed, messages, missing))
            coupling.forget(track)
        return bool(over)

    def _any(self) -> bool:
        return any(track.finished for track, *_ in self._flying)

    def _tell(self, came: Came) -> None:
        heappush(self._came, (came.time_ps, self._counted, came))
        self._counted += 1
