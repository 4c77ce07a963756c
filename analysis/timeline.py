"""Timeline: a run as Chrome trace events, for ui.perfetto.dev and chrome://tracing.

One process per host: what its worker computes (layer by layer), what it waits for, and the messages that it sends, on
as many tracks as are under way at once; in a message when it was held back (ready, not released) and when it was on
its way; an arrow to the receiver's track of arrivals. One process more, the network: queues of the busiest ports
where samples were taken, and drops, as instants on a track per cause.

The format is Google's "Trace Event Format": JSON, times in microseconds. They are written with all six digits, so that
they are exact; sizes are bytes. The file is written event by event, so that memory does not grow with it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from gradwire.analysis.computed import Span, computed
from gradwire.analysis.ran import Ran, ran
from gradwire.scenarios.errors import ResultError
from gradwire.scenarios.json_data import Json
from gradwire.scenarios.kept import numbered
from gradwire.scenarios.output import new_file
from gradwire.scenarios.result import Result

if TYPE_CHECKING:
    from gradwire.traces.trace import Trace

PS_PER_US = 10**6
COMPUTING, WAITING, ARRIVALS, SENDING = 1, 2, 3, 10
"""Numbers of tracks; from SENDING on those of messages."""
MARK = "gradwire timeline of a run"
PORTS = 16
"""Ports of which queues are drawn, unless it is said otherwise."""
MOST = 200_000
"""Messages in a file, unless it is said otherwise: about 1 kB each."""
NETWORK = "network"


@dataclass
class Written:
    """What a file holds. `note` says what it does not, and why."""

    path: Path
    messages: int = 0
    spans: int = 0
    drops: int = 0
    samples: int = 0
    note: str = ""


def timeline(
    source: Result | str | Path,
    out: str | Path,
    *,
    iterations: tuple[int, int] | None = None,
    most: int = MOST,
    ports: int = PORTS,
    trace: Trace | None = None,
) -> Written:
    """Write the timeline of a Result, or of the directory of one, to the new file `out`.

    Parameters
    ----------
    iterations : only these, from the first to before the second, of every job; drops, samples and flows of traffic of
        the time that they take.
    most : messages that are written at most, and drops.
    ports : how many of the busiest ports have their queue drawn.
    trace : what its jobs replayed, if that was given to `simulate` and is not named by its scenario.

    Raises
    ------
    ResultError
        There are more messages than `most`, no such iterations, `out` exists or cannot be written, or the Result cannot
        be made again (see `gradwire.analysis.breakdown.breakdown`; those of real sockets can).
    """
    found = ran(source, trace)
    window = _window(found, iterations)
    chosen = _chosen(found, iterations, window)
    if len(chosen) > most:
        advice = "--iterations A:B with fewer of them, or a larger --most"
        raise ResultError(f"has {len(chosen):,} messages, and {most:,} are written at most", found.where, advice)
    with new_file(out) as partial, partial.open("w", encoding="utf-8") as file:
        writing = _Writing(file, found, Path(out))
        writing.names()
        writing.workers(window)
        writing.messages(chosen)
        writing.network(window, ports, most)
        writing.close()
    return writing.written


Window = tuple[int, int]


def _window(found: Ran, iterations: tuple[int, int] | None) -> Window:
    """The time that is drawn, picoseconds, both ends included."""
    totals = found.result.summary.get("totals", {})
    if iterations is None:
        return 0, max(int(totals.get("simulated_ps", 0)), int(found.columns["end_ps"].max(initial=0)))
    rows = found.result.iterations
    number = rows["iteration"].to_numpy()
    mine = (number >= iterations[0]) & (number < iterations[1])
    if not mine.any():
        known = f"0:{int(number.max()) + 1}" if len(number) else "none: no iteration was over"
        raise ResultError(f"has no iterations {iterations[0]}:{iterations[1]}", found.where, known)
    return int(rows["start_ps"].to_numpy()[mine].min()), int(rows["end_ps"].to_numpy()[mine].max())


def _chosen(found: Ran, iterations: tuple[int, int] | None, window: Window) -> Any:
    """Rows of the messages that are drawn, in order of their start."""
    columns = found.columns
    mine = columns["start_ps"] >= 0
    if iterations is not None:
        jobs = [table.name for table in found.scenario.job]
        of_job = np.array([name in jobs for name in columns["jobs"]] + [False])[columns["job"]]
        inside = (columns["iteration"] >= iterations[0]) & (columns["iteration"] < iterations[1])
        meanwhile = (columns["start_ps"] <= window[1]) & ((columns["end_ps"] < 0) | (columns["end_ps"] >= window[0]))
        mine &= np.where(of_job, inside, meanwhile)
    rows = np.flatnonzero(mine)
    return rows[np.lexsort((columns["number"][rows], columns["start_ps"][rows]))]


class _Writing:
    """A file as it grows."""

    def __init__(self, file: IO[str], found: Ran, out: Path) -> None:
        self._file, self._found, self.written = file, found, Written(out)
        self._first = True
        cards = found.network.cards
        self._host_of = np.repeat(np.arange(len(cards.hosts)), np.diff(cards.first))  # by node
        self._network = len(cards.hosts) + 1
        summary = found.result.summary
        head = {"format": MARK, "name": str(summary.get("name", "")), "policy": str(summary.get("policy", ""))}
        file.write(f'{{"displayTimeUnit": "ns", "otherData": {json.dumps(head)}, "traceEvents": [')

    def put(self, event: Json, at: int | None = None, lasts: int | None = None) -> None:
        """One event; times are picoseconds, and are written as microseconds with all their digits."""
        text = json.dumps(event)[:-1]
        for name, value in (("ts", at), ("dur", lasts)):
            if value is not None:
                text += f', "{name}": {value // PS_PER_US}.{value % PS_PER_US:06d}'
        self._file.write(("\n" if self._first else ",\n") + text + "}")
        self._first = False

    def close(self) -> None:
        self._file.write("\n]}\n")

    # --- who there is -----------------------------------------------------------------------------------------------

    def names(self) -> None:
        """Hosts and what they are, in the order of jobs: workers first."""
        found, roles = self._found, dict[int, list[str]]()
        for table, places in zip(found.scenario.job, found.places, strict=True):
            for role, hosts in (("worker", places.workers), ("server", places.servers)):
                for number, host in enumerate(hosts):
                    roles.setdefault(int(host), []).append(f"{table.name} {role} {number}")
        ends = set(found.columns["src"].tolist()) | set(found.columns["dst"].tolist())
        used = {int(self._host_of[node]) for node in ends if node >= 0} | set(roles)
        order = [*roles, *sorted(used - set(roles))]
        for place, host in enumerate(order):
            name = found.network.cards.hosts[host]
            title = f"{name}: {', '.join(roles[host])}" if host in roles else name
            self._process(host + 1, title, place)
            for track, text in ((COMPUTING, "computing"), (WAITING, "waiting"), (ARRIVALS, "arrivals")):
                self._track(host + 1, track, text)
        self._process(self._network, NETWORK, len(order))

    def _process(self, number: int, name: str, place: int) -> None:
        self.put({"ph": "M", "pid": number, "name": "process_name", "args": {"name": name}})
        self.put({"ph": "M", "pid": number, "name": "process_sort_index", "args": {"sort_index": place}})

    def _track(self, process: int, number: int, name: str) -> None:
        place = {"ph": "M", "pid": process, "tid": number}
        self.put({**place, "name": "thread_name", "args": {"name": name}})
        self.put({**place, "name": "thread_sort_index", "args": {"sort_index": number}})

    # --- what workers do --------------------------------------------------------------------------------------------

    def workers(self, window: Window) -> None:
        for span in computed(self._found):
            if span.end > window[0] and span.begin < window[1]:
                self._span(span)

    def _span(self, span: Span) -> None:
        track = WAITING if span.kind == "waiting" else COMPUTING
        event = {
            "ph": "X", "pid": int(self._host_of[span.node]) + 1, "tid": track, "name": span.name, "cat": span.kind,
            "args": {"job": span.job, "worker": span.worker, "iteration": span.iteration, **span.more},
        }  # fmt: skip
        self.put(event, span.begin, span.end - span.begin)
        self.written.spans += 1

    # --- messages ---------------------------------------------------------------------------------------------------

    def messages(self, rows: Any) -> None:
        """Each once, on the first track of its host that is free."""
        columns = self._found.columns
        name_of = _namer(self._found)
        busy: dict[int, list[tuple[int, int]]] = {}  # by host: (free from, track)
        free: dict[int, list[int]] = {}
        tracks: dict[int, int] = {}
        last = int(self._found.result.summary.get("totals", {}).get("simulated_ps", 0))
        for row in rows.tolist():
            host = int(self._host_of[columns["src"][row]])
            start, end = int(columns["start_ps"][row]), int(columns["end_ps"][row])
            until = end if end >= 0 else max(last, start)
            lanes, spare = busy.setdefault(host, []), free.setdefault(host, [])
            while lanes and lanes[0][0] <= start:
                heappush(spare, heappop(lanes)[1])
            track = heappop(spare) if spare else tracks.setdefault(host, 0)
            if track == tracks[host]:
                tracks[host] += 1
                self._track(host + 1, SENDING + track, f"messages {track}" if track else "messages")
            heappush(lanes, (max(until, start + 1), track))
            self._message(row, host + 1, SENDING + track, name_of(row), until)
            self.written.messages += 1

    def _message(self, row: int, process: int, track: int, name: str, until: int) -> None:
        columns = self._found.columns
        start, released, end = (int(columns[key][row]) for key in ("start_ps", "released_ps", "end_ps"))
        number = int(columns["number"][row])
        place = {"pid": process, "tid": track}
        args: Json = {key: int(columns[key][row]) for key in ("bytes", "priority", "retransmitted", "timeouts")}
        args |= {
            "message": number, "job": columns["jobs"][int(columns["job"][row])],
            "iteration": int(columns["iteration"][row]), "to": self._found.network.names[int(columns["dst"][row])],
            "lost_bytes": int(columns["bytes"][row] - columns["received_bytes"][row]) if end >= 0 else 0,
        }  # fmt: skip
        if end < 0:
            args["under_way"] = True
        self.put({**place, "ph": "X", "cat": "message", "name": name, "args": args}, start, until - start)
        if released >= 0:
            for text, begin, over in (("held back", start, released), ("on its way", released, until)):
                if over > begin:
                    self.put({**place, "ph": "X", "cat": "part", "name": text}, begin, over - begin)
        if end >= 0:
            there = {"pid": int(self._host_of[columns["dst"][row]]) + 1, "tid": ARRIVALS}
            arrow = {"cat": "arrow", "name": "delivered", "id": number}
            self.put({**place, **arrow, "ph": "s"}, start)
            self.put({**there, "ph": "X", "cat": "arrival", "name": name, "args": {"message": number}}, end, 0)
            self.put({**there, **arrow, "ph": "f", "bp": "e"}, end)

    # --- the network ------------------------------------------------------------------------------------------------

    def network(self, window: Window, ports: int, most: int) -> None:
        notes = [*self._queues(window, ports), *self._drops(window, most)]
        self.written.note = "; ".join(notes)

    def _queues(self, window: Window, ports: int) -> Iterator[str]:
        """Counters of the ports that had the longest queues."""
        table = self._found.result.select("samples", "port", "time_ps", "queue_bytes")
        if not table.num_rows:
            yield "no queues: there are no samples (output.queue_samples)"
            return
        port, names = numbered(table["port"])
        time, queue = (table[name].to_numpy() for name in ("time_ps", "queue_bytes"))
        longest = np.zeros(len(names), dtype=np.int64)
        np.maximum.at(longest, port, queue)
        busiest = sorted(range(len(names)), key=lambda each: (-int(longest[each]), names[each]))[:ports]
        period = int(self._found.result.summary.get("sample_period_ps") or 0)
        for each in busiest:
            mine = np.flatnonzero((port == each) & (time >= window[0]) & (time <= window[1]))
            before = -1
            for row in mine.tolist():
                moment, value = int(time[row]), int(queue[row])
                if before >= 0 and period and moment - before > period:
                    self._queue(names[each], before + period, 0)  # where one is missing nothing waited
                self._queue(names[each], moment, value)
                before = moment
            if before >= 0 and period:
                self._queue(names[each], before + period, 0)

    def _queue(self, port: str, moment: int, value: int) -> None:
        event = {"ph": "C", "pid": self._network, "cat": "queue", "name": f"queue {port}", "args": {"bytes": value}}
        self.put(event, moment)
        self.written.samples += 1

    def _drops(self, window: Window, most: int) -> Iterator[str]:
        table = self._found.result.select("drops", "message", "packet", "port", "time_ps", "cause")
        (port, ports), (cause, causes) = numbered(table["port"]), numbered(table["cause"])
        time, message, packet = (table[name].to_numpy() for name in ("time_ps", "message", "packet"))
        rows = np.flatnonzero((time >= window[0]) & (time <= window[1]))
        if len(rows) > most:
            yield f"{most:,} of {len(rows):,} drops"
            rows = rows[np.argsort(time[rows], kind="stable")][:most]
        for number, name in enumerate(causes):
            self._track(self._network, number + 1, f"drops: {name}")
        for row in rows.tolist():
            event = {
                "ph": "i", "s": "t", "pid": self._network, "tid": int(cause[row]) + 1, "cat": "drop",
                "name": ports[port[row]], "args": {"message": int(message[row]), "packet": int(packet[row])},
            }  # fmt: skip
            self.put(event, int(time[row]))
            self.written.drops += 1


def _namer(found: Ran) -> Callable[[int], str]:
    """What a message is called, by its row: kind, tensor, part."""
    from gradwire.scenarios.result import KINDS

    columns = found.columns
    names: Mapping[str, Sequence[str]] = {
        table.name: [tensor.name for tensor in trace.tensors]
        for table, trace in zip(found.scenario.job, found.traces, strict=True)
    }

    def name(row: int) -> str:
        job, tensor = columns["jobs"][int(columns["job"][row])], int(columns["tensor"][row])
        kind, part = KINDS[int(columns["kind"][row])].replace("_", " "), int(columns["part"][row])
        if tensor >= 0 and job in names:
            return f"{kind} {names[job][tensor]}" + (f" [{part}]" if part else "")
        return f"{kind} {job} {part}"

    return name
