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
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from gradwire.analysis.computed import Span, computed
from gradwire.analysis.happened import (
    Iterations,
    Tracks,
    Window,
    drops_of,
    hosts_by_node,
    messages_of,
    namer,
    queues_of,
    roles_of,
    window_of,
)
from gradwire.analysis.ran import Ran, ran
from gradwire.scenarios.errors import ResultError
from gradwire.scenarios.json_data import Json
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
    iterations: Iterations | None = None,
    most: int = MOST,
    ports: int = PORTS,
    trace: Trace | str | Path | None = None,
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
        be made again (see `gradwire.analysis.breakdown.breakdown`; those of real sockets, and with iterations that
        were not simulated, can).
    """
    return write_timeline(ran(source, trace), out, iterations=iterations, most=most, ports=ports)


def write_timeline(
    found: Ran, out: str | Path, *, iterations: Iterations | None = None, most: int = MOST, ports: int = PORTS
) -> Written:
    """The same of what has been made again already."""
    window = window_of(found, iterations)
    chosen = messages_of(found, iterations, window)
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


class _Writing:
    """A file as it grows."""

    def __init__(self, file: IO[str], found: Ran, out: Path) -> None:
        self._file, self._found, self.written = file, found, Written(out)
        self._first = True
        self._host_of = hosts_by_node(found)
        self._network = len(found.network.cards.hosts) + 1
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
        found, roles = self._found, roles_of(self._found)
        for place, (host, its_roles) in enumerate(roles.items()):
            name = found.network.cards.hosts[host]
            title = f"{name}: {', '.join(its_roles)}" if its_roles else name
            self._process(host + 1, title, place)
            for track, text in ((COMPUTING, "computing"), (WAITING, "waiting"), (ARRIVALS, "arrivals")):
                self._track(host + 1, track, text)
        self._process(self._network, NETWORK, len(roles))

    def _process(self, number: int, name: str, place: int) -> None:
        self.put({"ph": "M", "pid": number, "name": "process_name", "args": {"name": name}})
        self.put({"ph": "M", "pid": number, "name": "process_sort_index", "args": {"sort_index": place}})

    def _track(self, process: int, number: int, name: str) -> None:
        place = {"ph": "M", "pid": process, "tid": number}
        self.put({**place, "name": "thread_name", "args": {"name": name}})
        self.put({**place, "name": "thread_sort_index", "args": {"sort_index": number}})

    # --- what workers do --------------------------------------------------------------------------------------------

    def workers(self, window: Window) -> None:
        for span in computed(self._found, window):
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
        name_of = namer(self._found)
        tracks: dict[int, Tracks] = {}
        last = int(self._found.result.summary.get("totals", {}).get("simulated_ps", 0))
        for row in rows.tolist():
            host = int(self._host_of[columns["src"][row]])
            start, end = int(columns["start_ps"][row]), int(columns["end_ps"][row])
            until = end if end >= 0 else max(last, start)
            own = tracks.setdefault(host, Tracks())
            before = own.count
            track = own.take(start, until)
            if own.count > before:
                self._track(host + 1, SENDING + track, f"messages {track}" if track else "messages")
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
        if not self._found.result.kept("samples").num_rows:
            yield "no queues: there are no samples (output.queue_samples)"
            return
        for queue in queues_of(self._found, window, ports):
            for moment, value in zip(queue.times, queue.sizes, strict=True):
                self._queue(queue.port, moment, value)

    def _queue(self, port: str, moment: int, value: int) -> None:
        event = {"ph": "C", "pid": self._network, "cat": "queue", "name": f"queue {port}", "args": {"bytes": value}}
        self.put(event, moment)
        self.written.samples += 1

    def _drops(self, window: Window, most: int) -> Iterator[str]:
        drops = drops_of(self._found, window)
        rows = np.arange(len(drops.time))
        if len(rows) > most:
            yield f"{most:,} of {len(rows):,} drops"
            rows = np.argsort(drops.time, kind="stable")[:most]
        for number, name in enumerate(drops.causes):
            self._track(self._network, number + 1, f"drops: {name}")
        for row in rows.tolist():
            event = {
                "ph": "i", "s": "t", "pid": self._network, "tid": int(drops.cause[row]) + 1, "cat": "drop",
                "name": drops.ports[drops.port[row]],
                "args": {"message": int(drops.message[row]), "packet": int(drops.packet[row])},
            }  # fmt: skip
            self.put(event, int(drops.time[row]))
            self.written.drops += 1
