"""Computes upper bounds of the messages of an iteration in advance, and checks that memory and flow numbers suffice.

A few bytes in a scenario, such as a scheduler's partition size, can create millions of messages of a large model. All
messages of an iteration are loaded together, and those of three iterations if a job has several: the one of the first
worker, the next one, and the previous one, in which the last worker may still be; `staleness` adds to that. Messages in
flight also need flow numbers, of which there are fewer: all-to-alls and the partitions of a tensor begin at the same
time, unless a scheduler holds them back or connections are persistent, which then have the numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from gradwire.jit.limits import MAX_FLOWS, MAX_LOADED_MESSAGES
from gradwire.protocols.transports.base import is_persistent
from gradwire.scenarios.errors import Mistake, ScenarioError
from gradwire.scenarios.loading.user_code_errors import asked
from gradwire.scenarios.schema.job.job import Job
from gradwire.scenarios.schema.scenario import Scenario
from gradwire.scenarios.units import Bytes, format_size
from gradwire.topology import HostCards
from gradwire.topology.placement import HostAssignment
from gradwire.traces.storage.memory_limits import installed_bytes
from gradwire.traces.trace import Trace
from gradwire.workload.collectives.common.base import JobSetting
from gradwire.workload.collectives.common.groups import ModelGroups
from gradwire.workload.collectives.common.model_parallel import count_messages
from gradwire.workload.limits import max_loaded_messages
from gradwire.workload.replay import Replay
from gradwire.workload.scheduling import FIFO, scheduling_of

MessageCounter = Callable[[Any], int]
"""Messages of an iteration of a [[job]] table."""
MAX_MODEL_VALUES = 1 << 48
"""Upper bound of a model's float32 values (our choice)."""


def check_volume(scenario: Scenario, traces: list[Trace], assignment: list[HostAssignment], cards: HostCards) -> None:
    """Raise ScenarioError if jobs have more messages at once than words, memory or flow numbers allow.

    The error says what would fit for the largest job.
    """
    jobs = [
        CountedJob.of(scenario, number, trace, workers, cards)
        for number, (trace, workers) in enumerate(zip(traces, assignment, strict=True))
    ]
    laid = [(counted.messages(counted.job) or 0) * loaded_iterations(counted.job) for counted in jobs]
    most = max_loaded_messages()
    mistakes = []
    for counted in jobs:
        if (begun := counted.simultaneous_messages(counted.job)) > MAX_FLOWS:
            path, value, fits = _remedy(counted.job, counted.simultaneous_messages, MAX_FLOWS)
            expected = f"at most {MAX_FLOWS:,}: {fits}"
            mistakes.append(Mistake(path, f"begins {begun:,} messages at once", value, expected).under(counted.where))
    if sum(laid) > most:
        number = laid.index(max(laid))
        mistakes = [_laid(jobs[number], most, sum(laid) - laid[number]).under(jobs[number].where)]
    if mistakes:
        raise ScenarioError("has more messages than fit:", scenario.display_name, mistakes=mistakes)


@dataclass(frozen=True)
class CountedJob:
    """A job and its path in the scenario; also counts the messages of variants of the job."""

    job: Job
    setting: JobSetting
    where: str = "job"
    lasting: bool = False
    """True if its connections are persistent."""

    @classmethod
    def of(
        cls, scenario: Scenario, number: int, trace: Trace, assignment: HostAssignment, cards: HostCards
    ) -> CountedJob:
        """Return the job of this number."""
        job, where = scenario.job[number], f"job[{number}]"
        setting = JobSetting(
            table=job,
            trace=trace,
            workers=assignment.workers,
            servers=assignment.servers,
            cards=cards,
            ready_order=Replay(job, trace, scenario.seed, where).ready_order,
            scheduling=scheduling_of(job, trace),
        )
        return cls(job, setting, where, is_persistent(job.transport or scenario.transport))

    def messages(self, job: Job) -> int | None:
        """Return an upper bound of an iteration's messages; None: unknown."""
        if job.parallel is not None:
            return count_messages(self._setting(job), ModelGroups.of(job, self.setting.trace, self.where))
        with asked(job.exchange, "messages_of", f"{self.where}.exchange"):
            return job.exchange.messages_of(self._setting(job))

    def simultaneous_messages(self, job: Job) -> int:
        """Return a lower bound of the messages that begin at the same time; 0 if something holds them back."""
        setting = self._setting(job)
        held_back = setting.scheduling.order != FIFO or getattr(job.exchange, "slots", 0) > 0
        if held_back or self.lasting or job.parallel is not None:
            return 0
        with asked(job.exchange, "simultaneous_messages", f"{self.where}.exchange"):
            return int(job.exchange.simultaneous_messages(setting))

    def _setting(self, job: Job) -> JobSetting:
        return replace(self.setting, table=job, scheduling=scheduling_of(job, self.setting.trace))


def loaded_iterations(job: Job) -> int:
    """Return the maximum number of iterations whose messages are loaded at the same time."""
    return min(job.iterations, 3 + getattr(job.exchange, "staleness", 0))


def _laid(counted: CountedJob, most: int, others: int) -> Mistake:
    """Return the mistake of a job with too many messages, in addition to `others` of other jobs."""

    def count(job: Job) -> int:
        return counted.messages(job) or 0

    steps = loaded_iterations(counted.job)
    what = f"creates {count(counted.job):,} messages per iteration"
    if steps > 1:
        what += f", and {steps} iterations are loaded at once"
    if others:
        what += f", in addition to {others:,} messages of other jobs"
    room = max(most - others, 0) // steps
    memory = f" in this machine's {installed_bytes() / 2**30:.1f} GiB of memory" if most < MAX_LOADED_MESSAGES else ""
    path, value, fits = _remedy(counted.job, count, room)
    return Mistake(path, what, value, f"at most {room:,}{memory}: {fits}")


def _remedy(job: Job, count: MessageCounter, most: int) -> tuple[str, object, str]:
    """Return the path of the key to change, its value, and a value that would fit."""
    for key in job.exchange.multiplies:
        value = getattr(job.exchange, key)
        fits = _largest(lambda number: count(_changed(job, "exchange", key, number)) <= most, (value or 1) - 1)  # noqa: B023
        if fits:
            return f"exchange.{key}", value, f"{fits} or fewer"
    table, key = "scheduler", getattr(job.scheduler, "unit_key", "")
    if not key:
        table, key = "exchange", job.exchange.unit_key
    if key:
        value = getattr(getattr(job, table), key)
        less = _largest(lambda words: count(_changed(job, table, key, 4 * words)) > most, MAX_MODEL_VALUES)
        if less < MAX_MODEL_VALUES:
            least = format_size(Bytes(4 * (less + 1)))
            return f"{table}.{key}", None if value is None else format_size(value), f"{least} or more"
    fits = _largest(lambda number: count(job.model_copy(update={"accumulate": number})) <= most, job.accumulate - 1)
    if fits:
        return "accumulate", job.accumulate, f"{fits} or fewer"
    return "workers", job.workers, "fewer workers, or another exchange"


def _changed(job: Job, table: str, key: str, value: int) -> Job:
    return job.model_copy(update={table: getattr(job, table).model_copy(update={key: value})})


def _largest(holds: Callable[[int], bool], most: int) -> int:
    """Return the largest number up to `most` for which the monotonic predicate holds; 0: none."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if holds(middle) else (low, middle - 1)
    return low
