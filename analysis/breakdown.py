"""Breakdown: what the time of every iteration was spent on, in parts that add up to it exactly.

A worker's iteration is computing and waiting. Every wait is for one event, and is walked through backwards, from when
it ended to when it began, along what happened last: the event fired when the last message that it needed was
delivered; that message had been released, ready, posted by an event; that one fired when ..., and so on, into other
workers if need be. Every picosecond of the wait falls into one of

    straggler       another worker, whose gradient was needed, was computing
    server          a parameter server was adding up
    scheduler       a message that was needed was ready, and its host's scheduler (order, credit) held it back
    sharing         ... was on its way, and other messages of its own host left by its network card
    serialisation   ... the time that it takes on the empty network: software latency, serialisation, propagation
    queueing        ... queues of the network, and its transport, held it up
    retransmission  ... a packet of it had been lost, and was sent again
    timeouts        ... the same, after a retransmission time-out

`gradwire.analysis.messages_time` says how the last five are told apart. What of all that overlaps with computing is
nobody's wait, and not in the breakdown: it is hidden.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gradwire.analysis.measured import Span
from gradwire.analysis.messages_time import Lost, MessageTimes, Traffic
from gradwire.analysis.played import IDLE, Played
from gradwire.analysis.ran import Ran, ran
from gradwire.analysis.tables import Row as TableRow
from gradwire.analysis.tables import html_table
from gradwire.scenarios.errors import ResultError
from gradwire.scenarios.json_data import Json
from gradwire.scenarios.readable import share_text, time_text
from gradwire.scenarios.result import Result

if TYPE_CHECKING:
    import pyarrow

    from gradwire.traces.trace import Trace

CAUSES = ("straggler", "server", "scheduler", "sharing", "serialisation", "queueing", "retransmission", "timeouts")
PARTS = ("computing", *CAUSES)
WORDS: Mapping[str, str] = {"computing": "computing", **{cause: f"waiting: {cause}" for cause in CAUSES}}
"""The parts as tables and pictures name them: by the keys of `Breakdown.means`."""

Row = dict[str, int]


class Walk:
    """Through the waits of one job, backwards."""

    def __init__(self, played: Played, times: MessageTimes, latency: int) -> None:
        self.played, self.times, self._latency = played, times, latency

    def wait(self, event: int, begin: int, end: int) -> Row:
        """What a wait for an event, from `begin` to `end`, when it fired, was spent on: picoseconds by cause."""
        found = dict.fromkeys(CAUSES, 0)
        for cause, low, high in self.stretches(event, begin, end):
            found[cause] += high - low
        return found

    def stretches(self, event: int, begin: int, end: int) -> Iterator[tuple[str, int, int]]:
        """(cause, from, to): the wait piece by piece, backwards, none empty."""
        played, now = self.played, end
        while now > begin:
            message = int(played.message_of[event])
            if message >= 0:
                yield from _clipped(self._message(message), begin)
                now = int(played.messages["start_ps"][message])
                event = int(played.poster[message])
                continue
            came, cause = played.arrived(event)
            yield from _clipped([("server", came, now)], begin)
            now = came
            if cause >= 0:
                event = cause
                continue
            for what, low, high in self._before(-1 - cause, now):
                if what != -1:
                    event, now = what, high
                    break
                yield from _clipped([("straggler", low, high)], begin)
                now = low
                if now <= begin:
                    break
            else:
                if now > begin:  # a worker that had not begun
                    yield "straggler", begin, now
                return

    def _message(self, message: int) -> list[tuple[str, int, int]]:
        """The stretches of a delivered message, the last one first."""
        rows = self.played.messages
        start, released, end = (int(rows[name][message]) for name in ("start_ps", "released_ps", "end_ps"))
        spent = self.times.spent(message)
        found, at = [("serialisation", end - spent.serialisation, end)], end - spent.serialisation
        for name in ("timeouts", "retransmission", "queueing", "sharing"):
            length: int = getattr(spent, name)
            found.append((name, at - length, at))
            at -= length
        soft = min(self._latency, released - start)
        return [*found, ("serialisation", released - soft, released), ("scheduler", start, released - soft)]

    def _before(self, process: int, now: int) -> Iterator[tuple[int, int, int]]:
        """(event waited for, or -1 where it computed; from, to): what a process had done by a time, backwards."""
        course = self.played.courses[process]
        for place in range(bisect_right(course.end, now) - 1, -1, -1):
            if course.event[place] != IDLE:
                yield course.event[place], course.begin[place], course.end[place]


def _clipped(stretches: Sequence[tuple[str, int, int]], begin: int) -> Iterator[tuple[str, int, int]]:
    for cause, low, high in stretches:
        if high > max(low, begin):
            yield cause, max(low, begin), high


@dataclass(frozen=True, repr=False)
class Breakdown:
    """All iterations of a Result that are over.

    Attributes
    ----------
    rows : by job, worker and iteration: `job` (its name), `worker`, `iteration`, `start_ps`, `end_ps`, and a part for
        each of PARTS, `computing_ps` and so on, which add up to `end_ps - start_ps`.
    """

    rows: list[Json]

    @property
    def table(self) -> pyarrow.Table:
        """The same, as a pyarrow table."""
        import pyarrow

        names = ("job", "worker", "iteration", "start_ps", "end_ps", *(f"{each}_ps" for each in PARTS))
        types = [pyarrow.string(), pyarrow.int32(), pyarrow.int32(), *[pyarrow.int64()] * (len(names) - 3)]
        schema = pyarrow.schema(list(zip(names, types, strict=True)))
        return pyarrow.Table.from_pylist(self.rows, schema=schema)

    def means(self, job: str) -> dict[str, float]:
        """Return the mean picoseconds of every part of a job's iterations, by its name in PARTS.

        They are over all workers and the steady state, as comparisons have it; over all iterations where there are
        fewer than three. Empty without any. A table calls `queueing` "waiting: queueing", and so on."""
        mine = [row for row in self.rows if row["job"] == job]
        if not mine:
            return {}
        span = Span.steady(1 + max(row["iteration"] for row in mine))
        those = [row for row in mine if span.first <= row["iteration"] <= span.last] or mine
        return {part: sum(row[f"{part}_ps"] for row in those) / len(those) for part in PARTS}

    @property
    def jobs(self) -> list[str]:
        """The jobs whose iterations these are."""
        return list(dict.fromkeys(row["job"] for row in self.rows))

    def as_dict(self) -> Json:
        """Plain values, for JSON: means by job, and all iterations."""
        return {"mean_ps": {job: self.means(job) for job in self.jobs}, "iterations": self.rows}

    def __repr__(self) -> str:
        return f"<Breakdown of {len(self.rows):,} iterations of {', '.join(self.jobs) or 'no job'}>"

    def _repr_html_(self) -> str:
        """What notebooks show: the means of each job."""
        return html_table("mean iteration", self.jobs, breakdown_rows([self.means(job) for job in self.jobs]))


def breakdown_rows(means: Sequence[Mapping[str, float]]) -> list[TableRow]:
    """A table of means, cells in the order of `means`: parts that are there anywhere, and their sum."""
    shown = [part for part in PARTS if any(each[part] for each in means)]
    rows = [TableRow(WORDS[part], [_cell(each, part) for each in means]) for part in shown]
    return [*rows, TableRow("iteration", [time_text(sum(each.values())) for each in means], True)]


def _cell(means: Mapping[str, float], part: str) -> str:
    if not means[part]:
        return "-"
    return f"{time_text(means[part])} ({share_text(means[part] / sum(means.values()))})"


def breakdown(source: Result | str | Path, trace: Trace | str | Path | None = None) -> Breakdown:
    """What every iteration of a simulated Result, or of the directory of one, was spent on.

    Parameters
    ----------
    trace : what its jobs replayed, if that was given to `simulate` and is not named by its scenario.

    Raises
    ------
    ResultError
        It was made on real sockets, has iterations that were not simulated, does not hold its scenario, or its trace or
        a file is another one now, or gone.
    """
    return of(ran(source, trace))


def of(found: Ran) -> Breakdown:
    """The same, of what has been made again already."""
    traffic, lost = Traffic(found), Lost(found)
    rows: list[Json] = []
    for played in found.played:
        walk = Walk(played, MessageTimes(played, traffic, lost), found.latency)
        for row in found.iterations_of(played.name):
            rows.append(_row(played, walk, row))
    return Breakdown(sorted(rows, key=lambda row: (row["job"], row["worker"], row["iteration"])))


def _row(played: Played, walk: Walk, row: Json) -> Json:
    course = played.courses[played.workers.index(row["worker"])]
    parts = {"computing": row["compute_ps"], **dict.fromkeys(CAUSES, 0)}
    for place in course.within(row["start_ps"], row["end_ps"]):
        if course.event[place] >= 0:
            for cause, length in walk.wait(course.event[place], course.begin[place], course.end[place]).items():
                parts[cause] += length
    taken = row["end_ps"] - row["start_ps"]
    if sum(parts.values()) != taken:
        what = f"has times of worker {row['worker']} in iteration {row['iteration']} that do not add up"
        raise ResultError(what, "iterations.parquet", "the tables as the run has written them")
    return {
        "job": played.name, "worker": row["worker"], "iteration": row["iteration"], "start_ps": row["start_ps"],
        "end_ps": row["end_ps"], **{f"{name}_ps": int(length) for name, length in parts.items()},
    }  # fmt: skip

