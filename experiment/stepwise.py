"""Stepwise: a scenario's one job, played iteration by iteration, each told only when the last one is over.

What both worlds do alike for training in the loop: which scenarios can be played so, the job of one iteration, and
which workers a message is between. Who plays it: `gradwire.sim.session` and `gradwire.emu.session`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gradwire.experiment.collectives.parameter_server import ParameterServers
from gradwire.experiment.jobs import Job
from gradwire.experiment.placement import Places
from gradwire.experiment.program import Messages
from gradwire.experiment.topology import Cards
from gradwire.scenarios.arrays import Flags, Ints
from gradwire.scenarios.errors import ScenarioError
from gradwire.scenarios.inner_units import Ps
from gradwire.scenarios.load import scenario_of
from gradwire.scenarios.result import KINDS
from gradwire.scenarios.units import format_time

if TYPE_CHECKING:
    from pathlib import Path

    from gradwire.scenarios.schema.scenario import Scenario
    from gradwire.traces.trace import Trace

PLAYED = "step"
"""Name of the traces that are played."""
Back = float | Sequence[int]
"""Bytes that come back from servers: for each that is pushed, or of every tensor of the trace to each worker."""


@dataclass(frozen=True)
class Played:
    """What became of one iteration.

    time_ps : from its begin until every worker has everything.
    messages : what was sent.
    missing : by number in `messages`, of those delivered with something missing: which packets, (packets,) bool.
    workers : int64[messages, 2], which worker sent it, and which one it was for; -1 where that is a server.
    buckets : of a ring, the tensors of each in the order in which they lie there; else none.
    segments : into how many parts a bucket is cut.
    """

    time_ps: int
    messages: Messages
    missing: dict[int, Flags]
    workers: Ints
    buckets: tuple[tuple[int, ...], ...] = ()
    segments: int = 1


def played_scenario(scenario: Scenario | str | Path, given: str, beside: bool = False) -> Scenario:
    """A scenario, or one that is named, as it is played iteration by iteration: its job has one, of whatever trace.

    given : what a mistake is about, such as "Session(scenario)". beside : whether traffic goes on beside the job, on a
        network that stays between iterations.

    Raises
    ------
    ScenarioError
        It has more or less than one job, a duration, faults, or traffic that cannot go on.
    """
    scenario = scenario_of(scenario, given)
    if len(scenario.job) != 1:
        raise ScenarioError(
            f"has {len(scenario.job)} jobs", f"{scenario.called}: job", expected="one, whose iterations are played"
        )
    if scenario.job[0].parallel is not None:
        raise ScenarioError(
            "is about what a trace has besides gradients, and a training hands over gradients alone",
            f"{scenario.called}: job.parallel", expected="to leave it out",
        )  # fmt: skip
    if scenario.fault or (scenario.traffic and not beside):
        raise ScenarioError(
            "happens at times of a whole run, which one step at a time has not got",
            f"{scenario.called}: {'fault' if scenario.fault else 'traffic'}",
            expected="the job alone" if scenario.fault else "the job alone on real sockets",
        )  # fmt: skip
    if scenario.duration is not None:
        raise ScenarioError(
            f"is {format_time(scenario.duration)} of a whole run, and steps are as many as are played",
            f"{scenario.called}: duration", expected="no such key",
        )  # fmt: skip
    if scenario.simulation.approximate is not None:
        raise ScenarioError(
            "leaves out iterations, and one step at a time plays them all",
            f"{scenario.called}: simulation.approximate", expected="no such key",
        )  # fmt: skip
    output = scenario.output.model_copy(update={"missing": True, "packet_log": False})
    job = scenario.job[0].model_copy(update={"phase": None, "trace": PLAYED, "iterations": 1, "start": Ps(0)})
    return scenario.model_copy(update={"output": output, "job": (job,)})


class Steps:
    """The job of one iteration after the other; what lasts from each to the next is here.

    Attributes
    ----------
    scenario : as `played_scenario` makes it.
    done : iterations that have been played.
    """

    def __init__(self, scenario: Scenario) -> None:
        self.scenario, self.done = scenario, 0
        self._norms: list[float] | None = None

    def job(
        self, trace: Trace, places: Places, cards: Cards, back: Back = 1.0, kept: Sequence[int] = ()
    ) -> Job:
        """The job of the iteration that is to be played next.

        back : bytes that come back from servers, where they send something else than sums.
        kept : tensors of which nothing may be lost.

        Raises
        ------
        TraceError, ScenarioError
            It is none that the job can send, or something may be lost of what comes back in other lengths.
        """
        table = self.scenario.job[0]
        if whole := len(set(kept)) == len(trace.tensors):
            table = table.model_copy(update={"push_bound": 0.0, "pull_bound": 0.0})
        job = Job.of(
            table, trace, places, cards, seed=self.scenario.seed,
            payload=(table.transport or self.scenario.transport).payload, transport=self.scenario.transport_of(table),
            sums=self.scenario.switch.aggregation_slots > 0,
        )  # fmt: skip
        job.begin = self.done  # what rotates by iteration goes on
        if back != 1 or (kept and not whole):
            self._exchange(job, back, kept)
        bounds = job.exchange.context.bounds
        bounds.before = self._norms or [0.0] * table.workers  # from nothing all is change: nobody knows
        if bounds.wants_norms:
            self._norms = bounds.norms(self.done)
        return job

    def rest(self) -> None:
        """Forget what lasts."""
        self._norms = None

    def _exchange(self, job: Job, back: Back, kept: Sequence[int]) -> None:
        """Let servers answer with other lengths, of messages of which nothing is lost; and keep tensors whole."""
        if not isinstance(job.exchange, ParameterServers):
            what = "has no way back that is longer or shorter, and no tensors of which nothing is lost"
            raise ScenarioError(what, "job.exchange", "parameter_server")
        if back != 1 and (bound := self.scenario.job[0].pull_bound):
            raise ScenarioError(
                f"is {bound}: some may be lost of what comes back in other lengths than it is pushed in",
                "job.pull_bound", "0",
            )  # fmt: skip
        job.exchange.told(back, kept)


def workers_of(job: Job, sent: Messages) -> Ints:
    """Who sent messages, and for whom they were, as workers. A host may be a server besides: by the messages' kind."""
    context = job.exchange.context
    hosts = np.searchsorted(context.cards.first, np.stack((sent.src, sent.dst)), side="right") - 1
    number = np.full(len(context.cards.hosts), -1, dtype=np.int64)
    number[list(context.workers)] = np.arange(len(context.workers))
    found = number[hosts].T.copy()
    found[sent.kind == KINDS.index("push"), 1] = -1
    found[sent.kind == KINDS.index("pull"), 0] = -1
    return found
