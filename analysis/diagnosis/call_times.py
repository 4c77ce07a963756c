"""`CallTimes` holds the timed calls of a log: durations per member, and classes of comparable calls.

The last member to begin a collective waits for no other, so the shortest duration of a call is its *transfer time*, and
what a member takes longer is its *wait*. No clocks are compared. Calls are comparable if kind, bytes, number of members
and whether they cross hosts agree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from gradwire.scenarios.arrays import Ints
from gradwire.scenarios.lazily import np
from gradwire.traces.collective_logs.records import KINDS, SYMMETRIC, CollectiveLog

RANKS_PER_HOST = 8
"""Used where the log names no hosts."""


class CallClass(NamedTuple):
    """Comparable calls."""

    kind: str
    nbytes: int
    members: int
    crosses_hosts: bool

    @property
    def title(self) -> str:
        """Such as "all_reduce of 100.0 MB among 64 ranks"."""
        return f"{self.kind} of {size_text(self.nbytes)} among {self.members} ranks"


class TimedCall(NamedTuple):
    """A call with the duration of each present member, in nanoseconds.

    group, sequence : of the log. ranks, durations, enqueued, started : int64 of the present members, by rank.
    is_whole : all members of the group are present.
    """

    group: int
    sequence: int
    kind: CallClass
    ranks: Ints
    durations: Ints
    enqueued: Ints
    started: Ints
    is_whole: bool

    @property
    def transfer(self) -> int:
        """The shortest duration."""
        return int(self.durations.min())


@dataclass(frozen=True, eq=False)
class CallTimes:
    """Timed calls of the kinds in which members wait for each other. host_of : number of the host of each rank."""

    log: CollectiveLog
    calls: Sequence[TimedCall]
    host_of: Ints
    untimed: int

    @cached_property
    def by_class(self) -> dict[CallClass, list[TimedCall]]:
        """Calls by class, the most bytes first."""
        classes: dict[CallClass, list[TimedCall]] = {}
        for call in self.calls:
            classes.setdefault(call.kind, []).append(call)
        return dict(sorted(classes.items(), key=lambda item: -item[0].nbytes))

    @cached_property
    def span_ns(self) -> int:
        """Length of the recording, the median over ranks. Without times it is the longest sum of a rank's durations."""
        log = self.log
        moments = np.where(log.start_ns >= 0, log.start_ns, log.enqueue_ns)
        spans = []
        for rank in log.ranks:
            own = moments[(log.rank == rank) & (moments >= 0)]
            spans += [int(np.ptp(own))] if len(own) else []
        totals = np.bincount(log.rank, np.maximum(log.duration_ns, 0))
        return max(int(np.median(spans)) if spans else int(totals.max(initial=0)), 1)


def call_times(log: CollectiveLog) -> CallTimes:
    """Return the timed calls of a log, each of at least two members."""
    host_of = hosts_of(log)
    symmetric = [KINDS.index(kind) for kind in SYMMETRIC]
    calls = []
    untimed = 0
    for group, sequence, rows in log.calls():
        kinds = log.kind[rows]
        if kinds[0] not in symmetric or (kinds != kinds[0]).any():
            continue
        timed = rows[log.duration_ns[rows] >= 0]
        untimed += len(rows) - len(timed)
        if len(timed) < 2:
            continue
        members = log.groups[group].members
        involved = np.array(members) if members else log.rank[rows]
        kind = CallClass(
            KINDS[kinds[0]], int(log.nbytes[timed].max()), len(involved), len(set(host_of[involved].tolist())) > 1
        )
        calls.append(
            TimedCall(
                group,
                sequence,
                kind,
                log.rank[timed],
                log.duration_ns[timed],
                log.enqueue_ns[timed],
                log.start_ns[timed],
                bool(members) and len(timed) == len(members),
            )
        )
    return CallTimes(log, calls, host_of, untimed)


def hosts_of(log: CollectiveLog) -> Ints:
    """Return the number of each rank's host; where the log names none, hosts of RANKS_PER_HOST ranks."""
    names = [log.hosts.get(rank, "") for rank in range(log.world_size)]
    if not any(names):
        return np.arange(log.world_size) // RANKS_PER_HOST
    first = {name: rank for rank, name in reversed(list(enumerate(names))) if name}
    return np.array([first.get(name, log.world_size + rank // RANKS_PER_HOST) for rank, name in enumerate(names)])


def size_text(nbytes: int) -> str:
    """Return bytes for people: 100.0 MB."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if nbytes >= size:
            return f"{nbytes / size:.1f} {unit}"
    return f"{nbytes} B" if nbytes >= 0 else "unknown size"
