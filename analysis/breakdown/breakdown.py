"""Breakdown of every iteration's time into parts that add up to it exactly.

A worker's iteration is computing and waiting. Each wait is for one event. It is walked backwards, from its end to its
beginning, along the latest cause: the event fired when the last message it needed was delivered; an event had posted
that message; that event fired when ..., and so on, into other workers if need be. Every picosecond of the wait belongs
to one of

    straggler       another worker, whose gradient was needed, was computing
    server          a parameter server was aggregating
    scheduler       a needed message was ready, but its host's scheduler (order, credit) held it back
    sharing         ... was in flight while other messages of its host left by the same NIC
    serialisation   ... its unloaded transfer time: software latency, serialisation, propagation
    queueing        ... was delayed by queues of the network or by its transport
    retransmission  ... one of its packets was lost and retransmitted
    timeouts        ... the same, after a retransmission time-out

`gradwire.analysis.breakdown.message_breakdown` separates the last five. Communication that overlaps with computing is
hidden; it is not in the breakdown.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gradwire.analysis.breakdown.message_breakdown import DroppedPackets, MessageTimes, TrafficBreakdown
from gradwire.analysis.breakdown.program_replay import IDLE, ReplayedProgram
from gradwire.analysis.breakdown.result_context import ResultContext, result_context
from gradwire.analysis.comparison.tables import TableRow as TableRow
from gradwire.analysis.comparison.tables import html_table
from gradwire.analysis.measurement_window import IterationSpan
from gradwire.result_store.result import Result
from gradwire.scenarios.errors import ResultError
from gradwire.scenarios.json_data import Json
from gradwire.scenarios.readable import share_text, time_text

if TYPE_CHECKING:
    import pyarrow

    from gradwire.traces.trace import Trace

CAUSES = ("straggler", "server", "scheduler", "sharing", "serialisation", "queueing", "retransmission", "timeouts")
PARTS = ("computing", *CAUSES)
PART_LABELS: Mapping[str, str] = {"computing": "computing", **{cause: f"waiting: {cause}" for cause in CAUSES}}
"""Labels of the parts in tables and figures, by the keys of `Breakdown.means`."""

Row = dict[str, int]


class WaitWalker:
    """Walks backwards through the waits of one job."""

    def __init__(self, played: ReplayedProgram, times: MessageTimes, latency: int) -> None:
        self.played, self.times, self._latency = played, times, latency

    def wait(self, event: int, begin: int, end: int) -> Row:
        """Split a wait for an event, from `begin` to `end` when it fired, into picoseconds by cause."""
        spent = dict.fromkeys(CAUSES, 0)
        for cause, low, high in self.stretches(event, begin, end):
            spent[cause] += high - low
        return spent

    def stretches(self, event: int, begin: int, end: int) -> Iterator[tuple[str, int, int]]:
        """Yield the non-empty pieces (cause, from, to) of a wait, last one first."""
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
        """Return the pieces of a delivered message's time, last one first."""
        rows = self.played.messages
        start, released, end = (int(rows[name][message]) for name in ("start_ps", "released_ps", "end_ps"))
        spent = self.times.spent(message)
        pieces, at = [("serialisation", end - spent.serialisation, end)], end - spent.serialisation
        for name in ("timeouts", "retransmission", "queueing", "sharing"):
            length: int = getattr(spent, name)
            pieces.append((name, at - length, at))
            at -= length
        soft = min(self._latency, released - start)
        return [*pieces, ("serialisation", released - soft, released), ("scheduler", start, released - soft)]

    def _before(self, process: int, now: int) -> Iterator[tuple[int, int, int]]:
        """Yield a process's past before a time, latest first: (event waited for or -1 if computing, from, to)."""
        course = self.played.courses[process]
        for index in range(bisect_right(course.end, now) - 1, -1, -1):
            if course.event[index] != IDLE:
                yield course.event[index], course.begin[index], course.end[index]


def _clipped(stretches: Sequence[tuple[str, int, int]], begin: int) -> Iterator[tuple[str, int, int]]:
    for cause, low, high in stretches:
        if high > max(low, begin):
            yield cause, max(low, begin), high


@dataclass(frozen=True, repr=False)
class Breakdown:
    """All completed iterations of a Result.

    rows : by job, worker and iteration: `job` (its name), `worker`, `iteration`, `start_ps`, `end_ps`, and a part for
        each of PARTS, `computing_ps` and so on, which add up to `end_ps - start_ps`.
    """

    rows: list[Json]

    @property
    def table(self) -> pyarrow.Table:
        """The rows as a pyarrow table."""
        import pyarrow

        names = ("job", "worker", "iteration", "start_ps", "end_ps", *(f"{part}_ps" for part in PARTS))
        types = [pyarrow.string(), pyarrow.int32(), pyarrow.int32(), *[pyarrow.int64()] * (len(names) - 3)]
        schema = pyarrow.schema(list(zip(names, types, strict=True)))
        return pyarrow.Table.from_pylist(self.rows, schema=schema)

    def means(self, job: str) -> dict[str, float]:
        """Return the mean picoseconds of every part of a job's iterations, by its name in PARTS. The means are over all
        workers and the steady state, or over all iterations if there are fewer than three. Empty without iterations.
        Tables label `queueing` "waiting: queueing", and so on."""
        job_rows = [row for row in self.rows if row["job"] == job]
        if not job_rows:
            return {}
        span = IterationSpan.steady(1 + max(row["iteration"] for row in job_rows))
        measured = [row for row in job_rows if span.first <= row["iteration"] <= span.last] or job_rows
        return {part: sum(row[f"{part}_ps"] for row in measured) / len(measured) for part in PARTS}

    @property
    def jobs(self) -> list[str]:
        """The names of the jobs with iterations."""
        return list(dict.fromkeys(row["job"] for row in self.rows))

    def as_dict(self) -> Json:
        """Return plain values for JSON: means by job, and all iterations."""
        return {"mean_ps": {job: self.means(job) for job in self.jobs}, "iterations": self.rows}

    def __repr__(self) -> str:
        return f"<Breakdown of {len(self.rows):,} iterations of {', '.join(self.jobs) or 'no job'}>"

    def _repr_html_(self) -> str:
        """Return the notebook view: the mean iteration of each job."""
        return html_table("mean iteration", self.jobs, breakdown_rows([self.means(job) for job in self.jobs]))


def breakdown_rows(means: Sequence[Mapping[str, float]]) -> list[TableRow]:
    """Return a table of means: the parts that occur anywhere, and their sum; cells in the order of `means`."""
    shown = [part for part in PARTS if any(mean[part] for mean in means)]
    rows = [TableRow(PART_LABELS[part], [_cell(mean, part) for mean in means]) for part in shown]
    return [*rows, TableRow("iteration", [time_text(sum(mean.values())) for mean in means], True)]


def _cell(means: Mapping[str, float], part: str) -> str:
    if not means[part]:
        return "-"
    return f"{time_text(means[part])} ({share_text(means[part] / sum(means.values()))})"


def breakdown(source: Result | str | Path, trace: Trace | str | Path | None = None) -> Breakdown:
    """Break down every iteration of a simulated Result, or of a Result's directory.

    trace : the trace that its jobs replayed, if it was passed to `simulate` and is not named in the scenario.

    Raises `ResultError` if the Result is from real sockets, has iterations that were not simulated or does not hold its
    scenario; or its trace or a file has changed or is missing.
    """
    return breakdown_of(result_context(source, trace))


def breakdown_of(found: ResultContext) -> Breakdown:
    """Break down the iterations of a Result whose context is already rebuilt."""
    traffic, lost = TrafficBreakdown(found), DroppedPackets(found)
    rows: list[Json] = []
    for played in found.played:
        walk = WaitWalker(played, MessageTimes(played, traffic, lost), found.latency)
        rows += [_row(played, walk, row) for row in found.iterations_of(played.name)]
    return Breakdown(sorted(rows, key=lambda row: (row["job"], row["worker"], row["iteration"])))


def _row(played: ReplayedProgram, walk: WaitWalker, row: Json) -> Json:
    course = played.courses[played.workers.index(row["worker"])]
    parts = {"computing": row["compute_ps"], **dict.fromkeys(CAUSES, 0)}
    for index in course.within(row["start_ps"], row["end_ps"]):
        if course.event[index] >= 0:
            for cause, length in walk.wait(course.event[index], course.begin[index], course.end[index]).items():
                parts[cause] += length
    duration = row["end_ps"] - row["start_ps"]
    if sum(parts.values()) != duration:
        what = f"has times of worker {row['worker']} in iteration {row['iteration']} that do not add up"
        raise ResultError(what, "iterations.parquet", "the tables as the run has written them")
    identity = {name: row[name] for name in ("worker", "iteration", "start_ps", "end_ps")}
    return {"job": played.name, **identity, **{f"{name}_ps": int(length) for name, length in parts.items()}}
