"""Extracts host roles, messages on tracks, sampled queues and drops from a Result for the timelines of other modules.

`gradwire.analysis.timeline.timeline` writes them for Perfetto, `gradwire.analysis.report.lanes` for a page. Worker
activities are in `gradwire.analysis.breakdown.worker_activity`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from heapq import heappop, heappush
from typing import Any, NamedTuple

import numpy as np

from gradwire.analysis.breakdown.result_context import ResultContext
from gradwire.result_store.arrow import to_numpy
from gradwire.result_store.lazy_table import dictionary_encoded
from gradwire.result_store.table_schema import KINDS
from gradwire.scenarios.arrays import AnyInts
from gradwire.scenarios.errors import ResultError

Window = tuple[int, int]
"""Begin and end, picoseconds, both included."""
Iterations = tuple[int, int]
"""First iteration and end (exclusive), of every job."""


def window_of(context: ResultContext, iterations: Iterations | None) -> Window:
    """Return the period of some iterations of all jobs, by default of the run; raise ResultError if there are none."""
    totals = context.result.summary.get("totals", {})
    if iterations is None:
        return 0, max(int(totals.get("simulated_ps", 0)), int(context.columns["end_ps"].max(initial=0)))
    rows = context.result.iterations
    number = to_numpy(rows["iteration"])
    selected = (number >= iterations[0]) & (number < iterations[1])
    if not selected.any():
        known = f"0:{int(number.max()) + 1}" if len(number) else "no range: no iteration is complete"
        raise ResultError(f"has no iterations {iterations[0]}:{iterations[1]}", context.where, known)
    return int(to_numpy(rows["start_ps"])[selected].min()), int(to_numpy(rows["end_ps"])[selected].max())


def messages_of(context: ResultContext, iterations: Iterations | None, window: Window) -> Any:
    """Return the rows of the messages of some iterations, and of traffic meanwhile, in order of their start."""
    columns = context.columns
    selected = columns["start_ps"] >= 0
    if iterations is not None:
        jobs = [table.name for table in context.scenario.job]
        of_job = np.array([name in jobs for name in columns["jobs"]] + [False])[columns["job"]]
        inside = (columns["iteration"] >= iterations[0]) & (columns["iteration"] < iterations[1])
        selected &= np.where(of_job, inside, _meanwhile(context, window))
    return _in_order(context, selected)


def under_way(context: ResultContext, window: Window) -> Any:
    """Return the rows of all messages under way within a window, in order of their start."""
    return _in_order(context, (context.columns["start_ps"] >= 0) & _meanwhile(context, window))


def _meanwhile(context: ResultContext, window: Window) -> Any:
    start, end = context.columns["start_ps"], context.columns["end_ps"]
    return (start <= window[1]) & ((end < 0) | (end >= window[0]))


def _in_order(context: ResultContext, selected: Any) -> Any:
    rows = np.flatnonzero(selected)
    return rows[np.lexsort((context.columns["number"][rows], context.columns["start_ps"][rows]))]


def hosts_by_node(context: ResultContext) -> Any:
    """Return, for every node that is a NIC, the number of its host."""
    cards = context.network.cards
    return np.repeat(np.arange(len(cards.hosts)), np.diff(cards.first))


def roles_of(context: ResultContext) -> dict[int, list[str]]:
    """Return the roles of hosts in display order: workers and servers by job, then other communicating hosts, without
    any.
    """
    roles: dict[int, list[str]] = {}
    servers = {table.name: places.servers for table, places in zip(context.scenario.job, context.places, strict=True)}
    for job, workers in context.workers.items():
        for role, hosts in (("worker" if job in servers else "rank", workers), ("server", servers.get(job, ()))):
            for number, host in enumerate(hosts):
                roles.setdefault(int(host), []).append(f"{job} {role} {number}")
    host_of = hosts_by_node(context)
    ends = set(context.columns["src"].tolist()) | set(context.columns["dst"].tolist())
    for host in sorted({int(host_of[node]) for node in ends if node >= 0} - set(roles)):
        roles[host] = []
    return roles


class Tracks:
    """Tracks of one host; messages on a track follow each other."""

    def __init__(self) -> None:
        self._busy: list[tuple[int, int]] = []  # (free from, track)
        self._free: list[int] = []
        self.count = 0

    def take(self, start: int, until: int) -> int:
        """Return the first track that is free for a message from `start` to `until`; starts must not decrease."""
        while self._busy and self._busy[0][0] <= start:
            heappush(self._free, heappop(self._busy)[1])
        track = heappop(self._free) if self._free else self.count
        self.count = max(self.count, track + 1)
        heappush(self._busy, (max(until, start + 1), track))
        return track


class QueueSamples(NamedTuple):
    """Queue of a port over time: bytes from each time (ps) on."""

    port: str
    times: list[int]
    sizes: list[int]


def queues_of(context: ResultContext, window: Window, ports: int) -> Iterator[QueueSamples]:
    """Yield the sampled queues of the `ports` with the longest ones; a missing sample means an empty queue."""
    table = context.result.select("samples", "port", "time_ps", "queue_bytes")
    port, names = dictionary_encoded(table["port"])
    time, queue = (to_numpy(table[name]) for name in ("time_ps", "queue_bytes"))
    longest = np.zeros(len(names), dtype=np.int64)
    np.maximum.at(longest, port, queue)
    busiest = sorted(range(len(names)), key=lambda index: (-int(longest[index]), names[index]))[:ports]
    period = int(context.result.summary.get("sample_period_ps") or 0)
    for index in busiest:
        rows = np.flatnonzero((port == index) & (time >= window[0]) & (time <= window[1]))
        yield QueueSamples(names[index], *_filled(time[rows].tolist(), queue[rows].tolist(), period))


def _filled(times: list[int], sizes: list[int], period: int) -> tuple[list[int], list[int]]:
    """Insert zeros where a sample is missing after another; without a period return the samples unchanged."""
    if not period:
        return times, sizes
    moments: list[int] = []
    values: list[int] = []
    for time, size, after in zip(times, sizes, [*times[1:], None], strict=False):
        moments.append(time)
        values.append(size)
        if after is None or after - time > period:
            moments.append(time + period)
            values.append(0)
    return moments, values


class Drops(NamedTuple):
    """Packets lost in a window. `cause` and `port` are indices into `causes` and `ports`."""

    time: AnyInts
    cause: AnyInts
    port: AnyInts
    message: AnyInts
    packet: AnyInts
    causes: list[str]
    ports: list[str]


def drops_of(context: ResultContext, window: Window) -> Drops:
    """Return the drops in a window."""
    table = context.result.select("drops", "message", "packet", "port", "time_ps", "cause")
    (port, ports), (cause, causes) = dictionary_encoded(table["port"]), dictionary_encoded(table["cause"])
    time, message, packet = (to_numpy(table[name]) for name in ("time_ps", "message", "packet"))
    rows = np.flatnonzero((time >= window[0]) & (time <= window[1]))
    return Drops(time[rows], cause[rows], port[rows], message[rows], packet[rows], list(causes), list(ports))


def message_namer(context: ResultContext) -> Callable[[int], str]:
    """Return a function that names messages by their row: kind, tensor, part."""
    columns = context.columns
    names: Mapping[str, Sequence[str]] = {
        table.name: [tensor.name for tensor in trace.tensors]
        for table, trace in zip(context.scenario.job, context.traces, strict=True)
    }

    def name(row: int) -> str:
        job, tensor = columns["jobs"][int(columns["job"][row])], int(columns["tensor"][row])
        kind, part = KINDS[int(columns["kind"][row])].replace("_", " "), int(columns["part"][row])
        if tensor >= 0 and job in names:
            return f"{kind} {names[job][tensor]}" + (f" [{part}]" if part else "")
        return f"{kind} {job} {part}"

    return name
