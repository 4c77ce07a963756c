"""`ReplayedProgram` rebuilds workers' activity (computing, waiting) and event times from a job's program and a Result's
message times.

A Result records when messages became ready, were released and delivered, but not the dependencies between them. These
are in the program (`gradwire.workload.program`), which its scenario and trace rebuild bit by bit. Events that post
messages fired when these became ready, delivery events when messages were delivered; all others follow, and with them
the activity of every worker at any time: computing, or waiting for an event.

Numbering runs through the job: event e of step s is `first[s] + e`, its message m `offset[s] + m`. Times are int64
picoseconds, -1 if it has not happened.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from gradwire.jit.records.constants import SLOW_UNIT
from gradwire.result_store.arrow import to_numpy
from gradwire.result_store.lazy_table import dictionary_encoded
from gradwire.result_store.table_schema import KINDS
from gradwire.scenarios.errors import ResultError
from gradwire.scenarios.json_data import Json
from gradwire.workload.csr import csr_lists, owners_of, starts_of
from gradwire.workload.program import COMPUTE, FIRE, NOTE, UNTIL, WAIT, Ints, Step

if TYPE_CHECKING:
    from gradwire.workload.jobs import Job

COPIED_COLUMNS = tuple(
    "start_ps released_ps end_ps bytes received_bytes packets retransmitted timeouts priority".split()
)
"""Columns of the table of messages that are copied unchanged."""
IDLE = -2
"""Stands for the event while a process waits for its start. -1: it computes."""
EXPECTED_RESULT = "a Result as it was written, with the gradwire that wrote it"


@dataclass
class ProcessActivity:
    """Activity of one worker as consecutive pieces of time.

    begin, end : picoseconds; event : the event waited for, -1 if computing, IDLE before its start; work : computing in
        the piece, picoseconds of a host at full speed.
    waits : (start of the wait, event, index of the iteration that the wait is named for).
    notes : (kind, iteration, time), see `gradwire.workload.program.NOTE`.
    """

    begin: list[int] = field(default_factory=list)
    end: list[int] = field(default_factory=list)
    event: list[int] = field(default_factory=list)
    work: list[int] = field(default_factory=list)
    waits: list[tuple[int, int, int]] = field(default_factory=list)
    notes: list[tuple[int, int, int]] = field(default_factory=list)
    now: int = 0
    at: int = 0

    def advance(self, until: int, event: int, work: int = 0) -> None:
        """Advance to a time, waiting for an event or (-1) computing."""
        if until > self.now:
            self.begin.append(self.now)
            self.end.append(until)
            self.event.append(event)
            self.work.append(work)
            self.now = until

    def pieces_between(self, begin: int, end: int) -> range:
        """Return the indices of the pieces between two times, both of which are borders of pieces."""
        return range(bisect_right(self.end, begin), bisect_right(self.end, end))


@dataclass(frozen=True)
class HostSlowdowns:
    """Periods in which faults slow hosts down: (host, begin, end or -1, factor)."""

    stretches: tuple[tuple[int, int, int, float], ...] = ()

    def compute_end(self, value: int, host: int, now: int) -> int:
        """Return the duration of `value` picoseconds of computing that begins at `now`, as the engine does."""
        factor = 1.0
        for slow_host, begin, end, slowness in self.stretches:
            if slow_host == host and begin <= now and (end < 0 or now < end):
                factor *= slowness
        slow = round(factor * SLOW_UNIT)
        if slow == SLOW_UNIT:
            return value
        return value // SLOW_UNIT * slow + (value % SLOW_UNIT) * slow // SLOW_UNIT


class RecordedRun(Protocol):
    """Protocol of `gradwire.analysis.breakdown.result_context.ResultContext`: the recorded messages and iterations."""

    where: str
    slow: HostSlowdowns

    def messages_of(self, job: str) -> dict[str, Any]: ...

    def iterations_of(self, job: str) -> list[Json]: ...


class ReplayedProgram:
    """Replay of one job of a Result.

    job : the resolved job; steps : the steps of its part.
    messages : columns int64[messages], those of OWN, `number` (in the Result), `src`, `dst` (nodes), `tensor`,
        `layer`, `part`, `kind` (index into `KINDS`), `iteration`; -1 in `number` and times if a message never became
        ready.
    courses : activity of every process, workers first.
    """

    def __init__(self, seen: RecordedRun, job: Job) -> None:
        """Replay the job; raise ResultError if the Result does not follow from its scenario."""
        self.seen, self.job, self.name = seen, job, job.table.name
        part = job.part
        self.hosts = part.hosts.tolist()
        self.workers = part.workers[part.workers >= 0].tolist()  # their processes come first
        self.table = part.table
        self.steps: list[Step] = list(part.steps())
        self.first = starts_of([len(step) for step in self.steps])
        self.offset = starts_of([len(step.messages) for step in self.steps])
        events, count = int(self.first[-1]), int(self.offset[-1])
        self.messages = self._rows(count)
        numbers = [np.arange(len(step.messages)) for step in self.steps]
        self.event_of = np.concatenate([first + number for first, number in zip(self.first, numbers, strict=False)])
        """The delivery event of every message."""
        self.message_of = np.full(events, -1, dtype=np.int64)
        self.message_of[self.event_of] = np.arange(count)
        self.needs, self.station, self.effort = (
            np.concatenate([getattr(step, name) for step in self.steps]) for name in ("needs", "station", "effort")
        )
        self.before = self._inverted("after", lambda first, _: first, events)
        posts = self._inverted("posts", lambda _, offset: offset, count)
        self.poster = np.full(count, -1, dtype=np.int64)
        posted = np.flatnonzero(np.diff(posts[0]))
        self.poster[posted] = posts[1][posts[0][posted]]
        self.fire = np.full(events, -1, dtype=np.int64)
        self.fire[self.event_of] = self.messages["end_ps"]
        known = posted[self.messages["start_ps"][posted] >= 0]
        self.fire[self.poster[known]] = self.messages["start_ps"][known]
        self._counted = np.zeros(events, dtype=np.int64)  # firings by processes
        self._last = np.full(events, -1, dtype=np.int64)  # time of the last one
        self._by = np.full(events, -1, dtype=np.int64)  # process of the last one
        self.courses = [ProcessActivity() for _ in self.hosts]
        self._replay()
        self._check()

    # --- from the Result ------------------------------------------------------------------------------------------

    def _rows(self, count: int) -> dict[str, Ints]:
        recorded = {name: np.full(count, -1, dtype=np.int64) for name in ("number", *COPIED_COLUMNS)}
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
            rows_of_step = np.flatnonzero(columns["iteration"] == iteration)
            position = self._positions(columns, rows_of_step, planned, offset, n, step)
            for name in recorded:
                recorded[name][position] = columns[name][rows_of_step]
        return {**recorded, **{name: column for name, column in planned.items() if name != "nbytes"}}

    def _positions(
        self, columns: dict[str, Ints], rows_of_step: Ints, planned: dict[str, Ints], offset: int, n: int, step: int
    ) -> Ints:
        """Return the positions of the Result's rows `rows_of_step` among the messages of a step. The engine numbers a
        step's messages consecutively. For other networks tensor, part, kind and ends identify a message, if no other
        has the same."""
        numbers = columns["number"][rows_of_step]
        keys = ("tensor", "part", "kind", "src", "dst", "bytes")
        planned_keys = [planned["nbytes" if name == "bytes" else name][offset : offset + n] for name in keys]
        recorded_keys = [columns[name][rows_of_step] for name in keys]
        if not len(rows_of_step):
            return np.zeros(0, dtype=np.int64)
        like_first = np.logical_and.reduce(
            [column == recorded[0] for column, recorded in zip(planned_keys, recorded_keys, strict=True)]
        )
        for first in (numbers[0] - np.flatnonzero(like_first)).tolist():
            position = numbers - first
            if 0 <= position.min() and position.max() < n:
                pairs = zip(planned_keys, recorded_keys, strict=True)
                if all((column[position] == recorded).all() for column, recorded in pairs):
                    return np.asarray(offset + position)
        position_by_key = {
            key: at for at, key in enumerate(zip(*(column.tolist() for column in planned_keys), strict=True))
        }
        position = np.array(
            [position_by_key.get(key, -1) for key in zip(*(column.tolist() for column in recorded_keys), strict=True)]
        )
        if len(position_by_key) < n or len(np.unique(position)) < len(rows_of_step) or (position < 0).any():
            what = f"the messages of job {self.name}, step {step}, are not those of its scenario"
            raise ResultError(what, self.seen.where, EXPECTED_RESULT)
        return np.asarray(offset + position)

    # --- what follows from it -------------------------------------------------------------------------------------

    def _inverted(self, name: str, base: Any, count: int) -> tuple[Ints, Ints]:
        """Invert lists of the steps: for each item the owners of the lists that contain it, as (first, owners)."""
        pairs = []
        for step, first, offset in zip(self.steps, self.first.tolist(), self.offset.tolist(), strict=False):
            lists = getattr(step, name)
            pairs.append((base(first, offset) + lists[1], first + owners_of(lists)))
        return csr_lists(pairs, count)

    def counted_events(self, event: int) -> Ints:
        """Return the events that this event counts."""
        return self.before[1][self.before[0][event] : self.before[0][event + 1]]

    def _fire_time(self, event: int) -> int:
        """Return the time at which an event fired; -1 if it has not, or is not known yet."""
        waiting = [event]
        while waiting:
            e = waiting[-1]
            if self.fire[e] >= 0 or self.message_of[e] >= 0:
                waiting.pop()
                continue
            causes = self.counted_events(e)
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

    def arrival_of(self, event: int) -> tuple[int, int]:
        """Return (time of the last thing an event needs, its cause: an event, or -1 - process). The work of an
        aggregation node counts from when the node could begin with it."""
        causes = self.counted_events(event)
        moment, who = int(self._last[event]), -1 - int(self._by[event])
        if len(causes):
            times = self.fire[causes]
            for index in np.flatnonzero(times < 0).tolist():
                cause = int(causes[index])
                times[index] = self.arrival_of(cause)[0] if self.station[cause] >= 0 else self._fire_time(cause)
            last = int(times.max())
            if last >= moment:
                return last, int(causes[int(times.argmax())])
        return moment, who

    def deliveries_awaited(self, event: int) -> Ints:
        """Return the messages whose delivery an event waits for, directly or through events that post nothing."""
        deliveries, waiting, seen = [], [event], {event}
        while waiting:
            causes = self.counted_events(waiting.pop())
            messages = self.message_of[causes]
            deliveries.append(messages[messages >= 0])
            more = [cause for cause in causes[messages < 0].tolist() if cause not in seen]
            seen.update(more)
            waiting += more
        return np.unique(np.concatenate(deliveries))

    def tensors_of(self, message: int) -> tuple[int, ...]:
        """Return the tensors that a message carries parts of; empty if unknown."""
        tensor, part = int(self.messages["tensor"][message]), int(self.messages["part"][message])
        if tensor >= 0:
            return (tensor,)
        bucket = part // self.table.segments
        return self.table.buckets[bucket] if 0 <= bucket < len(self.table.buckets) else ()

    def _served(self, event: int) -> int:
        """Return the time at which an aggregation node completes an event; -1 if an input of this step is unknown. Its
        work of the previous step counts as complete (it matters only if no message tells)."""
        step = int(np.searchsorted(self.first, event, side="right")) - 1
        events_of_station = np.arange(self.first[step], self.first[step + 1])
        events_of_station = events_of_station[(self.station[events_of_station] == self.station[event])]
        arrivals = []
        for e in events_of_station.tolist():
            causes = self.counted_events(e)
            if len(causes) + self._counted[e] < self.needs[e] or (self.fire[causes] < 0).any():
                return -1
            arrivals.append((self.arrival_of(e)[0], e))
        free = 0
        for moment, e in sorted(arrivals):
            free = max(free, moment) + int(self.effort[e])
            if e == event:
                return free
        return -1

    def _replay(self) -> None:
        """Advance the processes through their operations, each until it waits for an unknown event."""
        operations = [
            np.concatenate(
                [np.zeros((0, 3), dtype=np.int64)]
                + [course.operations for step in self.steps for course in step.courses if course.process == process]
            ).tolist()
            for process in range(len(self.hosts))
        ]
        has_progress = True
        while has_progress:
            has_progress = sum(self._proceed(process, rows) for process, rows in enumerate(operations)) > 0

    def _proceed(self, process: int, rows: list[list[int]]) -> bool:
        """Advance a process; return True if it got any further."""
        course, begin = self.courses[process], self.courses[process].at
        while course.at < len(rows):
            operation, value, iteration = rows[course.at]
            if operation == COMPUTE:
                course.advance(
                    course.now + self.seen.slow.compute_end(value, self.hosts[process], course.now), -1, value
                )
            elif operation == WAIT:
                fired = self._fire_time(value)
                if fired < 0:
                    break
                course.waits.append((course.now, value, iteration))
                course.advance(fired, value)
            elif operation == FIRE:
                self._counted[value] += 1
                if course.now >= self._last[value]:
                    self._last[value], self._by[value] = course.now, process
            elif operation == UNTIL:
                course.advance(value, IDLE)
            elif operation == NOTE:
                course.notes.append((value, iteration, course.now))
            course.at += 1
        return course.at > begin

    def _check(self) -> None:
        replayed = {
            (self.workers[process], iteration, kind): moment
            for process, course in enumerate(self.courses)
            for kind, iteration, moment in course.notes
        }
        for row in self.seen.iterations_of(self.name):
            for kind, name in enumerate(("start_ps", "forward_end_ps", "backward_end_ps", "end_ps")):
                if replayed.get((row["worker"], row["iteration"], kind)) != row[name]:
                    who = f"worker {row['worker']}, iteration {row['iteration']}"
                    what = f"job {self.name}, {who}: {name} does not follow from the scenario and the messages"
                    raise ResultError(what, self.seen.where, EXPECTED_RESULT)


def message_columns(result: Any, index: dict[str, int]) -> dict[str, Any]:
    """Return all messages of a Result as columns int64[n]. Columns: those of OWN, `number`, `iteration`, `tensor`,
    `part`; `job` and `kind` as numbers; `src` and `dst` as nodes by `index` (-1 if not in it). `jobs` holds the names
    of the jobs."""
    plain = ("message", "iteration", "tensor", "part", *COPIED_COLUMNS)
    table = result.select("messages", "job", "kind", "src", "dst", *plain)
    columns: dict[str, Any] = {name: to_numpy(table[name]).astype(np.int64) for name in plain}
    columns["number"] = columns.pop("message")
    columns["job"], columns["jobs"] = dictionary_encoded(table["job"])
    kind, kinds = dictionary_encoded(table["kind"])
    columns["kind"] = np.array([*(KINDS.index(name) for name in kinds), -1], dtype=np.int64)[kind]
    for name in ("src", "dst"):
        numbers, names = dictionary_encoded(table[name])
        columns[name] = np.array([*(index.get(host, -1) for host in names), -1], dtype=np.int64)[numbers]
    return columns
