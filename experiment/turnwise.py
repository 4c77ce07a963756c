"""Turnwise: what single workers push to the servers of a scenario's one job, and pull from them, one turn at a time.

Where workers make their steps together a whole iteration is played at once (`gradwire.experiment.stepwise`). Those of
an asynchronous server come one by one: what each sends, and what it is sent, are parts of a program by themselves,
whose messages are those of the job's exchange. Who plays them: `gradwire.sim.turns`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gradwire.experiment.collectives.parameter_server import ParameterServers
from gradwire.experiment.jobs import Job
from gradwire.experiment.placement import Places
from gradwire.experiment.program import Messages, Part, Step, Table
from gradwire.experiment.scheduling import FIFO, scheduling_of
from gradwire.experiment.topology import Cards
from gradwire.scenarios.arrays import Flags, Ints
from gradwire.scenarios.errors import ScenarioError

if TYPE_CHECKING:
    from gradwire.scenarios.schema.scenario import Scenario
    from gradwire.traces.trace import Trace

NOBODY = np.zeros(0, dtype=np.int64)
HOLDS_BACK = "holds messages back for later ones, and what workers send one by one goes when it is ready"


@dataclass(frozen=True)
class Came:
    """What has come, all of it.

    time_ps : when the last of it did.
    worker : who pushed it, or is to have it.
    pushed : whether it was pushed; else it was pulled.
    messages : what it was; None where nothing was sent.
    missing : by number in `messages`, of those delivered with something missing: which packets, (packets,) bool.
    """

    time_ps: int
    worker: int
    pushed: bool
    messages: Messages | None
    missing: dict[int, Flags]


def check_turnwise(scenario: Scenario) -> None:
    """Raise ScenarioError for what the workers of a job cannot do one by one."""
    job = scenario.job[0]
    if job.exchange.kind != "parameter_server":
        raise ScenarioError(f"{job.exchange.kind} has no servers", "job.exchange", "parameter_server")
    if getattr(job.exchange, "server_rate", None) is not None:
        what = "is of servers that add up what all workers push, and here they take each push by itself"
        raise ScenarioError(what, "job.exchange.server_rate", "none with an asynchronous server")
    if getattr(job.exchange, "aggregation", False):
        what = "adds up the pushes of all workers, and an asynchronous server takes each by itself"
        raise ScenarioError(what, "job.exchange.aggregation", "false")
    if job.scheduler is None and job.order != FIFO:
        raise ScenarioError(f"{job.order} {HOLDS_BACK}", "job.order", FIFO)
    if job.scheduler is not None and job.scheduler.holds_back:
        raise _held_back(job.scheduler.kind)


def _held_back(kind: str) -> ScenarioError:
    return ScenarioError(f"{kind} {HOLDS_BACK}", "job.scheduler", "one that does not, or none")


class Turnwise:
    """What is sent in the turns of a job's workers; what lasts from one to the next is here.

    Attributes
    ----------
    scenario : as `gradwire.experiment.stepwise.played_scenario` makes it.
    """

    def __init__(self, scenario: Scenario) -> None:
        """
        Raises
        ------
        ScenarioError
            The job's workers cannot come one by one.
        """
        check_turnwise(scenario)
        self.scenario = scenario
        self._norms = [0.0] * int(scenario.job[0].workers)  # from nothing all is change: nobody knows
        self._jobs: dict[tuple[tuple[int, int], ...], Job] = {}

    def job(self, trace: Trace, places: Places, cards: Cards) -> Job:
        """The job of a push, or a pull. The trace has an iteration for each worker, of which one is looked at: its
        gradients, and when they are ready.

        Raises
        ------
        TraceError, ScenarioError
            It is none that the job can send.
        """
        table = self.scenario.job[0]
        key = tuple((tensor.bytes, tensor.layer) for tensor in trace.tensors)
        if (kept := self._jobs.get(key)) is not None:
            return kept
        job = Job.of(
            table, trace, places, cards, seed=self.scenario.seed,
            payload=(table.transport or self.scenario.transport).payload, transport=self.scenario.transport_of(table),
        )  # fmt: skip
        if job.exchange.context.scheduling.order != FIFO:  # of a kind of the user's own that does not say so
            raise _held_back(getattr(table.scheduler, "kind", table.order))
        bounds = job.exchange.context.bounds
        bounds.before = self._norms
        if job.exchange.context.tagger is None and not bounds.wants_norms:  # it is about sizes and layers alone
            if len(self._jobs) > 8:
                self._jobs.clear()
            self._jobs[key] = job
        return job

    def push(
        self, job: Job, trace: Trace, worker: int, turn: int, kept: Sequence[int] = ()
    ) -> tuple[Messages, Ints, int]:
        """What a worker sends in a turn of its own, in the order in which it is ready; picoseconds from the turn's
        begin at which each is; and the same of the last tensor, which may be one that a server beside the worker has.

        kept : tensors of which nothing may be lost.
        """
        exchange = _servers(job)
        exchange.told(1.0, kept)
        parts = exchange.away(worker)
        moments = self._ready(job, trace, worker, turn)
        ready = moments[exchange.tensors[parts]]
        order = np.argsort(ready, kind="stable")
        messages = exchange.of_worker(turn, worker, parts[order], pushed=True)
        if (bounds := exchange.context.bounds).wants_norms:
            self._norms[worker] = bounds.norms(turn)[worker]
        return messages, ready[order], int(moments.max(initial=0))

    def pull(self, job: Job, worker: int, turn: int) -> Messages:
        """What comes back to a worker, of which nothing may be lost."""
        exchange = _servers(job)
        exchange.told(1.0, range(len(job.trace.tensors)))
        return exchange.of_worker(turn, worker, exchange.away(worker), pushed=False)

    def rest(self) -> None:
        """Forget what lasts."""
        self._norms[:] = [0.0] * len(self._norms)

    def _ready(self, job: Job, trace: Trace, worker: int, turn: int) -> Ints:
        """When each tensor of a worker is ready, from the begin of its turn; computing is as long as the job's keys
        make it."""
        factor = job.replay.factor(worker, turn)
        captured = trace.iterations[job.replay.captured(worker, turn)]
        ready = np.rint(captured.ready_ps * factor).astype(np.int64)
        if scheduling_of(job.table, trace).starts == "backward":
            ready[:] = max(round(captured.backward_end_ps * factor), int(ready.max(initial=0)))
        return ready


def _servers(job: Job) -> ParameterServers:
    assert isinstance(job.exchange, ParameterServers)
    return job.exchange


def turn_part(job: Job, messages: Messages, begins: Ints) -> Part:
    """The part of a program that sends these messages, each of which enters its host's interface at a time."""
    n = len(messages)
    nothing = np.zeros(n + 1, dtype=np.int64), NOBODY
    step = Step(
        messages=messages, needs=np.ones(n, dtype=np.int64), host=messages.dst, after=nothing, posts=nothing,
        station=np.full(n, -1, dtype=np.int64), effort=np.zeros(n, dtype=np.int64), begins=begins,
    )  # fmt: skip
    table = Table(job.table.name, job.transport, FIFO, 0, is_job=True, element_bytes=4)
    return Part(table, hosts=NOBODY, workers=NOBODY, stations=NOBODY, steps=lambda: iter((step,)))
