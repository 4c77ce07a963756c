"""`Session` plays a job's iterations one at a time on a long-lived simulated network, for training in the loop.

`simulate` knows beforehand what a job sends in all iterations. Here the caller provides one iteration at a time and can
wait for its outcome first: training in the loop. The network's time stands still in between; the transports' state of
pairs of hosts, the switches' caches, random streams and traffic beside the job continue from step to step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gradwire.scenarios.errors import StallError
from gradwire.scenarios.inner_units import Ps
from gradwire.sim.sessions.persistent_network import PersistentNetwork, check_loss_bounds, missing_by_message
from gradwire.sim.wait_reasons import describe_waiting_workers
from gradwire.workload.incremental.iteration_player import (
    AnswerBytes,
    IterationJobs,
    PlayedIteration,
    message_workers,
    single_iteration_scenario,
)

if TYPE_CHECKING:
    from pathlib import Path

    from gradwire.scenarios.schema.scenario import Scenario
    from gradwire.sim.processes.coupling import Coupling
    from gradwire.sim.processes.network_interface import Track
    from gradwire.traces.trace import Trace


class Session:
    """The network of a scenario with one job, which plays the job's iterations one by one.

    Attributes
    ----------
    now_ps : total time of all steps so far.
    built : number of times the network has been built.
    takes_contents : False: the sizes of messages suffice.
    """

    takes_contents = False

    def __init__(self, scenario: Scenario | str | Path, *, threads: int = 1) -> None:
        """Prepare the network of a scenario or of a named one. Raises ScenarioError if it cannot be simulated, or has
        other than one job, a duration, or faults."""
        self.scenario = single_iteration_scenario(scenario, "Session(scenario)", beside=True)
        self._steps = IterationJobs(self.scenario)
        self._network = PersistentNetwork(self.scenario, threads)
        self._ended_ps = Ps(0)

    @property
    def now_ps(self) -> int:
        return self._network.since_ps + self._ended_ps

    @property
    def built(self) -> int:
        return self._network.built

    def step(self, trace: Trace, back: AnswerBytes = 1.0, reliable_tensors: Sequence[int] = ()) -> PlayedIteration:
        """Play one iteration with the gradients and times of the trace's "step", those of rank w for worker w.

        back : bytes that come back from servers that send something else than sums: for each byte pushed, or of every
            tensor to each worker.
        reliable_tensors : tensors of which nothing may be lost, whatever the job's bounds.

        Raises
        ------
        TraceError, ScenarioError
            The job cannot send the trace, or something of what comes back in other sizes may be lost.
        GradwireError
            A message was delivered with more loss than its bound.
        StallError
            There are no pending events.
        """
        network = self._network
        if network.full:
            self.close()
        coupling = network.ready(trace)
        job = self._steps.job(trace, network.places, network.cards, back, reliable_tensors)
        # The network is past the end of the last step by less than one software latency, so nothing sent now is late:
        # steps follow each other, and meet other traffic, as iterations of a run do.
        begin = max(self._ended_ps, Ps(coupling.fabric.now - coupling.latency))
        track = coupling.play(job.part, begin)
        try:
            coupling.run(lambda: track.finished, waiting=lambda: self._waiting(track, coupling))
        except StallError as error:
            beside = "".join(f", beside {table.name} (class {table.priority})" for table in self.scenario.traffic)
            raise StallError(f"step {self._steps.done}{beside}: {error.what}", self.scenario.display_name) from None
        coupling.settle(Ps(track.ended_ps))
        self._ended_ps = Ps(track.ended_ps)
        (step,) = track.steps
        first, count = int(step.numbers[0]) if len(step.numbers) else 0, len(step.numbers)
        runs = coupling.fabric.missing_of(first, count)  # type: ignore[attr-defined]  # packet engine only
        coupling.fabric.take_missing()  # type: ignore[attr-defined]  # drop those of traffic
        retransmitted = int(coupling.fabric.flows.counts(first, count).retransmitted.sum())  # type: ignore[attr-defined]  # packet engine only
        coupling.forget(track)
        coupling.fabric.forget_packets()  # type: ignore[attr-defined]  # packet engine only
        network.sent += len(step.numbers)
        self._steps.done += 1
        missing = missing_by_message(runs, step.numbers, step.step.messages.nbytes, job.exchange.context.payload)
        check_loss_bounds(runs, step.numbers, step.step.messages)
        sent, (buckets, segments) = step.step.messages, job.exchange.buckets_and_segments
        return PlayedIteration(
            int(track.ended_ps) - begin, sent, missing, message_workers(job, sent), buckets, segments, retransmitted
        )

    def _waiting(self, track: Track, coupling: Coupling) -> list[str]:
        """Return one line per waiting worker, for a stall report."""
        return describe_waiting_workers([track], self._network.network, coupling.fabric.finish())  # type: ignore[arg-type]  # packet engine only

    def come_to_rest(self) -> tuple[int, int, int]:
        """Let the network forget everything: the next step uses a rebuilt one. Returns the arguments of `resume`."""
        self.close()
        return self.built, self._steps.done, self.now_ps

    def resume(self, built: int, steps: int, now_ps: int = 0) -> None:
        """Resume where another session rested: its number of builds, steps played, and total time."""
        self.close()
        self._network.built, self._steps.done, self._network.since_ps = built, steps, now_ps

    def close(self) -> None:
        """End the engine's threads."""
        self._network.close(self._ended_ps)
        self._ended_ps = Ps(0)
        self._steps.reset()
