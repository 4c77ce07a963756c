"""What happened when in a run, as timelines show it: hosts and their roles, messages on tracks, queues, drops.

`gradwire.analysis.timeline` writes it for Perfetto, `gradwire.analysis.html.lanes` for a page. What workers did is
`gradwire.analysis.computed`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from heapq import heappop, heappush
from typing import Any, NamedTuple

import numpy as np

from gradwire.analysis.ran import Ran
from gradwire.scenarios.arrays import AnyInts
from gradwire.scenarios.arrow import numpy_of
from gradwire.scenarios.errors import ResultError
from gradwire.scenarios.kept import numbered

Window = tuple[int, int]
"""From and to, picoseconds, both included."""
Iterations = tuple[int, int]
"""From the first to before the second, of every job."""


def window_of(found: Ran, iterations: Iterations | None) -> Window:
    """The time that iterations take, of all jobs; without any that of the run. Raises ResultError if there are none."""
    totals = found.result.summary.get("totals", {})
    if iterations is None:
        return 0, max(int(totals.get("simulated_ps", 0)), int(found.columns["end_ps"].max(initial=0)))
    rows = found.result.iterations
    number = numpy_of(rows["iteration"])
    mine = (number >= iterations[0]) & (number < iterations[1])
    if not mine.any():
        known = f"0:{int(number.max()) + 1}" if len(number) else "none: no iteration was over"
        raise ResultError(f"has no iterations {iterations[0]}:{iterations[1]}", found.where, known)
    return int(numpy_of(rows["start_ps"])[mine].min()), int(numpy_of(rows["end_ps"])[mine].max())


def messages_of(found: Ran, iterations: Iterations | None, window: Window) -> Any:
    """Rows of the messages of some iterations, and of traffic meanwhile, in order of their start."""
    columns = found.columns
    mine = columns["start_ps"] >= 0
    if iterations is not None:
        jobs = [table.name for table in found.scenario.job]
        of_job = np.array([name in jobs for name in columns["jobs"]] + [False])[columns["job"]]
        inside = (columns["iteration"] >= iterations[0]) & (columns["iteration"] < iterations[1])
        mine &= np.where(of_job, inside, _meanwhile(found, window))
    return _in_order(found, mine)


def under_way(found: Ran, window: Window) -> Any:
    """Rows of all messages that are under way at some time of a window, in order of their start."""
    return _in_order(found, (found.columns["start_ps"] >= 0) & _meanwhile(found, window))


def _meanwhile(found: Ran, window: Window) -> Any:
    start, end = found.columns["start_ps"], found.columns["end_ps"]
    return (start <= window[1]) & ((end < 0) | (end >= window[0]))


def _in_order(found: Ran, mine: Any) -> Any:
    rows = np.flatnonzero(mine)
    return rows[np.lexsort((found.columns["number"][rows], found.columns["start_ps"][rows]))]


def hosts_by_node(found: Ran) -> Any:
    """Of every node that is a network card, the number of its host."""
    cards = found.network.cards
    return np.repeat(np.arange(len(cards.hosts)), np.diff(cards.first))


def roles_of(found: Ran) -> dict[int, list[str]]:
    """What hosts are, in the order in which they are shown: workers and servers by job, then whoever sends or receives
    besides, with no role."""
    roles: dict[int, list[str]] = {}
    servers = {table.name: places.servers for table, places in zip(found.scenario.job, found.places, strict=True)}
    for job, workers in found.workers.items():
        for role, hosts in (("worker" if job in servers else "rank", workers), ("server", servers.get(job, ()))):
            for number, host in enumerate(hosts):
                roles.setdefault(int(host), []).append(f"{job} {role} {number}")
    host_of = hosts_by_node(found)
    ends = set(found.columns["src"].tolist()) | set(found.columns["dst"].tolist())
    for host in sorted({int(host_of[node]) for node in ends if node >= 0} - set(roles)):
        roles[host] = []
    return roles


class Tracks:
    """Tracks of one host, on each of which one message follows another."""

    def __init__(self) -> None:
        self._busy: list[tuple[int, int]] = []  # (free from, track)
        self._free: list[int] = []
        self.count = 0

    def take(self, start: int, until: int) -> int:
        """The first track that is free for a message from `start` to `until`; starts never fall."""
        while self._busy and self._busy[0][0] <= start:
            heappush(self._free, heappop(self._busy)[1])
        track = heappop(self._free) if self._free else self.count
        self.count = max(self.count, track + 1)
        heappush(self._busy, (max(until, start + 1), track))
        return track


class Queue(NamedTuple):
    """The queue of a port as time goes by: bytes from each moment on, picoseconds."""

    port: str
    times: list[int]
    sizes: list[int]


def queues_of(found: Ran, window: Window, ports: int) -> Iterator[Queue]:
    """The queues of the `ports` that had the longest ones, where samples were taken; where one is missing nothing
    waited."""
    table = found.result.select("samples", "port", "time_ps", "queue_bytes")
    port, names = numbered(table["port"])
    time, queue = (numpy_of(table[name]) for name in ("time_ps", "queue_bytes"))
    longest = np.zeros(len(names), dtype=np.int64)
    np.maximum.at(longest, port, queue)
    busiest = sorted(range(len(names)), key=lambda each: (-int(longest[each]), names[each]))[:ports]
    period = int(found.result.summary.get("sample_period_ps") or 0)
    for each in busiest:
        mine = np.flatnonzero((port == each) & (time >= window[0]) & (time <= window[1]))
        yield Queue(names[each], *_filled(time[mine].tolist(), queue[mine].tolist(), period))


def _filled(times: list[int], sizes: list[int], period: int) -> tuple[list[int], list[int]]:
    """Samples, with nothing where one is missing behind another; nothing if none was taken."""
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
    """Packets that were lost in a time. `cause` and `port` are numbers of `causes` and `ports`."""

    time: AnyInts
    cause: AnyInts
    port: AnyInts
    message: AnyInts
    packet: AnyInts
    causes: list[str]
    ports: list[str]


def drops_of(found: Ran, window: Window) -> Drops:
    """The drops in a window."""
    table = found.result.select("drops", "message", "packet", "port", "time_ps", "cause")
    (port, ports), (cause, causes) = numbered(table["port"]), numbered(table["cause"])
    time, message, packet = (numpy_of(table[name]) for name in ("time_ps", "message", "packet"))
    rows = np.flatnonzero((time >= window[0]) & (time <= window[1]))
    return Drops(time[rows], cause[rows], port[rows], message[rows], packet[rows], list(causes), list(ports))


def namer(found: Ran) -> Callable[[int], str]:
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
