"""How many messages an iteration of a job has, told before anything of it is made, and whether they fit.

A few bytes in a scenario, such as the partitions of a scheduler, make millions of messages of a large model. All of an
iteration are laid out together, and of a job of several iterations those of three: the one that the first worker is
in, the next one, and the one before, which the last worker may be in still; with `staleness` so many more. Those that
have begun and are not over have numbers besides, of which there are fewer: all-to-alls and the partitions of a tensor
begin at one time, unless a scheduler holds them back, or connections last, which have the numbers then.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gradwire.components.limits import MAX_FLOWS, MAX_LAID
from gradwire.components.transports.base import persists
from gradwire.experiment.collectives.groups import Groups
from gradwire.experiment.collectives.parallel import messages_of
from gradwire.experiment.collectives.setting import JobSetting
from gradwire.experiment.replay import Replay
from gradwire.experiment.room import most_laid
from gradwire.experiment.scheduling import FIFO, scheduling_of
from gradwire.scenarios.asked import asked
from gradwire.scenarios.errors import Mistake, ScenarioError
from gradwire.scenarios.units import Bytes, format_size
from gradwire.traces.room import installed

if TYPE_CHECKING:
    from gradwire.experiment.placement import Places
    from gradwire.experiment.topology import Cards
    from gradwire.scenarios.schema.job import Job
    from gradwire.scenarios.schema.scenario import Scenario
    from gradwire.traces.trace import Trace

Count = Callable[[Any], int]
"""Messages of an iteration of a [[job]] table."""
LARGEST = 1 << 48
"""Values of four bytes that any model has fewer of (our choice)."""


def check_volume(scenario: Scenario, traces: list[Trace], places: list[Places], cards: Cards) -> None:
    """Raise ScenarioError if jobs have more messages at once than there are words or memory for, or numbers; says what
    would fit of the largest one."""
    jobs = [
        Counted.of(scenario, number, trace, its, cards)
        for number, (trace, its) in enumerate(zip(traces, places, strict=True))
    ]
    laid = [(each.messages(each.job) or 0) * steps_laid(each.job) for each in jobs]
    most = most_laid()
    mistakes = [_begun(each).under(each.where) for each in jobs if each.at_once(each.job) > MAX_FLOWS]
    if sum(laid) > most:
        number = laid.index(max(laid))
        mistakes = [_laid(jobs[number], most, sum(laid) - laid[number]).under(jobs[number].where)]
    if mistakes:
        raise ScenarioError("has more messages than fit:", scenario.called, mistakes=mistakes)


@dataclass(frozen=True)
class Counted:
    """A job, and where it is; messages are counted of others like it, with other sizes, too."""

    job: Job
    trace: Trace
    places: Places
    cards: Cards
    ready_order: list[int]
    where: str = "job"
    lasting: bool = False
    """Whether it keeps its connections."""

    @classmethod
    def of(cls, scenario: Scenario, number: int, trace: Trace, places: Places, cards: Cards) -> Counted:
        """The job of this number."""
        job, where = scenario.job[number], f"job[{number}]"
        order = Replay(job, trace, scenario.seed, where).ready_order
        return cls(job, trace, places, cards, order, where, persists(job.transport or scenario.transport))

    def messages(self, job: Job) -> int | None:
        """How many messages an iteration has, at the most; None: nobody says."""
        if job.parallel is not None:
            return messages_of(self._setting(job), Groups.of(job, self.trace, self.where))
        with asked(job.exchange, "messages_of", f"{self.where}.exchange"):
            return job.exchange.messages_of(self._setting(job))

    def at_once(self, job: Job) -> int:
        """How many begin at one time, at the least; 0 where something holds them back."""
        setting = self._setting(job)
        held = setting.scheduling.order != FIFO or getattr(job.exchange, "slots", 0) > 0
        if held or self.lasting or job.parallel is not None:
            return 0
        with asked(job.exchange, "at_once", f"{self.where}.exchange"):
            return int(job.exchange.at_once(setting))

    def _setting(self, job: Job) -> JobSetting:
        return JobSetting(
            table=job, trace=self.trace, workers=self.places.workers, servers=self.places.servers, cards=self.cards,
            ready_order=self.ready_order, scheduling=scheduling_of(job, self.trace),
        )  # fmt: skip


def steps_laid(job: Job) -> int:
    """Iterations whose messages are laid out at the same time, at the most."""
    return min(job.iterations, 3 + getattr(job.exchange, "staleness", 0))


def _laid(counted: Counted, most: int, others: int) -> Mistake:
    """What to say of a job that has too many messages, where other jobs have so many laid out."""

    def count(job: Job) -> int:
        return counted.messages(job) or 0

    steps = steps_laid(counted.job)
    what = f"makes {count(counted.job):,} messages an iteration"
    if steps > 1:
        what += f", and {steps} iterations are laid out at once"
    if others:
        what += f", beside {others:,} messages of other jobs"
    room = max(most - others, 0) // steps
    memory = f" in this machine's {installed() / 2**30:.1f} GiB of memory" if most < MAX_LAID else ""
    path, value, fits = _remedy(counted.job, count, room)
    return Mistake(path, what, value, f"at most {room:,}{memory}: {fits}")


def _begun(counted: Counted) -> Mistake:
    """What to say of a job that begins too many messages at one time."""
    path, value, fits = _remedy(counted.job, counted.at_once, MAX_FLOWS)
    what = f"begins {counted.at_once(counted.job):,} messages at once"
    return Mistake(path, what, value, f"at most {MAX_FLOWS:,}: {fits}")


def _remedy(job: Job, count: Count, most: int) -> tuple[str, object, str]:
    """The key to change, as a path in the job's table, its value, and what of it would fit."""
    for key in job.exchange.multiplies:
        now = getattr(job.exchange, key)
        fits = _largest(lambda many: count(_changed(job, "exchange", key, many)) <= most, (now or 1) - 1)  # noqa: B023
        if fits:
            return f"exchange.{key}", now, f"{fits} or fewer"
    table, key = "scheduler", getattr(job.scheduler, "unit_key", "")
    if not key:
        table, key = "exchange", job.exchange.unit_key
    if key:
        now = getattr(getattr(job, table), key)
        less = _largest(lambda words: count(_changed(job, table, key, 4 * words)) > most, LARGEST)
        if less < LARGEST:
            least = format_size(Bytes(4 * (less + 1)))
            return f"{table}.{key}", None if now is None else format_size(now), f"{least} or more"
    fits = _largest(lambda many: count(job.model_copy(update={"accumulate": many})) <= most, job.accumulate - 1)
    if fits:
        return "accumulate", job.accumulate, f"{fits} or fewer"
    return "workers", job.workers, "fewer workers, or another exchange"


def _changed(job: Job, table: str, key: str, value: int) -> Job:
    return job.model_copy(update={table: getattr(job, table).model_copy(update={key: value})})


def _largest(holds: Callable[[int], bool], most: int) -> int:
    """The largest number up to `most` of which something holds that holds of all below it; 0: of none."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if holds(middle) else (low, middle - 1)
    return low
