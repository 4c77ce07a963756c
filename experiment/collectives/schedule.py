"""Schedules of collectives: which rank sends which part of a bucket to which other, in which order.

A bucket is cut into segments of equal length, and every rank has a buffer of all of them, with its own values at the
beginning. A *transfer* sends a run of segments as they are at its source when it goes, and its destination either adds
them to its own or puts them in their place. That is all there is to a collective; what follows from what is worked out
here (`Links`): a transfer goes when those have arrived that its source's segments are made of, which are those that
were added since they were last replaced, and, where they never were, when the source has values of its own.

So a kind of collective is a few arrays, and can be wrong in one way only: that the segments at the end are not what
they should be. `tests/support/array_cases.py` moves arrays along them and sees.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradwire.scenarios.arrays import Flags, Ints


@dataclass(frozen=True, eq=False)
class Transfers:
    """What is sent of a bucket, int64[n] each unless said otherwise, in the order of stages.

    stage : rising; what arrives at a rank in a stage is part of what it sends in later ones.
    src, dst : ranks.
    first, count : the run of segments.
    adds : bool[n]; the destination adds them (on the way to a sum), or puts them in the place of its own.
    rail : number of the network card that it travels by, at both ends.
    segments : into how many a bucket is cut.
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


LONG = 8
"""Segments in a run on average from which on they are taken together (our choice)."""


class Rows(NamedTuple):
    """Some transfers of one stage, as numbers or arrays that are broadcast together."""

    stage: int
    src: int | Ints
    dst: int | Ints
    first: int | Ints
    length: int | Ints
    adds: bool


def transfers(rows: Iterable[Rows], segments: int, lanes: int = 1, rails: int | None = None) -> Transfers:
    """Rows in the order of their stages, those of one stage as they are given.

    lanes : copies of the schedule side by side, each for a share of the bucket, which is then cut into as many times
        the segments. Transfers of a stage alternate between them.
    rails : network cards, that the lanes take in turn; unless given, as many as lanes.
    """
    columns: list[list[Ints]] = [[] for _ in range(6)]
    for row in sorted(rows, key=lambda row: row.stage):  # stable
        for column, value in zip(columns, np.broadcast_arrays(*(np.atleast_1d(each) for each in row)), strict=True):
            column.append(np.asarray(value, dtype=np.int64))
    stage, src, dst, first, count, adds = (np.concatenate([np.zeros(0, dtype=np.int64), *each]) for each in columns)
    lane = np.tile(np.arange(lanes), len(stage))
    stage, src, dst, first, count, adds = (np.repeat(each, lanes) for each in (stage, src, dst, first, count, adds))
    first, rail = lane * segments + first, lane % (rails or lanes)
    return Transfers(stage, src, dst, first, count, adds > 0, rail, lanes * segments)


def grouped(plan: Transfers, groups: Ints) -> Transfers:
    """A schedule among the members of each group, int64[groups, members], stage by stage side by side. Groups have
    nothing to do with each other: segments of one number are others in each."""
    many = len(groups)
    made = {each.name: np.repeat(getattr(plan, each.name), many) for each in fields(plan) if each.name != "segments"}
    which = np.tile(np.arange(many), len(plan))
    for name in ("src", "dst"):
        made[name] = groups[which, made[name]]
    return Transfers(**made, segments=plan.segments)


class Links(NamedTuple):
    """What follows from what in a schedule.

    Transfers of one source, stage and run have the same content; they are a *group*.

    group : int64[n], the group of every transfer; groups are numbered by their first transfers.
    lead : int64[groups], the first transfer of every group.
    own : bool[groups], whether the source's own values are in it.
    begins, needs : what a group waits for besides: `needs[begins[g] : begins[g + 1]]` are transfers, rising.
    """

    group: Ints
    lead: Ints
    own: Flags
    begins: Ints
    needs: Ints

    @property
    def counts(self) -> Ints:
        """How many transfers every group waits for."""
        return np.diff(self.begins)


def links(given: Transfers) -> Links:
    """What follows from what."""
    group, lead = _groups(given)
    # what arrives at a rank in a segment, in the order of stages
    taken, sent = _pieces(given)
    which, place = _spread(*taken)
    order = np.argsort(place, kind="stable")
    place, which = place[order], which[order]
    stages = int(given.stage.max(initial=0)) + 1
    moment = place * stages + given.stage[which]
    index = np.arange(len(place))
    begins = np.ones(len(place), dtype=np.bool_)
    begins[1:] = place[1:] != place[:-1]
    since = np.maximum.accumulate(np.where(begins | ~given.adds[which], index, 0))
    # of every segment of a group: what its source has got by then
    owner, at = _spread(sent[0][lead], sent[1][lead])
    until = np.searchsorted(moment, at * stages + given.stage[lead][owner], side="left")
    before = np.maximum(until - 1, 0)
    some = (until > 0) & (place[before] == at) if len(place) else np.zeros(len(at), dtype=np.bool_)
    start = np.where(some, since[before] if len(place) else 0, 0)
    own = np.zeros(len(lead), dtype=np.bool_)
    kept = ~some
    kept[some] = given.adds[which[start[some]]]
    own[owner[kept]] = True
    counts = np.where(some, until - start, 0)
    inside = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    needed = which[np.repeat(start, counts) + inside]
    pairs = np.unique(np.repeat(owner, counts) * np.int64(len(given)) + needed)
    owner, needed = np.divmod(pairs, max(len(given), 1))
    first = np.zeros(len(lead) + 1, dtype=np.int64)
    np.cumsum(np.bincount(owner, minlength=len(lead)), out=first[1:])
    return Links(group, lead, own, first, needed)


def mean_hops(given: Transfers, ranks: int) -> tuple[float, float]:
    """How often a value is sent on the way to a sum, on average over ranks and segments, and how often a sum on the way
    back.

    On the way to a sum a lost part takes along the values of all ranks that are in it: where every transfer loses a
    share q at the most, no more than q times the first number is missing from the sums, as a share of all ranks' values
    [derived]. On the way back it is missing at the destination and behind it: no more than q times the second number,
    as a share of all sums at all ranks. In a ring of N ranks both numbers are (N - 1) / 2.
    """
    holds = np.ones((ranks, given.segments), dtype=np.int64)  # how many ranks' values
    depth = np.zeros((ranks, given.segments), dtype=np.int64)
    forth = 0
    edges = np.flatnonzero(np.diff(given.stage, prepend=-1, append=-1))
    for begin, end in zip(edges.tolist(), edges.tolist()[1:], strict=False):
        which, segment = _spread(given.first[begin:end], given.count[begin:end])
        which = which + begin
        source, place = (given.src[which], segment), (given.dst[which], segment)
        value, above, adds = holds[source], depth[source] + 1, given.adds[which]
        forth += int(value[adds].sum())
        for table, new in ((holds, value), (depth, above)):
            table[place[0][~adds], segment[~adds]] = new[~adds]
        np.add.at(holds, (place[0][adds], segment[adds]), value[adds])
    return forth / holds.size, float(depth.mean())


def _groups(given: Transfers) -> tuple[Ints, Ints]:
    """The group of every transfer, and the first transfer of every group."""
    ranks = int(given.src.max(initial=0)) + 1
    key = (given.stage * ranks + given.src) * given.segments + given.first
    _, lead, group = np.unique(key * (given.segments + 1) + given.count, return_index=True, return_inverse=True)
    order = np.argsort(lead)
    number = np.empty(len(lead), dtype=np.int64)
    number[order] = np.arange(len(lead))
    return number[group], lead[order]


def _pieces(given: Transfers) -> tuple[tuple[Ints, Ints], tuple[Ints, Ints]]:
    """The runs of transfers at their destinations and at their sources, as numbers of first pieces and of pieces; the
    pieces of one rank follow one another. Segments that go together wherever a rank takes or sends them are one piece,
    if that is worth while: among thousands of ranks a run may have thousands of them."""
    ends = tuple(rank * (given.segments + 1) + given.first for rank in (given.dst, given.src))
    if given.count.sum() <= LONG * len(given):
        return (ends[0], given.count), (ends[1], given.count)
    cuts = np.unique(np.concatenate([edge for first in ends for edge in (first, first + given.count)]))
    low, high = ([np.searchsorted(cuts, first + more) for first in ends] for more in (0, given.count))
    return (low[0], high[0] - low[0]), (low[1], high[1] - low[1])


def _spread(first: Ints, count: Ints) -> tuple[Ints, NDArray[np.int64]]:
    """Runs one segment at a time: the number of the run, and the segment."""
    which = np.repeat(np.arange(len(first)), count)
    inside = np.arange(len(which)) - np.repeat(np.cumsum(count) - count, count)
    return which, first[which] + inside
