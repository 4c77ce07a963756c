"""Writes the timeline of a run as a file of Chrome trace events, for ui.perfetto.dev and chrome://tracing.

There is one process per host, with its worker's computing (layer by layer), its waits, and the messages that it sends,
on as many tracks as are under way at once. Within a message are the parts "held back" (ready, not released) and "on its
way"; an arrow leads to the receiver's track of arrivals. One more process is the network: sampled queues of the busiest
ports, and drops, as instants on a track per cause.

The format is Google's "Trace Event Format": JSON, times in microseconds, written with all six digits so that they are
exact; sizes in bytes. The file is written event by event, so memory does not grow with it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from gradwire.analysis.breakdown.result_context import ResultContext, result_context
from gradwire.analysis.breakdown.worker_activity import worker_spans
from gradwire.analysis.timeline.event_timeline import (
    Iterations,
    Tracks,
    Window,
    drops_of,
    hosts_by_node,
    message_namer,
    messages_of,
    queues_of,
    roles_of,
    window_of,
)
from gradwire.result_store.folders.output_folder import new_file
from gradwire.result_store.result import Result
from gradwire.scenarios.errors import ResultError
from gradwire.scenarios.json_data import Json
from gradwire.traces.trace import Trace

PS_PER_US = 10**6
COMPUTING, WAITING, ARRIVALS, SENDING = 1, 2, 3, 10
"""Track numbers; messages have those from SENDING on."""
MARK = "gradwire timeline of a run"
DEFAULT_PORTS = 16
"""Default number of ports whose queues are drawn."""
MOST_MESSAGES = 200_000
"""Default maximum of messages in a file, about 1 kB each."""
NETWORK = "network"


@dataclass
class TimelineFile:
    """Content of a timeline file. `note` names omissions and their reasons."""

    path: Path
    messages: int = 0
    spans: int = 0
    drops: int = 0
    samples: int = 0
    note: str = ""


def timeline(
    source: Result | ResultContext | str | Path,
    out: str | Path,
    *,
    iterations: Iterations | None = None,
    most: int = MOST_MESSAGES,
    ports: int = DEFAULT_PORTS,
    trace: Trace | str | Path | None = None,
) -> TimelineFile:
    """Write the timeline of a Result, or of a Result's directory, to the new file `out`.

    iterations : first and end (exclusive), of every job; with the drops, samples and traffic of that period.
    most : maximum number of messages, and of drops.
    ports : number of the busiest ports whose queues are drawn.
    trace : the trace that its jobs replayed, if it was passed to `simulate` and is not named in the scenario.

    Raises `ResultError` if there are more messages than `most`, no such iterations, `out` exists or cannot be written,
    or the Result's context cannot be rebuilt (see `gradwire.analysis.breakdown.breakdown.breakdown`; unlike there,
    Results of real sockets or with repeated iterations are accepted).
    """
    context = result_context(source, trace)
    window = window_of(context, iterations)
    chosen = messages_of(context, iterations, window)
    if len(chosen) > most:
        advice = "--iterations A:B with fewer of them, or a larger --most"
        raise ResultError(f"has {len(chosen):,} messages: more than the limit of {most:,}", context.where, advice)
    with new_file(out) as partial, partial.open("w", encoding="utf-8") as file:
        writing = _Writing(file, context, Path(out))
        writing.names()
        writing.workers(window)
        writing.messages(chosen)
        writing.network(window, ports, most)
        writing.close()
    return writing.written


class _Writing:
    """Writer of one file."""

    def __init__(self, file: IO[str], context: ResultContext, out: Path) -> None:
        self._file, self._found, self.written = file, context, TimelineFile(out)
        self._first = True
        self._host_of = hosts_by_node(context)
        self._network = len(context.network.cards.hosts) + 1
        summary = context.result.summary
        head = {"format": MARK, "name": str(summary.get("name", "")), "policy": str(summary.get("policy", ""))}
        file.write(f'{{"displayTimeUnit": "ns", "otherData": {json.dumps(head)}, "traceEvents": [')

    def put(self, event: Json, at: int | None = None, lasts: int | None = None) -> None:
        """Write one event; times are in picoseconds, written as microseconds with all digits."""
        text = json.dumps(event)[:-1]
        for name, value in (("ts", at), ("dur", lasts)):
            if value is not None:
                text += f', "{name}": {value // PS_PER_US}.{value % PS_PER_US:06d}'
        self._file.write(("\n" if self._first else ",\n") + text + "}")
        self._first = False

    def close(self) -> None:
        self._file.write("\n]}\n")

    # --- hosts ------------------------------------------------------------------------------------------------------

    def names(self) -> None:
        """Write the names of hosts with their roles, in the order of jobs: workers first."""
        found, roles = self._found, roles_of(self._found)
        for index, (host, roles_of_host) in enumerate(roles.items()):
            name = found.network.cards.hosts[host]
            title = f"{name}: {', '.join(roles_of_host)}" if roles_of_host else name
            self._process(host + 1, title, index)
            for track, text in ((COMPUTING, "computing"), (WAITING, "waiting"), (ARRIVALS, "arrivals")):
                self._track(host + 1, track, text)
        self._process(self._network, NETWORK, len(roles))

    def _process(self, number: int, name: str, sort_index: int) -> None:
        self.put({"ph": "M", "pid": number, "name": "process_name", "args": {"name": name}})
        self.put({"ph": "M", "pid": number, "name": "process_sort_index", "args": {"sort_index": sort_index}})

    def _track(self, process: int, number: int, name: str) -> None:
        track = {"ph": "M", "pid": process, "tid": number}
        self.put({**track, "name": "thread_name", "args": {"name": name}})
        self.put({**track, "name": "thread_sort_index", "args": {"sort_index": number}})

    # --- workers ----------------------------------------------------------------------------------------------------

    def workers(self, window: Window) -> None:
        for span in worker_spans(self._found, window):
            track = WAITING if span.kind == "waiting" else COMPUTING
            args = {"job": span.job, "worker": span.worker, "iteration": span.iteration, **span.more}
            event = {"ph": "X", "pid": int(self._host_of[span.node]) + 1, "tid": track, "name": span.name}
            self.put({**event, "cat": span.kind, "args": args}, span.begin, span.end - span.begin)
            self.written.spans += 1

    # --- messages ---------------------------------------------------------------------------------------------------

    def messages(self, rows: Any) -> None:
        """Write each message once, on the first free track of its host."""
        columns = self._found.columns
        name_of = message_namer(self._found)
        tracks: dict[int, Tracks] = {}
        last = int(self._found.result.summary.get("totals", {}).get("simulated_ps", 0))
        for row in rows.tolist():
            host = int(self._host_of[columns["src"][row]])
            start, end = int(columns["start_ps"][row]), int(columns["end_ps"][row])
            until = end if end >= 0 else max(last, start)
            host_tracks = tracks.setdefault(host, Tracks())
            before = host_tracks.count
            track = host_tracks.take(start, until)
            if host_tracks.count > before:
                self._track(host + 1, SENDING + track, f"messages {track}" if track else "messages")
            self._message(row, host + 1, SENDING + track, name_of(row), until)
            self.written.messages += 1

    def _message(self, row: int, process: int, track: int, name: str, until: int) -> None:
        columns = self._found.columns
        start, released, end = (int(columns[key][row]) for key in ("start_ps", "released_ps", "end_ps"))
        number = int(columns["number"][row])
        location = {"pid": process, "tid": track}
        args: Json = {key: int(columns[key][row]) for key in ("bytes", "priority", "retransmitted", "timeouts")}
        args |= {
            "message": number,
            "job": columns["jobs"][int(columns["job"][row])],
            "iteration": int(columns["iteration"][row]),
            "to": self._found.network.names[int(columns["dst"][row])],
            "lost_bytes": int(columns["bytes"][row] - columns["received_bytes"][row]) if end >= 0 else 0,
        }
        if end < 0:
            args["under_way"] = True
        self.put({**location, "ph": "X", "cat": "message", "name": name, "args": args}, start, until - start)
        if released >= 0:
            for text, begin, finish in (("held back", start, released), ("on its way", released, until)):
                if finish > begin:
                    self.put({**location, "ph": "X", "cat": "part", "name": text}, begin, finish - begin)
        if end >= 0:
            arrival_location = {"pid": int(self._host_of[columns["dst"][row]]) + 1, "tid": ARRIVALS}
            arrow = {"cat": "arrow", "name": "delivered", "id": number}
            self.put({**location, **arrow, "ph": "s"}, start)
            arrival = {"ph": "X", "cat": "arrival", "name": name, "args": {"message": number}}
            self.put({**arrival_location, **arrival}, end, 0)
            self.put({**arrival_location, **arrow, "ph": "f", "bp": "e"}, end)

    # --- the network ------------------------------------------------------------------------------------------------

    def network(self, window: Window, ports: int, most: int) -> None:
        self.written.note = "; ".join([*self._queues(window, ports), *self._drops(window, most)])

    def _queues(self, window: Window, ports: int) -> Iterator[str]:
        if not self._found.result.stored_rows("samples").num_rows:
            yield "no queues: there are no samples (enable output.queue_samples)"
            return
        for queue in queues_of(self._found, window, ports):
            event: Json = {"ph": "C", "pid": self._network, "cat": "queue", "name": f"queue {queue.port}"}
            for moment, value in zip(queue.times, queue.sizes, strict=True):
                self.put({**event, "args": {"bytes": value}}, moment)
            self.written.samples += len(queue.times)

    def _drops(self, window: Window, most: int) -> Iterator[str]:
        drops = drops_of(self._found, window)
        rows = np.arange(len(drops.time))
        if len(rows) > most:
            yield f"only {most:,} of {len(rows):,} drops"
            rows = np.argsort(drops.time, kind="stable")[:most]
        for number, name in enumerate(drops.causes):
            self._track(self._network, number + 1, f"drops: {name}")
        for row in rows.tolist():
            event = {"ph": "i", "s": "t", "pid": self._network, "tid": int(drops.cause[row]) + 1, "cat": "drop"}
            args = {"message": int(drops.message[row]), "packet": int(drops.packet[row])}
            self.put({**event, "name": drops.ports[drops.port[row]], "args": args}, int(drops.time[row]))
        self.written.drops += len(rows)
