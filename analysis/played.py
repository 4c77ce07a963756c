"""Played: a job's program once more, with what a Result has seen, and without a network.

A Result says when messages became ready, were released and delivered. What followed from what, it does not say: that
is the program (`gradwire.experiment.program`), which its scenario and trace make again, the same to the bit. Events
of the program that post messages fired when these became ready, deliveries when messages were delivered; all others
follow from these, and so does what every worker did at any time: computing, or waiting for which event.

Everything is counted through the job: event e of step s is `first[s] + e`, message m of it `offset[s] + m`. Times are
int64 picoseconds, -1 for what has not happened.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from gradwire.components.layout import SLOW_UNIT
from gradwire.experiment.program import COMPUTE, FIRE, NOTE, UNTIL, WAIT, Ints, Step
from gradwire.scenarios.arrow import numpy_of
from gradwire.scenarios.errors import ResultError
from gradwire.scenarios.kept import numbered
from gradwire.scenarios.result import KINDS

if TYPE_CHECKING:
    from gradwire.experiment.jobs import Job
    from gradwire.scenarios.json_data import Json

OWN = (
    "start_ps", "released_ps", "end_ps", "bytes", "received_bytes", "packets", "retransmitted", "timeouts", "priority",
)  # fmt: skip
"""Columns of the table of messages that are kept as they are."""
IDLE = -2
"""In the place of the event that a process waited for: it waited for its start. -1: it computed."""
UNFIT = "a Result as it was written, with the gradwire that wrote it"


@dataclass
class Course:
    """What one worker did: stretches of time, one after the other.

    begin, end : picoseconds; event : what it waited for, -1: it computed, IDLE: it had not begun; work : what it
        computed, in the picoseconds of a host that is not slow.
    waits : (time at which it came to wait, event, index of the iteration that the wait is named for).
    notes : (what, iteration, time), see `gradwire.experiment.program.NOTE`.
    """

    begin: list[int] = field(default_factory=list)
    end: list[int] = field(default_factory=list)
    event: list[int] = field(default_factory=list)
    work: list[int] = field(default_factory=list)
    waits: list[tuple[int, int, int]] = field(default_factory=list)
    notes: list[tuple[int, int, int]] = field(default_factory=list)
    now: int = 0
    at: int = 0

    def spend(self, until: int, event: int, work: int = 0) -> None:
        """Time passes, for an event or (-1) with computing."""
        if until > self.now:
            self.begin.append(self.now)
            self.end.append(until)
            self.event.append(event)
            self.work.append(work)
            self.now = until

    def within(self, begin: int, end: int) -> range:
        """Places of the stretches between two times at which one begins and one ends."""
        return range(bisect_right(self.end, begin), bisect_right(self.end, end))


@dataclass(frozen=True)
class Slow:
    """Stretches of time in which hosts compute more slowly: (host, begin, end or -1, factor), as faults say."""

    stretches: tuple[tuple[int, int, int, float], ...] = ()

    def takes(self, value: int, host: int, now: int) -> int:
        """What the computing of `value` picoseconds takes that begins `now`, as in the engine."""
        factor = 1.0
        for whose, begin, end, times in self.stretches:
            if whose == host and begin <= now and (end < 0 or now < end):
                factor *= times
        slow = round(factor * SLOW_UNIT)
        if slow == SLOW_UNIT:
            return value
        return value // SLOW_UNIT * slow + (value % SLOW_UNIT) * slow // SLOW_UNIT


class Seen(Protocol):
    """What a Result says, as `gradwire.analysis.ran.Ran` has it."""

    where: str
    slow: Slow

    def messages_of(self, job: str) -> dict[str, Any]: ...

    def iterations_of(self, job: str) -> list[Json]: ...


class Played:
    """One job of a Result.

    Attributes
    ----------
    job : as the experiment has it; steps : of its part.
    messages : columns int64[messages], those of OWN, `number` (in the Result), `src`, `dst` (nodes), `tensor`,
        `layer`, `part`, `kind` (index into `KINDS`), `iteration`; -1 in `number` and times where a message never came
        to be ready.
    courses : what every process did, workers first.
    """

    def __init__(self, seen: Seen, job: Job) -> None:
        """ResultError if the Result does not follow from its scenario."""
        self.seen, self.job, self.name = seen, job, job.table.name
        part = job.part
        self.hosts = part.hosts.tolist()
        self.workers = part.workers[part.workers >= 0].tolist()  # their processes come first
        self.table = part.table
        self.steps: list[Step] = list(part.steps())
        self.first = _sums([len(step) for step in self.steps])
        self.offset = _sums([len(step.messages) for step in self.steps])
        events, count = int(self.first[-1]), int(self.offset[-1])
        self.messages = self._rows(count)
        numbers = [np.arange(len(step.messages)) for step in self.steps]
        self.event_of = np.concatenate([first + each for first, each in zip(self.first, numbers, strict=False)])
        """The delivery of every message."""
        self.message_of = np.full(events, -1, dtype=np.int64)
        self.message_of[self.event_of] = np.arange(count)
        self.needs, self.station, self.effort = (
            np.concatenate([getattr(step, name) for step in self.steps]) for name in ("needs", "station", "effort")
        )
        self.before = self._turned("after", lambda first, _: first, events)
        posts = self._turned("posts", lambda _, offset: offset, count)
        self.poster = np.full(count, -1, dtype=np.int64)
        posted = np.flatnonzero(np.diff(posts[0]))
        self.poster[posted] = posts[1][posts[0][posted]]
        self.fire = np.full(events, -1, dtype=np.int64)
        self.fire[self.event_of] = self.messages["end_ps"]
        known = posted[self.messages["start_ps"][posted] >= 0]
        self.fire[self.poster[known]] = self.messages["start_ps"][known]
        self._counted = np.zeros(events, dtype=np.int64)  # firings by processes
        self._last = np.full(events, -1, dtype=np.int64)  # ... the last of them, its time
        self._by = np.full(events, -1, dtype=np.int64)  # ... and who
        self.courses = [Course() for _ in self.hosts]
        self._replay()
        self._check()

    # --- what the Result says -------------------------------------------------------------------------------------

    def _rows(self, count: int) -> dict[str, Ints]:
        """The messages of all steps, by step and number."""
        found = {name: np.full(count, -1, dtype=np.int64) for name in ("number", *OWN)}
        planned = {
            name: np.concatenate([getattr(step.messages, name) for step in self.steps])
            for name in ("iteration", "tensor", "layer", "part", "kind", "src", "dst", "nbytes")
        }
        columns = self.seen.messages_of(self.name)
        for step, (offset, rows) in enumerate(zip(self.offset.tolist(), self.steps, strict=False)):
            n = len(rows.messages)
            if not n:
                continue
            iteration = int(rows.messages.iteration[0])
            mine = np.flatnonzero(columns["iteration"] == iteration)
            place = self._places(columns, mine, planned, offset, n, step)
            for name in found:
                found[name][place] = columns[name][mine]
        return {**found, **{name: column for name, column in planned.items() if name != "nbytes"}}

    def _places(
        self, columns: dict[str, Ints], mine: Ints, planned: dict[str, Ints], offset: int, n: int, step: int
    ) -> Ints:
        """Where the rows `mine` of the Result stand among the messages of a step. The engine numbers a step's messages
        in a row; other networks may not: then tensor, part, kind and ends tell, if these are of one alone."""
        numbers = columns["number"][mine]
        keys = ("tensor", "part", "kind", "src", "dst", "bytes")
        wanted = [planned["nbytes" if name == "bytes" else name][offset : offset + n] for name in keys]
        given = [columns[name][mine] for name in keys]
        if not len(mine):
            return np.zeros(0, dtype=np.int64)
        like_first = np.logical_and.reduce([column == found[0] for column, found in zip(wanted, given, strict=True)])
        for first in (numbers[0] - np.flatnonzero(like_first)).tolist():
            place = numbers - first
            if 0 <= place.min() and place.max() < n and _equal([column[place] for column in wanted], given):
                return np.asarray(offset + place)
        places = {key: at for at, key in enumerate(zip(*(column.tolist() for column in wanted), strict=True))}
        place = np.array([places.get(key, -1) for key in zip(*(column.tolist() for column in given), strict=True)])
        if len(places) < n or len(np.unique(place)) < len(mine) or (place < 0).any():
            what = f"the messages of job {self.name}, step {step}, are not those of its scenario"
            raise ResultError(what, self.seen.where, UNFIT)
        return np.asarray(offset + place)

    # --- what follows ---------------------------------------------------------------------------------------------

    def _turned(self, name: str, base: Any, count: int) -> tuple[Ints, Ints]:
        """Lists of the steps the other way round: who is in whose list, as (first, list)."""
        owners, items = [], []
        for step, first, offset in zip(self.steps, self.first.tolist(), self.offset.tolist(), strict=False):
            place, members = getattr(step, name)
            owners.append(first + np.repeat(np.arange(len(place) - 1), np.diff(place)))
            items.append(base(first, offset) + members)
        empty = np.zeros(0, dtype=np.int64)
        owner, item = np.concatenate([empty, *owners]), np.concatenate([empty, *items])
        order = np.argsort(item, kind="stable")
        first_of = np.zeros(count + 1, dtype=np.int64)
        np.cumsum(np.bincount(item, minlength=count), out=first_of[1:])
        return first_of, np.asarray(owner[order])

    def causes(self, event: int) -> Ints:
        """The events that this one counts."""
        return self.before[1][self.before[0][event] : self.before[0][event + 1]]

    def _fired(self, event: int) -> int:
        """When an event fired; -1 if it has not, or that is not known yet."""
        waiting = [event]
        while waiting:
            e = waiting[-1]
            if self.fire[e] >= 0 or self.message_of[e] >= 0:
                waiting.pop()
                continue
            causes = self.causes(e)
            if len(causes) + self._counted[e] < self.needs[e]:
                return -1
            unknown = causes[self.fire[causes] < 0]
            if len(unknown):
                if (self.message_of[unknown] >= 0).any():
                    return -1
                waiting.append(int(unknown[0]))
                continue
            moment = max(int(self.fire[causes].max(initial=-1)), int(self._last[e]))
            if self.station[e] >= 0:
                moment = self._served(e)
                if moment < 0:
                    return -1
            self.fire[e] = moment
            waiting.pop()
        return int(self.fire[event])

    def arrived(self, event: int) -> tuple[int, int]:
        """(when the last thing happened that an event needs, the cause: an event, or -1 - process). What a station has
        to do first counts from when the station could begin with it."""
        causes = self.causes(event)
        moment, who = int(self._last[event]), -1 - int(self._by[event])
        if len(causes):
            times = self.fire[causes]
            for place in np.flatnonzero(times < 0).tolist():
                cause = int(causes[place])
                times[place] = self.arrived(cause)[0] if self.station[cause] >= 0 else self._fired(cause)
            last = int(times.max())
            if last >= moment:
                return last, int(causes[int(times.argmax())])
        return moment, who

    def delivered_for(self, event: int) -> Ints:
        """The messages whose delivery an event waits for, directly or through events that post nothing."""
        found, waiting, seen = [], [event], {event}
        while waiting:
            causes = self.causes(waiting.pop())
            messages = self.message_of[causes]
            found.append(messages[messages >= 0])
            more = [each for each in causes[messages < 0].tolist() if each not in seen]
            seen.update(more)
            waiting += more
        return np.unique(np.concatenate(found))

    def tensors_of(self, message: int) -> tuple[int, ...]:
        """The tensors that a message carries something of; none where that is not known."""
        tensor, part = int(self.messages["tensor"][message]), int(self.messages["part"][message])
        if tensor >= 0:
            return (tensor,)
        bucket = part // self.table.segments
        return self.table.buckets[bucket] if 0 <= bucket < len(self.table.buckets) else ()

    def _served(self, event: int) -> int:
        """When a station is done with an event; -1 while not all of what it does in this step has come. What it did
        in the step before it has done before (it matters only where no message says so)."""
        step = int(np.searchsorted(self.first, event, side="right")) - 1
        own = np.arange(self.first[step], self.first[step + 1])
        own = own[(self.station[own] == self.station[event])]
        came = []
        for e in own.tolist():
            causes = self.causes(e)
            if len(causes) + self._counted[e] < self.needs[e] or (self.fire[causes] < 0).any():
                return -1
            came.append((self.arrived(e)[0], e))
        free = 0
        for moment, e in sorted(came):
            free = max(free, moment) + int(self.effort[e])
            if e == event:
                return free
        return -1

    def _replay(self) -> None:
        """Let the processes go through what they did, each until it waits for what is not known yet."""
        operations = [
            np.concatenate(
                [np.zeros((0, 3), dtype=np.int64)]
                + [each.operations for step in self.steps for each in step.courses if each.process == process]
            ).tolist()
            for process in range(len(self.hosts))
        ]
        going = True
        while going:
            going = sum(self._proceed(process, rows) for process, rows in enumerate(operations)) > 0

    def _proceed(self, process: int, rows: list[list[int]]) -> bool:
        """Whether a process came any further."""
        course, begin = self.courses[process], self.courses[process].at
        while course.at < len(rows):
            operation, value, iteration = rows[course.at]
            if operation == COMPUTE:
                course.spend(course.now + self.seen.slow.takes(value, self.hosts[process], course.now), -1, value)
            elif operation == WAIT:
                fired = self._fired(value)
                if fired < 0:
                    break
                course.waits.append((course.now, value, iteration))
                course.spend(fired, value)
            elif operation == FIRE:
                self._counted[value] += 1
                if course.now >= self._last[value]:
                    self._last[value], self._by[value] = course.now, process
            elif operation == UNTIL:
                course.spend(value, IDLE)
            elif operation == NOTE:
                course.notes.append((value, iteration, course.now))
            course.at += 1
        return course.at > begin

    def _check(self) -> None:
        """Raise ResultError unless every iteration of the Result is what has been found."""
        found = {
            (self.workers[process], iteration, what): moment
            for process, course in enumerate(self.courses)
            for what, iteration, moment in course.notes
        }
        for row in self.seen.iterations_of(self.name):
            for what, name in enumerate(("start_ps", "forward_end_ps", "backward_end_ps", "end_ps")):
                if found.get((row["worker"], row["iteration"], what)) != row[name]:
                    who = f"worker {row['worker']}, iteration {row['iteration']}"
                    raise ResultError(
                        f"job {self.name}, {who}: {name} does not follow from the scenario and the messages",
                        self.seen.where, UNFIT,
                    )  # fmt: skip


def _equal(some: Sequence[Ints], others: Sequence[Ints]) -> bool:
    return all((one == other).all() for one, other in zip(some, others, strict=True))


def _sums(counts: Sequence[int]) -> Ints:
    found = np.zeros(len(counts) + 1, dtype=np.int64)
    np.cumsum(counts, out=found[1:])
    return found


def message_columns(result: Any, index: dict[str, int]) -> dict[str, Any]:
    """All messages of a Result as columns: those of OWN, `number`, `iteration`, `tensor`, `part`, int64[n]; `job` and
    `kind` as numbers, `src` and `dst` as nodes by `index` (-1 for what is none); and `jobs`, the names of the jobs."""
    plain = ("message", "iteration", "tensor", "part", *OWN)
    table = result.select("messages", "job", "kind", "src", "dst", *plain)
    found: dict[str, Any] = {name: numpy_of(table[name]).astype(np.int64) for name in plain}
    found["number"] = found.pop("message")
    found["job"], found["jobs"] = numbered(table["job"])
    kind, kinds = numbered(table["kind"])
    found["kind"] = np.array([*(KINDS.index(each) for each in kinds), -1], dtype=np.int64)[kind]
    for name in ("src", "dst"):
        numbers, names = numbered(table[name])
        found[name] = np.array([*(index.get(each, -1) for each in names), -1], dtype=np.int64)[numbers]
    return found
