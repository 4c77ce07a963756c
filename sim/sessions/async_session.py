"""`AsyncSession` lets workers push to and pull from an asynchronous server over a long-lived simulated network.

A session (`gradwire.sim.sessions.session`) plays steps that all workers make together. Here each worker sends when the
caller says so, while other messages are under way, and completed pushes and pulls are returned in order of time. The
caller may react at that time: the network has not advanced past the moment, one software latency later, at which the
reaction enters it (`gradwire.sim.processes.coupling`).

To save a resumable state, the network first completes what is under way, with nothing new beside it, and is then
rebuilt at the requested time.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from typing import TYPE_CHECKING

import numpy as np

from gradwire.scenarios.arrays import Ints
from gradwire.scenarios.inner_units import Ps
from gradwire.sim.sessions.persistent_network import PersistentNetwork, check_loss_bounds, missing_by_message
from gradwire.workload.incremental.iteration_player import single_iteration_scenario
from gradwire.workload.incremental.turn_player import AsyncTurns, TransferOutcome, turn_part

if TYPE_CHECKING:
    from pathlib import Path

    from gradwire.scenarios.schema.scenario import Scenario
    from gradwire.sim.processes.network_interface import Track
    from gradwire.traces.trace import Trace
    from gradwire.workload.jobs import Job
    from gradwire.workload.program import Messages


class AsyncSession:
    """The network of a scenario with one job, for the turns of that job's workers.

    Attributes
    ----------
    since_ps : the caller's time at which the current network was built.
    """

    def __init__(self, scenario: Scenario | str | Path, *, threads: int = 1) -> None:
        """Prepare the network of a scenario or of a named one. Raises ScenarioError if it cannot be simulated, its
        job's workers cannot take turns, or it has other than one job, a duration, or faults."""
        self.scenario = single_iteration_scenario(scenario, "Turns(scenario)", beside=True)
        self._turns = AsyncTurns(self.scenario)
        self._network = PersistentNetwork(self.scenario, threads)
        job = self.scenario.job[0]
        self._payload = int((job.transport or self.scenario.transport).payload)
        self._flying: list[tuple[Track, int, bool, int]] = []
        self._came: list[tuple[int, int, TransferOutcome]] = []
        self._counted, self.since_ps = 0, 0

    @property
    def full(self) -> bool:
        """True if the network should rest, which frees the memory of sent messages."""
        return self._network.full

    @property
    def built(self) -> int:
        """Number of times that the network was built."""
        return self._network.built

    def push(self, worker: int, turn: int, trace: Trace, begin_ps: int, reliable_tensors: Sequence[int] = ()) -> None:
        """Let a worker push the gradients of the turn that begins at `begin_ps`, each when it is ready.

        Worker w pushes the gradients of rank w of the trace's iteration. The time must not precede the last returned
        result.

        reliable_tensors : tensors of which nothing may be lost, whatever the job's bounds.

        Raises TraceError, ScenarioError if the job cannot send the trace.
        """
        job = self._job(trace)
        messages, ready, last = self._turns.push(job, trace, worker, turn, reliable_tensors)
        self._send(job, messages, ready, begin_ps, worker, True, begin_ps + last)

    def pull(self, worker: int, turn: int, trace: Trace, begin_ps: int) -> None:
        """Let the servers send a worker tensors of the trace's sizes from `begin_ps` on, without loss."""
        job = self._job(trace)
        messages = self._turns.pull(job, worker, turn)
        self._send(job, messages, np.zeros(len(messages), dtype=np.int64), begin_ps, worker, False, begin_ps)

    def skip(self, worker: int, pushed: bool, at_ps: int) -> None:
        """Report an empty push or pull of a worker, which completes at once."""
        self._report(TransferOutcome(at_ps, worker, pushed, None, {}))

    def next(self, until_ps: int | None = None) -> TransferOutcome | None:
        """Return the next completed push or pull; None if there is none before `until_ps`. Raises GradwireError if a
        message was delivered with more loss than its bound. Raises StallError if there are no pending events."""
        while self._flying:
            ends = [end for end in (until_ps, self._came[0][0] + 1 if self._came else None) if end is not None]
            if not self._run(min(ends, default=None)):
                break
        if not self._came or (until_ps is not None and self._came[0][0] >= until_ps):
            return None
        return heappop(self._came)[2]

    def come_to_rest(self, now_ps: int) -> list[TransferOutcome]:
        """Complete and return, in order, all that is under way, and let the network rest at `now_ps`. What is sent
        later uses a rebuilt network."""
        while self._flying:
            self._run(None)
        results = [heappop(self._came)[2] for _ in range(len(self._came))]
        self.resume(self.built, now_ps)
        return results

    def resume(self, built: int, now_ps: int) -> None:
        """Resume where another session rested: its number of builds, and the time."""
        self.close()
        self._network.built, self._network.since_ps, self.since_ps = built, now_ps, now_ps

    def close(self) -> None:
        """End the engine's threads and drop what is under way."""
        self._network.close()
        self._turns.reset()
        self._flying, self._came = [], []

    # --- messages under way -------------------------------------------------------------------------------------

    def _job(self, trace: Trace) -> Job:
        self._network.ready(trace)
        return self._turns.job(trace, self._network.places, self._network.cards)

    def _send(
        self, job: Job, messages: Messages, ready: Ints, begin_ps: int, worker: int, pushed: bool, least_ps: int
    ) -> None:
        """Send messages, each ready at an offset from `begin_ps`; they enter the network one software latency later.
        They count as completed at `least_ps` at the earliest."""
        coupling = self._network.coupling
        assert coupling is not None
        if not len(messages):  # all servers are on the worker's own host
            self.skip(worker, pushed, least_ps)
            return
        track = coupling.play(turn_part(job, messages, ready + begin_ps - self.since_ps + coupling.latency))
        self._flying.append((track, worker, pushed, least_ps))
        self._network.sent += len(messages)

    def _run(self, until_ps: int | None) -> bool:
        """Advance until something completes, or to a time; return True if something has completed."""
        coupling = self._network.coupling
        assert coupling is not None
        coupling.run(self._any, until=None if until_ps is None else Ps(max(until_ps - self.since_ps, 0)))
        completed = [flight for flight in self._flying if flight[0].finished]
        self._flying = [flight for flight in self._flying if not flight[0].finished]
        for track, worker, pushed, least_ps in completed:
            (step,) = track.steps
            messages, first, count = step.step.messages, int(step.numbers[0]), len(step.numbers)
            runs = coupling.fabric.missing_of(first, count)  # type: ignore[attr-defined]  # packet engine only
            check_loss_bounds(runs, step.numbers, messages)
            missing = missing_by_message(runs, step.numbers, messages.nbytes, self._payload)
            came_ps = max(int(track.ended_ps) + self.since_ps, least_ps)
            self._report(TransferOutcome(came_ps, worker, pushed, messages, missing))
            coupling.forget(track)
        return bool(completed)

    def _any(self) -> bool:
        return any(track.finished for track, *_ in self._flying)

    def _report(self, came: TransferOutcome) -> None:
        heappush(self._came, (came.time_ps, self._counted, came))
        self._counted += 1
