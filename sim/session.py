"""A session: a scenario's network that stays, on which a job's iterations are played one at a time.

`simulate` is told beforehand what a job sends in all its iterations. Here the caller says so iteration by iteration,
and may wait with the next until it has heard what became of the last: training in the loop. The network's time stands
still in between; what transports remember of pairs of hosts, caches of switches and random streams go on from step to
step, and so does traffic beside the job.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gradwire.experiment.stepwise import Back, Played, Steps, played_scenario, workers_of
from gradwire.scenarios.errors import StallError
from gradwire.scenarios.inner_units import Ps
from gradwire.sim.explain import waiting
from gradwire.sim.lasting import Lasting, hold_to_bounds, missing_by_message

if TYPE_CHECKING:
    from pathlib import Path

    from gradwire.scenarios.schema.scenario import Scenario
    from gradwire.sim.coupling import Coupling
    from gradwire.sim.network_like import Track
    from gradwire.traces.trace import Trace


class Session:
    """The network of a scenario with one job, for that job's iterations one by one.

    Attributes
    ----------
    now_ps : how long all steps have taken so far.
    built : how often the network has been built.
    takes_contents : how much is sent is enough.
    """

    takes_contents = False

    def __init__(self, scenario: Scenario | str | Path, *, threads: int = 1) -> None:
        """Of a scenario, or of one that is named.

        Raises
        ------
        ScenarioError
            It cannot be simulated, or has more or less than one job, a duration, or faults.
        """
        self.scenario = played_scenario(scenario, "Session(scenario)", beside=True)
        self._steps = Steps(self.scenario)
        self._network = Lasting(self.scenario, threads)
        self._ended_ps = Ps(0)

    @property
    def now_ps(self) -> int:
        return self._network.since_ps + self._ended_ps

    @property
    def built(self) -> int:
        return self._network.built

    def step(self, trace: Trace, back: Back = 1.0, kept: Sequence[int] = ()) -> Played:
        """Play one iteration, whose gradients and times are those of the trace, called "step": of rank w for worker w.

        back : bytes that come back from servers, where they send something else than sums: for each that is pushed, or
            of every tensor to each worker.
        kept : tensors of which nothing may be lost, whatever the job's bounds.

        Raises
        ------
        TraceError, ScenarioError
            It is none that the job can send, or something may be lost of what comes back in other lengths.
        GradwireError
            A message was delivered with more loss than its bound.
        StallError
            Nothing can happen any more.
        """
        network = self._network
        if network.full:
            self.close()
        coupling = network.ready(trace)
        job = self._steps.job(trace, network.places, network.cards, back, kept)
        # The network is a little further than where the last step ended, by less than what is sent now takes to get to
        # it: so steps follow each other as iterations of a run do, and traffic beside them meets them so.
        begin = max(self._ended_ps, Ps(coupling.fabric.now - coupling.latency))
        track = coupling.play(job.part, begin)
        try:
            coupling.run(lambda: track.finished, waiting=lambda: self._waiting(track, coupling))
        except StallError as error:
            beside = "".join(f", beside {table.name} (class {table.priority})" for table in self.scenario.traffic)
            raise StallError(f"step {self._steps.done}{beside}: {error.what}", self.scenario.called) from None
        coupling.settle(Ps(track.ended_ps))
        self._ended_ps = Ps(track.ended_ps)
        (seen,) = track.steps
        first, many = int(seen.numbers[0]) if len(seen.numbers) else 0, len(seen.numbers)
        runs = coupling.fabric.missing_of(first, many)  # type: ignore[attr-defined]  # the packet engine's
        coupling.fabric.take_missing()  # type: ignore[attr-defined]  # of traffic nobody asks
        coupling.forget(track)
        coupling.fabric.forget_packets()  # type: ignore[attr-defined]  # the packet engine's
        network.sent += len(seen.numbers)
        self._steps.done += 1
        missing = missing_by_message(
            runs, seen.numbers, seen.step.messages.nbytes, job.exchange.context.payload
        )
        hold_to_bounds(runs, seen.numbers, seen.step.messages)
        sent, (buckets, segments) = seen.step.messages, job.exchange.buckets_and_segments
        return Played(int(track.ended_ps) - begin, sent, missing, workers_of(job, sent), buckets, segments)

    def _waiting(self, track: Track, coupling: Coupling) -> list[str]:
        """Return one line for each worker that waits, for the report of a stall."""
        return waiting([track], self._network.network, coupling.fabric.finish())  # type: ignore[arg-type]  # the packet engine's

    def rest(self) -> tuple[int, int, int]:
        """Let the network rest so long that it forgets everything: the next step is on one built anew. Returns what
        `resume` wants, so that another session goes on from here as this one does."""
        self.close()
        return self.built, self._steps.done, self.now_ps

    def resume(self, built: int, steps: int, now_ps: int = 0) -> None:
        """Go on where another session rested: so often its network had been built, so many steps it had played, so long
        it had been there."""
        self.close()
        self._network.built, self._steps.done, self._network.since_ps = built, steps, now_ps

    def close(self) -> None:
        """End the engine's threads."""
        self._network.close(self._ended_ps)
        self._ended_ps = Ps(0)
        self._steps.rest()
