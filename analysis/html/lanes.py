"""Lanes: some time of a run as plain data for a page - what workers did, every message, queues, drops.

Times are whole ticks since the beginning of the window, a two-millionth of it or so: less than a picture of it can
show when it is zoomed into a thousand times. Columns rise slowly and are written as differences, which keeps a page
with thousands of messages small. What is on a page is decided here, once, and the script draws all of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gradwire.analysis.computed import computed
from gradwire.analysis.happened import (
    Iterations,
    Tracks,
    Window,
    drops_of,
    hosts_by_node,
    queues_of,
    roles_of,
    under_way,
    window_of,
)
from gradwire.analysis.measured import durations, steady_state
from gradwire.analysis.metrics import DROPS
from gradwire.scenarios.json_data import Json
from gradwire.scenarios.readable import time_text
from gradwire.scenarios.result import KINDS

if TYPE_CHECKING:
    from gradwire.analysis.ran import Ran

TICKS = 2_000_000
"""Ticks of a window, about."""
MOST = 12_000
"""Messages of a run on a page; of more than that the first hosts' are drawn, and it is said."""
MOST_FLOWS = 2000
"""Flows, where there are no jobs: so many one after the other."""
PORTS = 8
BINS = 4000
"""Moments that drops are counted at: one of these holds all drops that no screen could tell apart."""
SPANS = ("forward", "backward", "optimizer", "computing", "waiting")
CAUSE_COLUMNS = {
    "tail": "drops_tail", "selective": "drops_selective", "link_loss": "drops_loss", "evicted": "drops_evicted",
    "link_down": "drops_down", "no_route": "drops_no_route",
}  # fmt: skip


def usual_iteration(found: Ran, job: str) -> int | None:
    """The iteration of the steady state whose length is nearest to the mean; None where none is over."""
    numbers, times, _ = durations(found.result, job)
    if not len(numbers):
        return None
    _, chosen = steady_state(numbers)
    numbers, times = (numbers[chosen], times[chosen]) if chosen.any() else (numbers, times)
    each = np.unique(numbers)
    means = np.array([times[numbers == number].mean() for number in each])
    return int(each[np.argmin(np.abs(means - times.mean()))])


class _Texts:
    """Texts that occur often, each once."""

    def __init__(self) -> None:
        self._places: dict[str, int] = {}

    def __call__(self, text: str) -> int:
        return self._places.setdefault(text, len(self._places))

    @property
    def all(self) -> list[str]:
        return list(self._places)


def lanes_of(found: Ran, iteration: int | None = None, most: int = MOST) -> Json:
    """The lanes of the time of one iteration, with all messages that are under way in it, those of the iterations
    before it, too; without any, of the flows in the middle of a run.

    Returns plain values: `what` (in words), `tick_ps`, `length` (ticks), `start_ps`, `texts`, `hosts` (each `name`,
    `role`, `spans`, `tracks`, `messages`), `queues`, `drops`, `notes`. Columns `begin` are differences, and so are
    those of queues and drops.

    Raises
    ------
    ResultError
        There is no such iteration, or nothing was sent.
    """
    iterations = None if iteration is None else (iteration, iteration + 1)
    window, rows, notes = _chosen(found, iterations)
    begin, end = window
    tick = max(1, (end - begin) // TICKS)
    texts = _Texts()
    roles = roles_of(found)
    host_of = hosts_by_node(found)
    senders = host_of[found.columns["src"][rows]]
    shown = _fitting(list(roles), senders, most)
    if len(shown) < len(roles):
        notes.append(f"the first {len(shown)} of {len(roles)} hosts, as a page holds about {most:,} messages of a run")
    spans = _spans(found, window, host_of, tick, texts)
    hosts = [
        {
            "name": found.network.cards.hosts[host], "role": ", ".join(roles[host]),
            "spans": spans.get(host, _columns(("begin", "length", "kind", "text", "more"), [])),
            **_messages(found, rows[senders == host], (begin, tick), host_of, texts),
        }
        for host in shown
    ]  # fmt: skip
    place = {host: number for number, host in enumerate(shown)}
    for each in hosts:
        each["messages"]["to"] = [place.get(host, -1) for host in each["messages"]["to"]]
    return {
        "what": _words(iteration, window), "start_ps": begin, "tick_ps": tick, "length": (end - begin) // tick + 1,
        "hosts": hosts, "queues": _queues(found, window, tick, notes), "drops": _drops(found, window, notes),
        "texts": texts.all, "kinds": [kind.replace("_", " ") for kind in KINDS], "spans": list(SPANS), "notes": notes,
    }  # fmt: skip


def _words(iteration: int | None, window: Window) -> str:
    what = "flows" if iteration is None else f"iteration {iteration}"
    return f"{what}, {time_text(window[1] - window[0])} from {time_text(window[0])} on"


def _chosen(found: Ran, iterations: Iterations | None) -> tuple[Window, Any, list[str]]:
    """(window, rows of messages, what is left out)."""
    window = window_of(found, iterations)
    rows = under_way(found, window)
    if iterations is not None or len(rows) <= MOST_FLOWS:
        return window, rows, []
    first = (len(rows) - MOST_FLOWS) // 2
    rows = rows[first : first + MOST_FLOWS]
    starts, ends = found.columns["start_ps"][rows], found.columns["end_ps"][rows]
    window = int(starts.min()), int(max(starts.max(), np.quantile(ends[ends >= 0], 0.9) if (ends >= 0).any() else 0))
    of = int((found.columns["start_ps"] >= 0).sum())
    return window, rows, [f"{MOST_FLOWS:,} of {of:,} flows, those in the middle of the run"]


def _fitting(hosts: Sequence[int], senders: Any, most: int) -> list[int]:
    """The first hosts, as many as have no more than `most` messages together; one at least."""
    counts = np.cumsum([int((senders == host).sum()) for host in hosts])
    return list(hosts[: max(1, int((counts <= most).sum()))])


def _columns(names: Sequence[str], rows: Sequence[Sequence[int]], rising: Sequence[str] = ()) -> dict[str, Any]:
    """Rows as columns; of those that rise only the differences."""
    table = np.array(rows, dtype=np.int64).reshape(len(rows), len(names))
    return {
        name: (np.diff(table[:, place], prepend=0) if name in rising else table[:, place]).tolist()
        for place, name in enumerate(names)
    }


def _spans(found: Ran, window: Window, host_of: Any, tick: int, texts: _Texts) -> dict[int, Json]:
    """What workers did, by host."""
    rows: dict[int, list[tuple[int, ...]]] = {}
    for span in computed(found, window):
        begin = max(0, span.begin - window[0]) // tick
        end = min(span.end, window[1]) - window[0]
        more = ", ".join(f"{name.removesuffix('_us')} {time_text(value * 1e6)}" for name, value in span.more.items())
        text = span.name if span.kind != "waiting" else f"waits {span.name}"
        row = (begin, end // tick - begin, SPANS.index(span.kind), texts(text), texts(more))
        rows.setdefault(int(host_of[span.node]), []).append(row)
    names = ("begin", "length", "kind", "text", "more")
    return {host: _columns(names, sorted(each), ("begin",)) for host, each in rows.items()}


NAMES = (
    "begin", "held", "sent", "track", "kind", "what", "part", "bytes", "class", "lost", "again", "timeouts", "to",
)  # fmt: skip


def _messages(found: Ran, rows: Any, scale: tuple[int, int], host_of: Any, texts: _Texts) -> Json:
    """The messages of a host: when they were ready, how long they were held back (-1: until now) and on their way (-1:
    they still are), the track, kind, tensor, part, bytes, priority, bytes lost, packets sent again, time-outs, and the
    host that they go to."""
    columns, (begin, tick) = found.columns, scale
    tracks, last = Tracks(), int(found.result.summary.get("totals", {}).get("simulated_ps", 0))
    names = {
        table.name: [tensor.name for tensor in trace.tensors]
        for table, trace in zip(found.scenario.job, found.traces, strict=True)
    }
    wanted = ("start_ps", "released_ps", "end_ps", "job", "tensor", "kind", "part", "bytes", "received_bytes",
              "priority", "retransmitted", "timeouts", "dst")  # fmt: skip
    lines = []
    for line in zip(*(columns[name][rows].tolist() for name in wanted), strict=True):
        start, released, end, job, tensor, kind, part, size, received, priority, again, timeouts, to = line
        track = tracks.take(start, end if end >= 0 else max(last, start))
        at = (start - begin) // tick
        known = released if released >= 0 else start if end >= 0 else -1
        name = columns["jobs"][job]
        what = texts(names[name][tensor] if tensor >= 0 and name in names else name)
        lines.append((
            at, -1 if known < 0 else (known - begin) // tick - at,
            -1 if end < 0 else (end - begin) // tick - max(at, (known - begin) // tick), track, kind, what, part,
            size, priority, size - received if end >= 0 else 0, again, timeouts, int(host_of[to]) if to >= 0 else -1,
        ))  # fmt: skip
    return {"tracks": tracks.count, "messages": _columns(NAMES, lines, ("begin",))}


def _queues(found: Ran, window: Window, tick: int, notes: list[str]) -> list[Json]:
    if not found.result.kept("samples").num_rows:
        notes.append('no queues, as none were sampled (output.queue_samples = "20us" does)')
        return []
    drawn = []
    for queue in queues_of(found, window, PORTS):
        times = [(time - window[0]) // tick for time in queue.times]
        drawn.append({
            "port": queue.port, "peak": max(queue.sizes, default=0), "bytes": queue.sizes,
            "at": np.diff(np.array(times, dtype=np.int64), prepend=0).tolist(),
        })  # fmt: skip
    return [each for each in drawn if each["peak"]]


def _drops(found: Ran, window: Window, notes: list[str]) -> Json:
    """Counts of drops by cause and moment, a moment being one of `BINS` of the window."""
    drops = drops_of(found, window)
    wide = max(1, (window[1] - window[0]) // BINS + 1)
    causes = []
    for number, cause in enumerate(drops.causes):
        moments, counts = np.unique((drops.time[drops.cause == number] - window[0]) // wide, return_counts=True)
        if len(moments):
            ports = np.bincount(drops.port[drops.cause == number], minlength=len(drops.ports))
            top = int(np.argmax(ports))
            causes.append({
                "cause": DROPS.get(CAUSE_COLUMNS.get(cause, ""), cause), "at": np.diff(moments, prepend=0).tolist(),
                "count": counts.tolist(), "total": int(counts.sum()),
                "most": f"{drops.ports[top]} {ports[top] / counts.sum():.0%}",
            })  # fmt: skip
    if causes:
        notes.append(f"drops are counted in steps of {time_text(wide)}")
    return {"wide_ps": wide, "causes": causes}
