"""Builds single iterations of a scenario's one job, for training in the loop over the simulator or the emulator.

Shared by simulator and emulator: the check that a scenario can be played this way, the job of one iteration, and the
workers at both ends of a message. Users: `gradwire.sim.sessions.session` and `gradwire.emu.session`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gradwire.result_store.table_schema import KINDS
from gradwire.scenarios.arrays import Flags, Ints
from gradwire.scenarios.errors import ScenarioError
from gradwire.scenarios.inner_units import Ps
from gradwire.scenarios.loading.load import as_scenario
from gradwire.scenarios.schema.scenario import Scenario
from gradwire.scenarios.units import format_time
from gradwire.topology import HostCards
from gradwire.topology.placement import HostAssignment
from gradwire.traces.trace import Trace
from gradwire.workload.collectives.exchanges.parameter_server_steps import ParameterServers
from gradwire.workload.jobs import Job
from gradwire.workload.program import Messages

TRACE_NAME = "step"
"""Name of the played traces."""
AnswerBytes = float | Sequence[int]
"""Bytes returned by servers: per byte pushed, or per tensor of the trace to each worker."""


@dataclass(frozen=True)
class PlayedIteration:
    """Outcome of one iteration.

    time_ps : from its beginning until every worker has everything.
    messages : the messages sent.
    missing : by number in `messages`, for those delivered incompletely: the missing packets, (packets,) bool.
    workers : int64[messages, 2], the sending and the receiving worker; -1 for a server.
    buckets : of a ring, the tensors of each bucket in bucket order; else none.
    segments : segments of a bucket.
    retransmitted : retransmissions of data packets; None if unknown.
    """

    time_ps: int
    messages: Messages
    missing: dict[int, Flags]
    workers: Ints
    buckets: tuple[tuple[int, ...], ...] = ()
    segments: int = 1
    retransmitted: int | None = None


def single_iteration_scenario(scenario: Scenario | str | Path, given: str, beside: bool = False) -> Scenario:
    """Return a scenario, or a named one, prepared for iterations: one job with one iteration, of any trace.

    given : subject of error messages, such as "Session(scenario)". beside : True if traffic continues beside the job,
        on a long-lived network.

    Raises ScenarioError if it does not have exactly one job, or it has a duration, faults, or traffic that cannot
    continue.
    """
    scenario = as_scenario(scenario, given)
    if len(scenario.job) != 1:
        raise ScenarioError(
            f"has {len(scenario.job)} jobs", f"{scenario.display_name}: job", expected="exactly one job"
        )
    played, alone = "iterations are played one at a time", "a job only"
    duration = "" if scenario.duration is None else format_time(scenario.duration)
    communicates = "applies to communications of traces, and a training run provides gradients only"
    happens = f"happens at times of a whole run, and {played}"
    for excluded, key, what, expected in (
        (scenario.job[0].parallel is not None, "job.parallel", communicates, "to leave it out"),
        (scenario.fault, "fault", happens, alone),
        (scenario.traffic and not beside, "traffic", happens, f"{alone}, on real sockets"),
        (duration, "duration", f"is {duration} of a whole run, and {played}", "no such key"),
    ):
        if excluded:
            raise ScenarioError(what, f"{scenario.display_name}: {key}", expected)
    output = scenario.output.model_copy(update={"missing": True, "packet_log": False})
    job = scenario.job[0].model_copy(update={"phase": None, "trace": TRACE_NAME, "iterations": 1, "start": Ps(0)})
    return scenario.model_copy(update={"output": output, "job": (job,)})


class IterationJobs:
    """Consecutive single-iteration jobs, with the state that lasts between them.

    scenario : as returned by `single_iteration_scenario`.
    done : iterations that have been played.
    """

    def __init__(self, scenario: Scenario) -> None:
        self.scenario, self.done = scenario, 0
        self._norms: list[float] | None = None

    def job(
        self,
        trace: Trace,
        assignment: HostAssignment,
        cards: HostCards,
        back: AnswerBytes = 1.0,
        reliable_tensors: Sequence[int] = (),
    ) -> Job:
        """Return the job of the next iteration.

        back : bytes returned by servers, if they return something else than sums.
        reliable_tensors : tensors that must not be lost.

        Raises TraceError or ScenarioError if the job cannot send it, or answers of other sizes than the pushes may be
        lost.
        """
        table = self.scenario.job[0]
        if whole := len(set(reliable_tensors)) == len(trace.tensors):
            table = table.model_copy(update={"push_bound": 0.0, "pull_bound": 0.0})
        job = Job.in_scenario(self.scenario, table, trace, assignment, cards)
        job.begin = self.done  # rotations by iteration continue
        if back != 1 or (reliable_tensors and not whole):
            self._exchange(job, back, reliable_tensors)
        bounds = job.exchange.context.bounds
        bounds.before = self._norms or [0.0] * table.workers  # no previous norms are known
        if bounds.wants_norms:
            self._norms = bounds.norms(self.done)
        return job

    def reset(self) -> None:
        """Forget the state between iterations."""
        self._norms = None

    def _exchange(self, job: Job, back: AnswerBytes, reliable_tensors: Sequence[int]) -> None:
        """Set other sizes of the servers' answers, which must be lossless, and the lossless tensors."""
        if not isinstance(job.exchange, ParameterServers):
            what = "has no answers of other sizes than its pushes, and no lossless tensors"
            raise ScenarioError(what, "job.exchange", "parameter_server")
        if back != 1 and (bound := self.scenario.job[0].pull_bound):
            raise ScenarioError(
                f"is {bound}: answers of other sizes than the pushes may be lost", "job.pull_bound", "0"
            )
        job.exchange.set_answer_sizes(back, reliable_tensors)


def message_workers(job: Job, sent: Messages) -> Ints:
    """Return the workers at both ends of messages, -1 for a server; for hosts that are both, the message kind
    decides."""
    context = job.exchange.context
    hosts = np.searchsorted(context.cards.first, np.stack((sent.src, sent.dst)), side="right") - 1
    number = np.full(len(context.cards.hosts), -1, dtype=np.int64)
    number[list(context.workers)] = np.arange(len(context.workers))
    workers = number[hosts].T.copy()
    workers[sent.kind == KINDS.index("push"), 1] = -1
    workers[sent.kind == KINDS.index("pull"), 0] = -1
    return workers
