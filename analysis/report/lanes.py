"""`lanes_of` collects one period of a run (worker activities, messages, queues, drops) as plain data for the HTML
timeline.

Times are whole ticks since the beginning of the window. A tick is about a two-millionth of the window, less than is
visible at a zoom of a thousand. Columns that rise slowly are written as differences, which keeps a page with thousands
of messages small. The content of the page is decided here; the script draws all of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gradwire.analysis.breakdown.result_context import ResultContext
from gradwire.analysis.breakdown.worker_activity import worker_spans
from gradwire.analysis.measurement_window import durations, steady_state
from gradwire.analysis.metrics import DROPS
from gradwire.analysis.timeline.event_timeline import (
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
from gradwire.result_store.table_schema import KINDS
from gradwire.scenarios.json_data import Json
from gradwire.scenarios.readable import time_text

TICKS = 2_000_000
"""Approximate number of ticks in a window."""
MOST = 12_000
"""Messages of a run on a page; beyond that only those of the first hosts are drawn, with a note."""
FOLDED_FROM = 16
"""Hosts of a run beyond which the timeline shows those of the median and of the slowest worker first (our choice)."""
MOST_FLOWS = 2000
"""Successive flows on a page if there are no jobs."""
PORTS = 8
BINS = 4000
"""Time bins in which drops are counted, finer than a screen can resolve."""
SPANS = ("forward", "backward", "optimizer", "computing", "waiting")


def typical_iteration(context: ResultContext, job: str) -> int | None:
    """Return the steady-state iteration whose duration is nearest to the mean; None if none is complete."""
    numbers, times, _ = durations(context.result, job)
    if not len(numbers):
        return None
    _, chosen = steady_state(numbers)
    numbers, times = (numbers[chosen], times[chosen]) if chosen.any() else (numbers, times)
    unique = np.unique(numbers)
    means = np.array([times[numbers == number].mean() for number in unique])
    return int(unique[np.argmin(np.abs(means - times.mean()))])


def _typical_hosts(context: ResultContext, iteration: int | None) -> dict[int, str]:
    """Return the hosts of the median and of the slowest worker in an iteration, of each job, with that word."""
    typical: dict[int, str] = {}
    rows = [row for row in context.result.iterations.to_pylist() if row["iteration"] == iteration]
    for job in dict.fromkeys(row["job"] for row in rows):
        workers = context.workers.get(job, [])
        times = sorted((row["end_ps"] - row["start_ps"], row["worker"]) for row in rows if row["job"] == job)
        for word, (_, worker) in (("median", times[(len(times) - 1) // 2]), ("slowest", times[-1])):
            if worker < len(workers):
                typical.setdefault(workers[worker], word)
    return typical


class _Texts:
    """Pool of texts, each stored once."""

    def __init__(self) -> None:
        self._index_of: dict[str, int] = {}

    def __call__(self, text: str) -> int:
        return self._index_of.setdefault(text, len(self._index_of))

    @property
    def unique_texts(self) -> list[str]:
        return list(self._index_of)


def lanes_of(context: ResultContext, iteration: int | None = None, most: int = MOST) -> Json:
    """Return the lanes of one iteration, or without any of the flows in the middle of a run.

    All messages that are under way in it are included, also those of earlier iterations. The plain values are: `what`
    (in words), `tick_ps`, `length` (ticks), `start_ps`, `texts`, `hosts` (each `name`, `role`, `folded`, `spans`,
    `tracks`, `messages`), `queues`, `drops`, `notes`. Columns `begin` are differences, and so are those of queues and
    drops.

    Raises `ResultError` if the iteration does not exist, or no message was sent.
    """
    iterations = None if iteration is None else (iteration, iteration + 1)
    window, rows, notes = _chosen(context, iterations)
    begin, end = window
    tick = max(1, (end - begin) // TICKS)
    what = "flows" if iteration is None else f"iteration {iteration}"
    texts = _Texts()
    roles = roles_of(context)
    host_of = hosts_by_node(context)
    senders = host_of[context.columns["src"][rows]]
    typical = _typical_hosts(context, iteration) if len(roles) > FOLDED_FROM else {}
    order = sorted(roles, key=lambda host: host not in typical)
    counts = np.cumsum([int((senders == host).sum()) for host in order])
    kept = set(order[: max(1, int((counts <= most).sum()))])  # at least one host
    shown = [host for host in roles if host in kept]
    if len(shown) < len(roles):
        notes.append(f"shown are {len(shown)} of {len(roles)} hosts: a page holds about {most:,} messages of a run")
    spans = _spans(context, window, host_of, tick, texts)
    hosts = [
        {
            "name": context.network.cards.hosts[host],
            "role": ", ".join([*roles[host], *([typical[host]] if host in typical else [])]),
            "folded": bool(typical) and host not in typical,
            "spans": spans.get(host, _columns(SPAN_COLUMNS, [])),
            **_messages(context, rows[senders == host], (begin, tick), host_of, texts),
        }
        for host in shown
    ]
    index_of = {host: number for number, host in enumerate(shown)}
    for lane in hosts:
        lane["messages"]["to"] = [index_of.get(host, -1) for host in lane["messages"]["to"]]
    return {
        "what": f"{what}, {time_text(end - begin)} from {time_text(begin)} on",
        "start_ps": begin,
        "tick_ps": tick,
        "length": (end - begin) // tick + 1,
        "hosts": hosts,
        "queues": _queues(context, window, tick, notes),
        "drops": _drops(context, window, notes),
        "texts": texts.unique_texts,
        "kinds": [kind.replace("_", " ") for kind in KINDS],
        "spans": list(SPANS),
        "notes": notes,
    }


def _chosen(context: ResultContext, iterations: Iterations | None) -> tuple[Window, Any, list[str]]:
    """Return (window, rows of messages, notes on omissions)."""
    window = window_of(context, iterations)
    rows = under_way(context, window)
    if iterations is not None or len(rows) <= MOST_FLOWS:
        return window, rows, []
    first = (len(rows) - MOST_FLOWS) // 2
    rows = rows[first : first + MOST_FLOWS]
    starts, ends = context.columns["start_ps"][rows], context.columns["end_ps"][rows]
    window = int(starts.min()), int(max(starts.max(), np.quantile(ends[ends >= 0], 0.9) if (ends >= 0).any() else 0))
    of = int((context.columns["start_ps"] >= 0).sum())
    return window, rows, [f"shown are {MOST_FLOWS:,} of {of:,} flows, in the middle of the run"]


def _columns(names: Sequence[str], rows: Sequence[Sequence[int]], rising: Sequence[str] = ()) -> dict[str, Any]:
    """Return rows as columns; those in `rising` as differences."""
    table = np.array(rows, dtype=np.int64).reshape(len(rows), len(names))
    return {
        name: (np.diff(table[:, index], prepend=0) if name in rising else table[:, index]).tolist()
        for index, name in enumerate(names)
    }


def _spans(context: ResultContext, window: Window, host_of: Any, tick: int, texts: _Texts) -> dict[int, Json]:
    rows: dict[int, list[tuple[int, ...]]] = {}
    for span in worker_spans(context, window):
        begin = max(0, span.begin - window[0]) // tick
        end = min(span.end, window[1]) - window[0]
        more = ", ".join(f"{name.removesuffix('_us')} {time_text(value * 1e6)}" for name, value in span.more.items())
        text = span.name if span.kind != "waiting" else f"waits {span.name}"
        row = (begin, end // tick - begin, SPANS.index(span.kind), texts(text), texts(more))
        rows.setdefault(int(host_of[span.node]), []).append(row)
    return {host: _columns(SPAN_COLUMNS, sorted(spans), ("begin",)) for host, spans in rows.items()}


SPAN_COLUMNS = ("begin", "length", "kind", "text", "more")
MESSAGE_COLUMNS = tuple("begin held sent track kind what part bytes class lost again timeouts to".split())


def _messages(context: ResultContext, rows: Any, scale: tuple[int, int], host_of: Any, texts: _Texts) -> Json:
    """Return the messages of a host as columns. These are: when ready; how long held back (-1: until now); how long in
    flight (-1: still is); track, kind, tensor, part, bytes, priority, bytes lost, retransmissions, time-outs,
    receiver."""
    columns, (begin, tick) = context.columns, scale
    tracks, last = Tracks(), int(context.result.summary.get("totals", {}).get("simulated_ps", 0))
    names = {
        table.name: [tensor.name for tensor in trace.tensors]
        for table, trace in zip(context.scenario.job, context.traces, strict=True)
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
    return {"tracks": tracks.count, "messages": _columns(MESSAGE_COLUMNS, lines, ("begin",))}


def _queues(context: ResultContext, window: Window, tick: int, notes: list[str]) -> list[Json]:
    if not context.result.stored_rows("samples").num_rows:
        notes.append('no queues: none were sampled (output.queue_samples = "20us" enables it)')
        return []
    drawn = []
    for queue in queues_of(context, window, PORTS):
        if peak := max(queue.sizes, default=0):
            at = np.diff((np.array(queue.times, dtype=np.int64) - window[0]) // tick, prepend=0).tolist()
            drawn.append({"port": queue.port, "peak": peak, "bytes": queue.sizes, "at": at})
    return drawn


def _drops(context: ResultContext, window: Window, notes: list[str]) -> Json:
    """Return counts of drops by cause and time bin, a window having `BINS` bins."""
    drops = drops_of(context, window)
    wide = max(1, (window[1] - window[0]) // BINS + 1)
    causes = []
    for number, cause in enumerate(drops.causes):
        moments, counts = np.unique((drops.time[drops.cause == number] - window[0]) // wide, return_counts=True)
        if len(moments):
            ports = np.bincount(drops.port[drops.cause == number], minlength=len(drops.ports))
            top = int(np.argmax(ports))
            causes.append(
                {
                    "cause": words if (words := cause.replace("_", " ")) in DROPS.values() else cause,
                    "at": np.diff(moments, prepend=0).tolist(),
                    "count": counts.tolist(),
                    "total": int(counts.sum()),
                    "most": f"{drops.ports[top]} {ports[top] / counts.sum():.0%}",
                }
            )
    if causes:
        notes.append(f"drops are counted in steps of {time_text(wide)}")
    return {"wide_ps": wide, "causes": causes}
