"""`CollectiveLog` is the common form of all logs: the collectives of one job, a row per rank and call.

Readers fill a `LogBuilder` and count in its `skipped` the parts that they leave out. A *call* of a process group is
identified by the group and its sequence number; it has a row for each rank whose log holds it. Logs lack ranks, and
ring buffers have dropped the oldest calls, so a call may lack rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from gradwire.scenarios.arrays import Ints
from gradwire.scenarios.errors import TraceError
from gradwire.scenarios.lazily import np

UNKNOWN = -1
"""In every column: the log does not hold the value."""
KINDS = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "barrier",
    "send",
    "recv",
    "other",
)
POINT_TO_POINT = ("send", "recv")
SYMMETRIC = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier")
"""Kinds in which no member can finish before all members have begun."""
STATES = ("scheduled", "started", "completed")
MAX_NS = 2**62
MAX_RANKS = 1 << 17
"""Ranks of a job; a larger number in a file counts as damage."""
_SIZE = np.int64

COLUMNS = ("rank", "group", "sequence", "kind", "nbytes", "enqueue_ns", "start_ns", "end_ns", "duration_ns", "state")
"""Columns of a log, in the order of `LogBuilder.add`."""


class ProcessGroup(NamedTuple):
    """A process group: its name and description in the log, and its ranks in order; empty if the log has none."""

    name: str
    description: str
    members: tuple[int, ...]

    @property
    def title(self) -> str:
        """The description, if there is one, and the name."""
        return f"{self.description} ({self.name})" if self.description not in ("", self.name) else self.name


@dataclass(frozen=True, eq=False)
class CollectiveLog:
    """Collectives of one job; columns are int64[rows], UNKNOWN where the log lacks the value.

    rank, group, kind, state : global rank; indices into `groups`, KINDS and STATES.
    sequence : number of the call within its group, which all members share.
    nbytes : the whole buffer of a rank: the input of a reduce-scatter, the output of an all-gather.
    enqueue_ns, start_ns, end_ns : on the clock of the rank's host, which may differ from other hosts'.
    duration_ns : from the start of the rank's kernel to its end, so it includes waiting for other ranks.
    hosts : host of each rank, if known. `ranks` : those that have a log. `world_size` : of the job.
    """

    rank: Ints
    group: Ints
    sequence: Ints
    kind: Ints
    nbytes: Ints
    enqueue_ns: Ints
    start_ns: Ints
    end_ns: Ints
    duration_ns: Ints
    state: Ints
    groups: Sequence[ProcessGroup]
    ranks: tuple[int, ...]
    world_size: int
    source: str
    hosts: dict[int, str] = field(default_factory=dict)
    about: dict[str, str] = field(default_factory=dict)
    skipped: Counter[str] = field(default_factory=Counter)

    def __len__(self) -> int:
        return len(self.rank)

    @property
    def missing_ranks(self) -> tuple[int, ...]:
        """Ranks of the job without a log."""
        present = set(self.ranks)
        return tuple(rank for rank in range(self.world_size) if rank not in present)

    def calls(self) -> Iterator[tuple[int, int, Ints]]:
        """Yield (group, sequence, rows) of each call of a collective, by group and sequence. Sends, receives and rows
        without a sequence number are left out."""
        chosen = np.flatnonzero((self.sequence >= 0) & ~np.isin(self.kind, [KINDS.index(k) for k in POINT_TO_POINT]))
        order = chosen[np.lexsort((self.rank[chosen], self.sequence[chosen], self.group[chosen]))]
        keys = np.stack([self.group[order], self.sequence[order]], axis=1)
        edges = np.flatnonzero((keys[1:] != keys[:-1]).any(axis=1)) + 1
        for rows in np.split(order, edges) if len(order) else ():
            yield int(self.group[rows[0]]), int(self.sequence[rows[0]]), rows

    def totals(self) -> dict[str, tuple[int, int]]:
        """Return (rows, bytes) of each kind; bytes of rows with a known size."""
        totals = {}
        for number, kind in enumerate(KINDS):
            rows = self.kind == number
            if rows.any():
                totals[kind] = (int(rows.sum()), int(np.maximum(self.nbytes[rows], 0).sum()))
        return totals


class LogBuilder:
    """Collects the rows of all files of a job; `groups` by name, `skipped` counts what readers leave out."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.rows: list[tuple[int, ...]] = []
        self.groups: dict[str, int] = {}
        self.group_list: list[ProcessGroup] = []
        self.ranks: dict[int, str] = {}  # rank: the file that holds it
        self.hosts: dict[int, str] = {}
        self.about: dict[str, str] = {}
        self.skipped: Counter[str] = Counter()

    def add_rank(self, rank: int, where: str) -> None:
        """Note that a file holds a rank; TraceError if another file holds it, too."""
        if rank >= MAX_RANKS:
            raise TraceError(f"is of rank {rank}", where, f"at most {MAX_RANKS - 1}")
        if rank in self.ranks and self.ranks[rank] != where:
            raise TraceError(f"holds rank {rank}, as {self.ranks[rank]} does", where, "one file per rank of one job")
        self.ranks[rank] = where

    def group(self, key: str, name: str, description: str, members: tuple[int, ...], where: str) -> int:
        """Return the number of a process group; TraceError if files disagree on its members."""
        if members and max(members) >= MAX_RANKS:
            raise TraceError(f"process group {name} has rank {max(members)}", where, f"at most {MAX_RANKS - 1}")
        number = self.groups.get(key)
        if number is None:
            number = self.groups[key] = len(self.group_list)
            self.group_list.append(ProcessGroup(name, description, members))
        known = self.group_list[number]
        if members and not known.members:
            self.group_list[number] = ProcessGroup(name, description, members)
        elif members and known.members != members:
            what = (
                f"process group {known.title} has ranks {_listed(members)}, and in other files {_listed(known.members)}"
            )
            raise TraceError(what, where, "files of one job")
        return number

    def add(self, *row: int) -> None:
        """Add a row with all COLUMNS; values beyond 2**62 become UNKNOWN."""
        self.rows.append(tuple(value if -1 <= value < MAX_NS else UNKNOWN for value in row))

    def finish(self, where: str) -> CollectiveLog:
        """Return the log; TraceError if it has no rows."""
        if not self.rows:
            left_out = ", ".join(f"{count} x {what}" for what, count in (+self.skipped).most_common(5))
            raise TraceError(f"no collectives{f' (left out: {left_out})' if left_out else ''}", where, "at least one")
        columns = np.array(self.rows, dtype=_SIZE).T
        largest = max([max(self.ranks), *(max(group.members, default=0) for group in self.group_list)])
        return CollectiveLog(
            **dict(zip(COLUMNS, columns, strict=True)),
            groups=self.group_list,
            ranks=tuple(sorted(self.ranks)),
            world_size=largest + 1,
            source=self.source,
            hosts=self.hosts,
            about=self.about,
            skipped=self.skipped,
        )


def bus_factor(kind: str, members: int) -> float:
    """Return bus bandwidth divided by bytes / time; the bytes are those of the whole buffer [nccl-tests,
    doc/PERFORMANCE.md]."""
    if kind == "all_reduce":
        return 2 * (members - 1) / members
    if kind in ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"):
        return (members - 1) / members
    return 1.0


def _listed(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks[:8])) + (", ..." if len(ranks) > 8 else "")
