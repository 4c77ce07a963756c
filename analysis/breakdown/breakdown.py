"""`breakdown` splits each simulated iteration's time into computing and waits by cause, such as queueing; the parts add
up exactly.

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

Communication that overlaps with computing is hidden; it is not in the breakdown.

The last five are parts of a message's time. A message m of a host, released at r (its first packet may leave then) and
delivered at d, has the unloaded transfer time I (`gradwire.workload.unloaded_time`, for the bytes that were delivered).
The rest, X = d - r - I, is split:

1. **recovery**, if packets of m were dropped that its delivery needed. The packet that was dropped last counts, from
   its first drop to d; at most X. It is `timeouts` if the message had a retransmission time-out, else
   `retransmission`. If only control packets were dropped, the first of these drops counts, if there was a time-out.
2. **sharing**: other messages of the host that left by the same NIC meanwhile. Each one delivered before d counts with
   its time on the cable, at most the time both were in flight. Of those delivered later, a more urgent one counts
   the same; one of the same class counts at most as much as m itself (NICs serve messages of a class in turn; those
   of one pair of a transport with connections in sequence: a later one counts nothing); a less urgent one counts
   nothing. At most what is left of X.
3. **queueing**: the rest of X. Waiting in network queues behind other traffic, and delay by the transport (window,
   pacing, credit, pause), which reacts to queues.

All are non-negative integers and add up to d - r. In time they are ordered: sharing, queueing, recovery, and last the
message's own I. (This is a convention; in truth they alternate. It matters if only the end of a message was waited
for.)
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gradwire.analysis.breakdown.program_replay import IDLE, ReplayedProgram
from gradwire.analysis.breakdown.result_context import ResultContext, result_context
from gradwire.analysis.comparison.tables import TableRow, html_table
from gradwire.analysis.measurement_window import IterationSpan
from gradwire.jit.records.constants import FOREVER, SPEED_SHIFT
from gradwire.result_store.arrow import to_numpy
from gradwire.result_store.result import Result
from gradwire.scenarios.arrays import Ints
from gradwire.scenarios.errors import ResultError
from gradwire.scenarios.json_data import Json
from gradwire.scenarios.readable import share_text, time_text
from gradwire.scenarios.wire import ps_per_byte
from gradwire.traces.trace import Trace
from gradwire.workload.unloaded_time import unloaded_times

if TYPE_CHECKING:
    import pyarrow


CAUSES = ("straggler", "server", "scheduler", "sharing", "serialisation", "queueing", "retransmission", "timeouts")
PARTS = ("computing", *CAUSES)
PART_LABELS: Mapping[str, str] = {"computing": "computing", **{cause: f"waiting: {cause}" for cause in CAUSES}}
"""Labels of the parts in tables and figures, by the keys of `Breakdown.means`."""

MOST_HELD = 2000
"""Messages from which the share of `busy_while_held` is computed (our choice)."""

Row = dict[str, int]


class MessageParts(NamedTuple):
    """Parts of a message's time from release to delivery, picoseconds, in this order."""

    sharing: int
    queueing: int
    retransmission: int
    timeouts: int
    serialisation: int


class TrafficBreakdown:
    """All messages of a Result by the NIC they left."""

    def __init__(self, context: ResultContext) -> None:
        self.ran = context
        columns, scenario = context.columns, context.scenario
        kinds = {table.name: scenario.transports[scenario.transport_of(table)] for table in scenario.senders}
        transports = [kinds.get(name) for name in columns["jobs"]]
        overhead = np.array([transport.overhead if transport else 0 for transport in transports] + [0], dtype=np.int64)
        in_turn = np.array([hasattr(transport, "pair_words") for transport in transports] + [False])
        self.in_turn = in_turn[columns["job"]]
        rate = ps_per_byte(context.network.link_rate[context.routing.up_link].astype(object)).astype(np.int64)
        speed = np.append(rate, 0)[columns["src"]]
        self.wire = (columns["bytes"] + columns["packets"] * overhead[columns["job"]]) * speed >> SPEED_SHIFT
        self.end = np.where(columns["end_ps"] >= 0, columns["end_ps"], FOREVER)
        self.released = columns["released_ps"]
        in_flight = np.flatnonzero(self.released >= 0)
        order = in_flight[np.lexsort((self.released[in_flight], columns["src"][in_flight]))]
        self._order = order
        self._first = np.searchsorted(columns["src"][order], np.arange(context.network.host_count + 1))
        self._releases = self.released[order]
        # latest end among the messages of a NIC that were released up to each one: makes overlaps searchable
        self._last_end = np.zeros(len(order), dtype=np.int64)
        for low, high in zip(self._first[:-1].tolist(), self._first[1:].tolist(), strict=True):
            self._last_end[low:high] = np.maximum.accumulate(self.end[order[low:high]])
        self._row_of = {int(number): row for row, number in enumerate(columns["number"].tolist())}

    def sharing(self, number: int) -> int:
        """Return an upper bound of the picoseconds in which a message shared its NIC with others."""
        row, columns = self._row_of[number], self.ran.columns
        begin, end = int(self.released[row]), int(self.end[row])
        others, together = self._others(row, begin, end)
        most = np.minimum(self.wire[others], together)
        urgency = columns["priority"][others] - columns["priority"][row]
        behind = (
            (columns["dst"][others] == columns["dst"][row])
            & (columns["number"][others] > number)
            & self.in_turn[others]
        )
        alike = np.where(behind, 0, np.minimum(most, self.wire[row]))
        later = np.where(urgency < 0, most, np.where(urgency == 0, alike, 0))
        return int(np.where(self.end[others] <= end, most, later).sum())

    def _others(self, row: int, begin: int, end: int) -> tuple[Ints, Ints]:
        """Return the other messages of a message's NIC that were in flight between two times, and for how long."""
        card = int(self.ran.columns["src"][row])
        low, high = self._first[card : card + 2].tolist()
        low += int(np.searchsorted(self._last_end[low:high], begin, side="right"))
        high = low + int(np.searchsorted(self._releases[low:high], end))
        others = self._order[low:high]
        others = others[(self.end[others] > begin) & (others != row)]
        return others, np.minimum(self.end[others], end) - np.maximum(self.released[others], begin)

    def busy_while_held(self, job: str) -> float:
        """Return the share of the time that a job's messages were held back in which their NIC sent others; 0 if none
        was held back. Of many messages, those held longest count."""
        columns = self.ran.columns
        held = np.where(columns["job"] == columns["jobs"].index(job), self.released - columns["start_ps"], 0)
        longest = np.argsort(-held, kind="stable")[:MOST_HELD]
        longest = longest[held[longest] > 0]
        busy = 0
        for row in longest.tolist():
            others, together = self._others(row, int(columns["start_ps"][row]), int(self.released[row]))
            busy += min(int(np.minimum(self.wire[others], together).sum()), int(held[row]))
        return busy / max(1, int(held[longest].sum()))


class DroppedPackets:
    """Dropped packets by message."""

    def __init__(self, context: ResultContext) -> None:
        drops = context.result.select("drops", "message", "packet", "time_ps")
        self.message, self.packet, self.time = (
            to_numpy(drops[name]).astype(np.int64) for name in ("message", "packet", "time_ps")
        )
        order = np.lexsort((self.time, self.message))
        self.message, self.packet, self.time = self.message[order], self.packet[order], self.time[order]
        missing = context.result.select("missing", "message", "packet", "packets")
        self._gone, self._gone_at, self._gone_many = (
            to_numpy(missing[name]).astype(np.int64) for name in ("message", "packet", "packets")
        )
        self._gone_order = np.argsort(self._gone, kind="stable")

    def first_drop_time(self, number: int, timed_out: bool) -> int:
        """Return the time of the first drop of the packet that was dropped last; -1 if no drop counts."""
        packets, times = (
            column[slice(*np.searchsorted(self.message, (number, number + 1)))] for column in (self.packet, self.time)
        )
        data = packets >= 0
        if data.any():
            order = self._gone_order
            low, high = np.searchsorted(self._gone[order], (number, number + 1))
            for row in order[low:high].tolist():
                first = self._gone_at[row]
                data &= (packets < first) | (packets >= first + self._gone_many[row])
            if not data.any():
                return -1
            last = packets[data][int(times[data].argmax())]
            return int(times[packets == last].min())
        return int(times.min()) if timed_out and len(times) else -1


class MessageTimes:
    """Breakdowns of the messages of one job."""

    def __init__(self, played: ReplayedProgram, traffic: TrafficBreakdown, lost: DroppedPackets) -> None:
        self.rows, self.traffic, self.lost = played.messages, traffic, lost
        self._known: dict[int, MessageParts] = {}
        ran, rows = traffic.ran, played.messages
        transport = ran.scenario.transports[played.table.transport]
        self.ideal = np.zeros(0, dtype=np.int64)
        if not len(rows["src"]):
            return
        flows = (ran.network, ran.routing, rows["src"], rows["dst"])
        wire = (transport.payload, transport.overhead, ran.scenario.load_balancing)
        received = np.maximum(rows["received_bytes"], 1)
        self.ideal = unloaded_times(*flows, received, *wire)

    def breakdown(self, message: int) -> MessageParts:
        """Return the breakdown of a delivered message."""
        if message not in self._known:
            self._known[message] = self._breakdown(message)
        return self._known[message]

    def _breakdown(self, message: int) -> MessageParts:
        rows = self.rows
        number, begin, end, timeout_count = (
            int(rows[name][message]) for name in ("number", "released_ps", "end_ps", "timeouts")
        )
        own = min(int(self.ideal[message]), end - begin)
        rest, recovery = end - begin - own, 0
        since = self.lost.first_drop_time(number, timeout_count > 0) if rest else -1
        if 0 <= since < end:
            recovery = min(rest, end - since)
        rest -= recovery
        sharing = min(rest, self.traffic.sharing(number)) if rest else 0
        retransmission, timeouts = (0, recovery) if timeout_count > 0 else (recovery, 0)
        return MessageParts(sharing, rest - sharing, retransmission, timeouts, own)


class WaitWalker:
    """Walks backwards through the waits of one job."""

    def __init__(self, played: ReplayedProgram, times: MessageTimes, latency: int) -> None:
        self.played, self.times, self._latency = played, times, latency

    def wait(self, event: int, begin: int, end: int) -> Row:
        """Split a wait for an event, from `begin` to `end` when it fired, into picoseconds by cause."""
        spent = dict.fromkeys(CAUSES, 0)
        for cause, low, high in self.pieces(event, begin, end):
            spent[cause] += high - low
        return spent

    def pieces(self, event: int, begin: int, end: int) -> Iterator[tuple[str, int, int]]:
        """Yield the non-empty pieces (cause, from, to) of a wait, last one first."""
        played, now = self.played, end
        while now > begin:
            message = int(played.message_of[event])
            if message >= 0:
                yield from _clipped(self._message(message), begin)
                now = int(played.messages["start_ps"][message])
                event = int(played.poster[message])
                continue
            came, cause = played.arrival_of(event)
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
        spent = self.times.breakdown(message)
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
    busy_while_held : by job, `TrafficBreakdown.busy_while_held`.
    """

    rows: list[Json]
    busy_while_held: Mapping[str, float] = field(default_factory=dict)

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


def breakdown(source: Result | ResultContext | str | Path, trace: Trace | str | Path | None = None) -> Breakdown:
    """Break down every iteration of a simulated Result, or of a Result's directory.

    trace : the trace that its jobs replayed, if it was passed to `simulate` and is not named in the scenario.

    Raises `ResultError` if the Result is from real sockets, has iterations that were not simulated or does not hold its
    scenario; or its trace or a file has changed or is missing.
    """
    context = result_context(source, trace)
    traffic, lost = TrafficBreakdown(context), DroppedPackets(context)
    rows: list[Json] = []
    busy: dict[str, float] = {}
    for played in context.replays:
        walk = WaitWalker(played, MessageTimes(played, traffic, lost), context.latency)
        rows += [_row(played, walk, row) for row in context.iterations_of(played.name)]
        busy[played.name] = traffic.busy_while_held(played.name) if played.name in context.columns["jobs"] else 0.0
    return Breakdown(sorted(rows, key=lambda row: (row["job"], row["worker"], row["iteration"])), busy)


def _row(played: ReplayedProgram, walk: WaitWalker, row: Json) -> Json:
    course = played.courses[played.workers.index(row["worker"])]
    parts = {"computing": row["compute_ps"], **dict.fromkeys(CAUSES, 0)}
    for index in course.pieces_between(row["start_ps"], row["end_ps"]):
        if course.event[index] >= 0:
            for cause, length in walk.wait(course.event[index], course.begin[index], course.end[index]).items():
                parts[cause] += length
    duration = row["end_ps"] - row["start_ps"]
    if sum(parts.values()) != duration:
        what = f"has times of worker {row['worker']} in iteration {row['iteration']} that do not add up"
        raise ResultError(what, "iterations.parquet", "the tables as the run has written them")
    identity = {name: row[name] for name in ("worker", "iteration", "start_ps", "end_ps")}
    return {"job": played.name, **identity, **{f"{name}_ps": int(length) for name, length in parts.items()}}
