"""A session: a scenario's network that stays, on which a job's iterations are played one at a time.

`simulate` is told beforehand what a job sends in all its iterations. Here the caller says so iteration by iteration,
and may wait with the next until it has heard what became of the last: training in the loop. The network rests in
between; what transports remember of pairs of hosts, caches of switches and random streams go on from step to step.

Flows take memory for as long as the engine lives. So after some hundred thousand messages the network is built anew,
which is as if it had rested for long: state of pairs is forgotten then.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from gradwire.experiment.program import Messages
from gradwire.experiment.routing import build_routing
from gradwire.experiment.stepwise import Back, Played, Steps, played_scenario, workers_of
from gradwire.scenarios.arrays import Flags, Ints
from gradwire.scenarios.errors import GradwireError
from gradwire.scenarios.inner_units import Ps
from gradwire.scenarios.loss import allowed_losses
from gradwire.scenarios.missing import COLUMNS
from gradwire.sim.coupling import Coupling
from gradwire.sim.patience import patience_ps
from gradwire.sim.precheck import check_paths, find_all

if TYPE_CHECKING:
    from pathlib import Path

    from gradwire.scenarios.schema.scenario import Scenario
    from gradwire.traces.trace import Trace

BYTES = COLUMNS.index("bytes")
MOST_MESSAGES = 200_000
"""Messages after which the network is built anew: about 130 MB of records."""


class Session:
    """The network of a scenario with one job, for that job's iterations one by one.

    Attributes
    ----------
    now_ps : the network's time.
    built : how often the network has been built.
    takes_contents : how much is sent is enough.
    """

    takes_contents = False

    def __init__(self, scenario: Scenario | str | Path, *, threads: int = 1) -> None:
        """Of a scenario, or of one that is named.

        Raises
        ------
        ScenarioError
            It cannot be simulated, or has more or less than one job, a duration, or traffic or faults beside it.
        """
        self.scenario = played_scenario(scenario, "Session(scenario)")
        self._steps = Steps(self.scenario)
        self.threads, self.built = threads, 0
        self._coupling: Coupling | None = None
        self._sent = 0

    @property
    def now_ps(self) -> int:
        return 0 if self._coupling is None else self._coupling.now

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
        if self._coupling is None or self._sent > MOST_MESSAGES:
            self._build(trace)
        coupling = self._coupling
        assert coupling is not None
        job = self._steps.job(trace, self._places, self._cards, back, kept)
        begin = coupling.now
        track = coupling.play(job.part)
        coupling.run(lambda: track.finished)
        coupling.settle(Ps(track.ended_ps))
        (seen,) = track.steps
        runs = coupling.fabric.take_missing()  # type: ignore[attr-defined]  # the packet engine's
        coupling.forget(track)
        self._sent += len(seen.numbers)
        self._steps.done += 1
        missing = _by_message(runs, seen.numbers, seen.step.messages.nbytes, job.exchange.context.payload)
        _within_bounds(runs, seen.numbers, seen.step.messages)
        sent, (buckets, segments) = seen.step.messages, job.exchange.buckets_and_segments
        return Played(int(track.ended_ps) - begin, sent, missing, workers_of(job, sent), buckets, segments)

    def rest(self) -> tuple[int, int]:
        """Let the network rest so long that it forgets everything: the next step is on one built anew. Returns what
        `resume` wants, so that another session goes on from here as this one does."""
        self.close()
        return self.built, self._steps.done

    def resume(self, built: int, steps: int) -> None:
        """Go on where another session rested: so often its network had been built, so many steps it had played."""
        self.close()
        self.built, self._steps.done = built, steps

    def close(self) -> None:
        """End the engine's threads."""
        if self._coupling is not None and hasattr(self._coupling.fabric, "close"):
            self._coupling.fabric.close()
        self._coupling = None
        self._steps.rest()

    def _build(self, trace: Trace) -> None:
        from gradwire.sim.simulate import check_simulated, packet_fabric

        self.close()
        check_simulated(self.scenario)
        found = find_all(self.scenario, trace)
        network = found.needs.network
        routing = build_routing(network)
        check_paths(self.scenario, routing)
        fabric = packet_fabric(_reseeded(self.scenario, self.built), network, routing, self.threads)
        patience = patience_ps(self.scenario, network, routing)
        self._coupling = Coupling(fabric, self.scenario.host.software_latency, network.names, False, patience)
        self._places, self._cards = found.needs.places[0], network.cards
        self.built, self._sent = self.built + 1, 0


def _reseeded(scenario: Scenario, built: int) -> Scenario:
    """The scenario whose network draws other numbers each time it is built, and the first time its own."""
    return scenario if not built else scenario.model_copy(update={"seed": (scenario.seed + built * 1_000_003) % 2**31})


def _within_bounds(runs: Ints, numbers: Ints, sent: Messages) -> None:
    """Hold a step to the promise of bounded loss, as `gradwire.scenarios.soundness` holds a whole run."""
    if not len(runs):
        return
    lost = np.bincount(runs[:, 0] - numbers[0], weights=runs[:, BYTES], minlength=len(numbers)).astype(np.int64)
    broken = np.flatnonzero(lost > allowed_losses(sent.nbytes, sent.bound))
    if len(broken):
        first = broken[0]
        raise GradwireError(
            f"was delivered without {lost[first]} of its {sent.nbytes[first]} bytes", f"message {int(numbers[first])}",
            f"no more than its bound of {sent.bound[first]:g}",
        )  # fmt: skip


def _by_message(runs: Ints, numbers: Ints, nbytes: Ints, payload: int) -> dict[int, Flags]:
    """Masks of what is missing, out of rows of `gradwire.scenarios.missing`."""
    found: dict[int, Flags] = {}
    first = int(numbers[0]) if len(numbers) else 0
    for message, packet, packets, _, _ in runs.tolist():
        index = message - first
        mask = found.get(index)
        if mask is None:
            mask = found[index] = np.zeros(-(-int(nbytes[index]) // payload), dtype=np.bool_)
        mask[packet : packet + packets] = True
    return found
