"""Builds the messages of one worker's push or pull, for asynchronous parameter servers whose workers act one by one.

Synchronous workers play whole iterations (`gradwire.workload.incremental.iteration_player`). Workers of an asynchronous
server act one by one: each push and each pull is a separate program part, whose messages are those of the job's
exchange. User: `gradwire.sim.sessions.async_session`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gradwire.scenarios.arrays import Flags, Ints
from gradwire.scenarios.errors import ScenarioError
from gradwire.scenarios.schema.scenario import Scenario
from gradwire.topology import HostCards
from gradwire.topology.placement import HostAssignment
from gradwire.traces.trace import Trace
from gradwire.workload.collectives.exchanges.parameter_server_steps import ParameterServers
from gradwire.workload.csr import empty_lists
from gradwire.workload.jobs import Job
from gradwire.workload.program import MessageColumns, Messages, ProgramPart, Step
from gradwire.workload.scheduling import FIFO, scheduling_of

NO_NODES = np.zeros(0, dtype=np.int64)
HOLD_BACK_MISTAKE = "holds messages back for later ones, and workers that push one by one send when a tensor is ready"


@dataclass(frozen=True)
class TransferOutcome:
    """A completely received push or pull.

    time_ps : arrival of its last message.
    worker : the worker that pushed or pulled it.
    pushed : True for a push, False for a pull.
    messages : its messages; None if nothing was sent.
    missing : by number in `messages`, for those delivered incompletely: the missing packets, (packets,) bool.
    """

    time_ps: int
    worker: int
    pushed: bool
    messages: Messages | None
    missing: dict[int, Flags]


def check_async_workers(scenario: Scenario) -> None:
    """Raise ScenarioError if the workers of a job cannot act one by one."""
    job = scenario.job[0]
    exchange, scheduler, separately = job.exchange, job.scheduler, "asynchronous servers handle each push separately"
    if exchange.kind != "parameter_server":
        raise ScenarioError(f"{exchange.kind} has no servers", "job.exchange", "parameter_server")
    if getattr(exchange, "server_rate", None) is not None:
        what = f"applies to servers that sum the pushes of all workers; {separately}"
        raise ScenarioError(what, "job.exchange.server_rate", "none with an asynchronous server")
    if getattr(exchange, "aggregation", False):
        raise ScenarioError(f"sums the pushes of all workers; {separately}", "job.exchange.aggregation", "false")
    if scheduler is None and job.order != FIFO:
        raise ScenarioError(f"{job.order} {HOLD_BACK_MISTAKE}", "job.order", FIFO)
    if scheduler is not None and scheduler.holds_back:
        raise _held_back(scheduler.kind)


def _held_back(kind: str) -> ScenarioError:
    return ScenarioError(f"{kind} {HOLD_BACK_MISTAKE}", "job.scheduler", "a scheduler that does not, or none")


class AsyncTurns:
    """Pushes and pulls of a job's workers, turn by turn, with the state that lasts between them.

    scenario : as returned by `gradwire.workload.incremental.iteration_player.single_iteration_scenario`.
    """

    def __init__(self, scenario: Scenario) -> None:
        """Raises ScenarioError if the job's workers cannot act one by one."""
        check_async_workers(scenario)
        self.scenario = scenario
        self._norms = [0.0] * int(scenario.job[0].workers)  # no previous norms are known
        self._jobs: dict[tuple[tuple[int, int], ...], Job] = {}

    def job(self, trace: Trace, assignment: HostAssignment, cards: HostCards) -> Job:
        """Return the job of a push or a pull. The trace has an iteration per worker, for its gradients and ready times.

        Raises TraceError or ScenarioError if the job cannot send it.
        """
        table = self.scenario.job[0]
        key = tuple((tensor.bytes, tensor.layer) for tensor in trace.tensors)
        if (job := self._jobs.get(key)) is not None:
            return job
        job = Job.in_scenario(self.scenario, table, trace, assignment, cards)
        if job.exchange.context.scheduling.order != FIFO:  # a user-defined scheduler may not declare it
            raise _held_back(getattr(table.scheduler, "kind", table.order))
        bounds = job.exchange.context.bounds
        bounds.before = self._norms
        if job.exchange.context.tagger is None and not bounds.wants_norms:  # depends on sizes and layers only
            if len(self._jobs) > 8:
                self._jobs.clear()
            self._jobs[key] = job
        return job

    def push(
        self, job: Job, trace: Trace, worker: int, turn: int, reliable_tensors: Sequence[int] = ()
    ) -> tuple[Messages, Ints, int]:
        """Return a worker's pushes in a turn, their ready times, and that of the last tensor.

        Messages are in the order in which they are ready; times are picoseconds from the turn's beginning. The last
        tensor may be on a server on the worker's own host.

        reliable_tensors : tensors that must not be lost.
        """
        exchange = _servers(job)
        exchange.set_answer_sizes(1.0, reliable_tensors)
        parts = exchange.remote_partitions(worker)
        moments = self._ready(job, trace, worker, turn)
        ready = moments[exchange.tensors[parts]]
        order = np.argsort(ready, kind="stable")
        messages = exchange.of_worker(turn, worker, parts[order], pushed=True)
        if (bounds := exchange.context.bounds).wants_norms:
            self._norms[worker] = bounds.norms(turn)[worker]
        return messages, ready[order], int(moments.max(initial=0))

    def pull(self, job: Job, worker: int, turn: int) -> Messages:
        """Return the lossless messages from the servers back to a worker."""
        exchange = _servers(job)
        exchange.set_answer_sizes(1.0, range(len(job.trace.tensors)))
        return exchange.of_worker(turn, worker, exchange.remote_partitions(worker), pushed=False)

    def reset(self) -> None:
        """Forget the state between turns."""
        self._norms[:] = [0.0] * len(self._norms)

    def _ready(self, job: Job, trace: Trace, worker: int, turn: int) -> Ints:
        """Return when each tensor of a worker is ready, from the beginning of its turn, scaled by the job's keys."""
        factor = job.replay.factor(worker, turn)
        captured = trace.iterations[job.replay.captured(worker, turn)]
        ready = np.rint(captured.ready_ps * factor).astype(np.int64)
        if scheduling_of(job.table, trace).starts == "backward":
            ready[:] = max(round(captured.backward_end_ps * factor), int(ready.max(initial=0)))
        return ready


def _servers(job: Job) -> ParameterServers:
    assert isinstance(job.exchange, ParameterServers)
    return job.exchange


def turn_part(job: Job, messages: Messages, begins: Ints) -> ProgramPart:
    """Return the program part that sends these messages, which enter their hosts' NICs at times `begins`."""
    n = len(messages)
    nothing, needs = empty_lists(n), np.ones(n, dtype=np.int64)
    step = Step(messages=messages, needs=needs, host=messages.dst, after=nothing, posts=nothing, begins=begins)
    table = MessageColumns(job.table.name, job.transport, FIFO, 0, is_job=True, element_bytes=4)
    return ProgramPart(table, hosts=NO_NODES, workers=NO_NODES, stations=NO_NODES, steps=lambda: iter((step,)))
