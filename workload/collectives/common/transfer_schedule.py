"""Schedules a bucket's transfers between ranks (ring, all-to-all, halving, binomial tree), and derives their
dependencies.

A bucket is cut into segments of equal length, and every rank has a buffer of all of them, with its own values at the
beginning. A *transfer* sends a run of segments as they are at its source when it leaves; its destination either adds
them to its own or replaces its own. Such transfers describe a collective completely; its dependencies (`Dependencies`)
follow: a transfer leaves when all those have arrived that were added to its source's segments since they were last
replaced, and, if they never were, when the source has its own values.

So a kind of collective is a few arrays, and can be wrong in one way only: its final segments. `tests/support/
array_cases.py` moves arrays through the schedules to check them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import NamedTuple

from gradwire.scenarios.arrays import Flags, Ints
from gradwire.scenarios.lazily import np
from gradwire.workload.csr import starts_of


@dataclass(frozen=True, eq=False)
class Transfers:
    """Transfers of a bucket, int64[n] each unless stated otherwise, in the order of stages.

    stage : rising; data that arrives at a rank in a stage is part of its sends in later ones.
    src, dst : ranks.
    first, count : the run of segments.
    adds : bool[n]; the destination adds them (on the way to a sum), or replaces its own.
    rail : number of the NIC, at both ends.
    segments : number of segments of a bucket.
    """

    stage: Ints
    src: Ints
    dst: Ints
    first: Ints
    count: Ints
    adds: Flags
    rail: Ints
    segments: int

    def __len__(self) -> int:
        return len(self.stage)

    def fault(self, workers: int, rails: int) -> str:
        """Return a description of the first index that is out of range; empty if there is none."""
        for name, values, below in (
            ("src", self.src, workers),
            ("dst", self.dst, workers),
            ("rail", self.rail, rails),
            ("first", self.first, self.segments),
            ("first + count", self.first + self.count, self.segments + 1),
        ):
            if len(self) and (values.min() < 0 or values.max() >= below):
                return f"{name} from {values.min()} to {values.max()} (the last is {below - 1})"
        return ""


MIN_PIECE_LENGTH = 8
"""Minimum average length of runs, in segments, at which segments are merged into pieces (our choice)."""


class TransferRows(NamedTuple):
    """Some transfers of one stage, as numbers or arrays that are broadcast together."""

    stage: int
    src: int | Ints
    dst: int | Ints
    first: int | Ints
    length: int | Ints
    adds: bool


def transfers(rows: Iterable[TransferRows], segments: int, lanes: int = 1, rails: int | None = None) -> Transfers:
    """Return rows as transfers in the order of their stages; rows of one stage stay in the given order.

    lanes : copies of the schedule side by side, each for a share of the bucket, which is then cut into as many times
        the segments. Transfers of a stage alternate between them.
    rails : NICs, assigned to the lanes in turn; by default as many as lanes.
    """
    columns: list[list[Ints]] = [[] for _ in range(6)]
    for row in sorted(rows, key=lambda row: row.stage):  # stable
        for column, value in zip(columns, np.broadcast_arrays(*(np.atleast_1d(item) for item in row)), strict=True):
            column.append(np.asarray(value, dtype=np.int64))
    stage, src, dst, first, count, adds = (np.concatenate([np.zeros(0, dtype=np.int64), *column]) for column in columns)
    lane = np.tile(np.arange(lanes), len(stage))
    stage, src, dst, first, count, adds = (np.repeat(column, lanes) for column in (stage, src, dst, first, count, adds))
    first, rail = lane * segments + first, lane % (rails or lanes)
    return Transfers(stage, src, dst, first, count, adds > 0, rail, lanes * segments)


def group_transfers(plan: Transfers, groups: Ints) -> Transfers:
    """Return a schedule among the members of each group, int64[groups, members], side by side in every stage.

    Groups are independent: the same segment number means different segments in each.
    """
    count = len(groups)
    columns = {
        item.name: np.repeat(getattr(plan, item.name), count) for item in fields(plan) if item.name != "segments"
    }
    which = np.tile(np.arange(count), len(plan))
    for name in ("src", "dst"):
        columns[name] = groups[which, columns[name]]
    return Transfers(**columns, segments=plan.segments)


class Dependencies(NamedTuple):
    """Dependencies of a schedule.

    Transfers of one source, stage and run have the same content; they are a *group*.

    group : int64[n], the group of every transfer; groups are numbered by their first transfers.
    lead : int64[groups], the first transfer of every group.
    own : bool[groups], True if it contains the source's own values.
    begins, needs : the transfers that a group waits for, rising: `needs[begins[g] : begins[g + 1]]`.
    """

    group: Ints
    lead: Ints
    own: Flags
    begins: Ints
    needs: Ints

    @property
    def counts(self) -> Ints:
        """Number of transfers that every group waits for."""
        return np.diff(self.begins)


def dependencies_of(given: Transfers) -> Dependencies:
    """Return the dependencies of a schedule."""
    group, lead = _groups(given)
    # arrivals at each rank and segment, in the order of stages
    received, sent = _pieces(given)
    which, slot = _spread(*received)
    order = np.argsort(slot, kind="stable")
    slot, which = slot[order], which[order]
    stages = int(given.stage.max(initial=0)) + 1
    moment = slot * stages + given.stage[which]
    index = np.arange(len(slot))
    begins = np.ones(len(slot), dtype=np.bool_)
    begins[1:] = slot[1:] != slot[:-1]
    since = np.maximum.accumulate(np.where(begins | ~given.adds[which], index, 0))
    # for every segment of a group: earlier arrivals at its source
    owner, sent_slot = _spread(sent[0][lead], sent[1][lead])
    until = np.searchsorted(moment, sent_slot * stages + given.stage[lead][owner], side="left")
    before = np.maximum(until - 1, 0)
    has_arrival = (until > 0) & (slot[before] == sent_slot) if len(slot) else np.zeros(len(sent_slot), dtype=np.bool_)
    start = np.where(has_arrival, since[before] if len(slot) else 0, 0)
    own = np.zeros(len(lead), dtype=np.bool_)
    has_own = ~has_arrival
    has_own[has_arrival] = given.adds[which[start[has_arrival]]]
    own[owner[has_own]] = True
    counts = np.where(has_arrival, until - start, 0)
    inside = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    needed = which[np.repeat(start, counts) + inside]
    pairs = np.unique(np.repeat(owner, counts) * np.int64(len(given)) + needed)
    owner, needed = np.divmod(pairs, max(len(given), 1))
    return Dependencies(group, lead, own, starts_of(np.bincount(owner, minlength=len(lead))), needed)


def mean_hops(given: Transfers, ranks: int) -> tuple[float, float]:
    """Return how often a value is sent on its way to a sum, and a sum on the way back, on average.

    A part lost on the way to a sum contains the values of all ranks summed so far: if every transfer loses at most a
    share q, at most q times the first number is missing from the sums, as a share of all ranks' values [derived]. On
    the way back it is missing at the destination and those after it: at most q times the second number, as a share of
    all sums at all ranks. In a ring of N ranks both numbers are (N - 1) / 2.
    """
    holds = np.ones((ranks, given.segments), dtype=np.int64)  # number of ranks whose values are included
    depth = np.zeros((ranks, given.segments), dtype=np.int64)
    sends = 0
    edges = np.flatnonzero(np.diff(given.stage, prepend=-1, append=-1))
    for begin, end in zip(edges.tolist(), edges.tolist()[1:], strict=False):
        which, segment = _spread(given.first[begin:end], given.count[begin:end])
        which = which + begin
        source, target = (given.src[which], segment), (given.dst[which], segment)
        value, above, adds = holds[source], depth[source] + 1, given.adds[which]
        sends += int(value[adds].sum())
        for table, new in ((holds, value), (depth, above)):
            table[target[0][~adds], segment[~adds]] = new[~adds]
        np.add.at(holds, (target[0][adds], segment[adds]), value[adds])
    return sends / holds.size, float(depth.mean())


def _groups(plan: Transfers) -> tuple[Ints, Ints]:
    """Return the group of every transfer, and the first transfer of every group."""
    ranks = int(plan.src.max(initial=0)) + 1
    key = (plan.stage * ranks + plan.src) * plan.segments + plan.first
    _, lead, group = np.unique(key * (plan.segments + 1) + plan.count, return_index=True, return_inverse=True)
    order = np.argsort(lead)
    number = np.empty(len(lead), dtype=np.int64)
    number[order] = np.arange(len(lead))
    return number[group], lead[order]


def _pieces(plan: Transfers) -> tuple[tuple[Ints, Ints], tuple[Ints, Ints]]:
    """Return the runs of transfers at destinations and at sources: (first piece, number of pieces) each.

    The pieces of one rank are consecutive. Segments that every transfer sends together are one piece, if that is worth
    it: among thousands of ranks a run may have thousands of segments.
    """
    ends = tuple(rank * (plan.segments + 1) + plan.first for rank in (plan.dst, plan.src))
    if plan.count.sum() <= MIN_PIECE_LENGTH * len(plan):
        return (ends[0], plan.count), (ends[1], plan.count)
    cuts = np.unique(np.concatenate([edge for first in ends for edge in (first, first + plan.count)]))
    low, high = ([np.searchsorted(cuts, first + length) for first in ends] for length in (0, plan.count))
    return (low[0], high[0] - low[0]), (low[1], high[1] - low[1])


def _spread(first: Ints, count: Ints) -> tuple[Ints, Ints]:
    """Expand runs to single segments: the number of the run, and the segment."""
    which = np.repeat(np.arange(len(first)), count)
    inside = np.arange(len(which)) - np.repeat(np.cumsum(count) - count, count)
    return which, first[which] + inside


# --- walks: all-reduces whose first half is a reduce-scatter (or reduction), and all-gathers (or broadcasts)


def ring(ranks: int) -> Iterator[TransferRows]:
    """Ring: 2(N - 1) steps. In step s, rank w sends segment (w - s) mod N to rank w + 1; the first N - 1 steps add."""
    w = np.arange(ranks)
    for s in range(2 * (ranks - 1)):
        yield TransferRows(s, w, (w + 1) % ranks, (w - s) % ranks, 1, s < ranks - 1)


def all_to_all(ranks: int) -> Iterator[TransferRows]:
    """Each rank sends segment v to rank v, which sums and sends the sum to all; every rank begins with its
    successor."""
    rank = np.arange(ranks)
    for distance in range(1, ranks):
        other = (rank + distance) % ranks
        yield TransferRows(0, rank, other, other, 1, True)
        yield TransferRows(1, rank, other, rank, 1, False)


def halving(member: Ints, stage: int = 0) -> Iterator[TransferRows]:
    """Recursive halving and doubling among the ranks `member`, a power of two; stages are counted from `stage`.

    After the first half of the steps the i-th rank has segment i. In every step of it, two ranks, at half the previous
    distance, exchange the half of their remaining segments that contains the other's; the second half is the reverse.
    """
    power = len(member)
    steps = power.bit_length() - 1
    position = np.arange(power)
    for step in range(steps):
        half = power >> (step + 1)
        other = position ^ half
        yield TransferRows(stage + step, member, member[other], other // half * half, half, True)
        yield TransferRows(stage + 2 * steps - 1 - step, member, member[other], position // half * half, half, False)


def binomial(ranks: int) -> Iterator[TransferRows]:
    """Up a binomial tree to rank 0 and down again, with one segment.

    Rank r, whose lowest set bit is 2^k, sends to rank r - 2^k in step k, and receives it in the k-th step from the end.
    """
    depth = (ranks - 1).bit_length()
    for k in range(depth):
        child = np.arange(1 << k, ranks, 2 << k)
        yield TransferRows(k, child, child - (1 << k), 0, 1, True)
        yield TransferRows(2 * depth - 1 - k, child - (1 << k), child, 0, 1, False)


WALKS: Mapping[str, Callable[[int], Iterator[TransferRows]]] = MappingProxyType(
    {"ring": ring, "all_to_all": all_to_all, "halving": lambda ranks: halving(np.arange(ranks))}
)
"""Walks of all-reduces by name."""

TRANSFER_COUNTS: Mapping[str, Callable[[int], int]] = MappingProxyType(
    {
        "ring": lambda ranks: 2 * ranks * (ranks - 1),
        "all_to_all": lambda ranks: 2 * ranks * (ranks - 1),
        "halving": lambda ranks: 2 * ranks * (ranks.bit_length() - 1),
    }
)
"""Transfers of each walk by number of ranks; each half has half of them."""


def scatter(ranks: int) -> Iterator[TransferRows]:
    """Each rank sends its i-th segment to rank i, beginning with its successor; nothing is summed."""
    rank = np.arange(ranks)
    for distance in range(1, ranks):
        other = (rank + distance) % ranks
        yield TransferRows(0, rank, other, other, 1, False)
