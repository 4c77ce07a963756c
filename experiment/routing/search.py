"""What the cheapest paths cost, from every kind of switch to every kind that has hosts.

The search goes backwards from all destinations at once, one step of cost per round.  A set of destinations is a row
of bits, so that a round is a few bitwise operations: "who reaches what in d steps" is the union of what its neighbours
reach in d - 1.  Distances are kept in *bit planes* meanwhile - plane j has the bits of those whose distance has bit j -
which are widened to numbers once, at the end.

References
----------
Dial: "Algorithm 360: shortest-path forest with topological ordering", CACM 1969, for the rounds by cost [recalled]; the
bit rows and planes are our choice.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradwire.experiment.routing.wiring import Kinds, Wiring, between_kinds
from gradwire.scenarios.arrays import AnyInts, Ints

UNREACHED = -1

FAR = {np.dtype(np.int16): 30_000, np.dtype(np.int32): 1 << 30}
"""What stands in a table of costs for "unreached": far above that of any path (14 bits, 16 bits or more)."""

ROWS = 256
"""How many switches are widened from bits to numbers at once (our choice: small beside the tables)."""


class Found(NamedTuple):
    """Costs and hops between kinds of switches.

    columns : int64[columns]: the kinds that have hosts, in the order of the first edge switch of each.
    cost : int16 or int32[kinds, columns]: of the cheapest paths from a switch of one kind to one of another, FAR
        where there is none; 0 from a kind to itself.
    among : [columns]: from a switch to another of its own kind.
    hops : int16[kinds, columns]: links on the longest of the cheapest paths, -1 where there is none, and from a kind to
        itself those between two different switches of it, 0 if there is one only.
    """

    columns: Ints
    cost: NDArray[Any]
    among: NDArray[Any]
    hops: NDArray[np.int16]


def search(wiring: Wiring, kinds: Kinds, edges: AnyInts, weighted: bool) -> Found:
    """Find the cheapest paths to all `edges` (ascending switches that have hosts). `weighted`: not all links cost 1."""
    small = between_kinds(wiring, kinds)
    owners, first = np.unique(kinds.of[edges], return_index=True)
    columns = owners[np.argsort(first)]
    cost = _costs(small, columns)
    unreached = cost == UNREACHED
    far = FAR[cost.dtype]
    cost[unreached] = far
    several = np.flatnonzero(kinds.size[columns] > 1)
    if weighted:
        hops = _longest_hops(small, cost)
    else:  # the very table, if nothing will differ
        hops = cost.astype(np.int16, copy=len(several) > 0 or bool(unreached.any()))
    among = np.zeros(len(columns), dtype=cost.dtype)
    for column in several.tolist():
        kind = columns[column]
        mine = slice(small.first[kind], small.first[kind + 1])
        ways = cost[small.dst[mine], column] + small.cost[mine]
        among[column] = best = min(ways.min(initial=far), far)
        hops[kind, column] = hops[small.dst[mine], column][ways == best].max(initial=UNREACHED - 1) + 1
    hops[unreached] = UNREACHED
    return Found(columns, cost, among, hops)


def _costs(wiring: Wiring, ends: AnyInts) -> NDArray[Any]:
    """Cost of the cheapest path from every switch to each of `ends`, UNREACHED if there is none:
    int16[switches, ends], or int32 where 16 bits might not do."""
    switches = wiring.switches
    column = np.arange(len(ends))
    here = np.zeros((switches, -(-len(ends) // 64)), dtype=np.uint64)
    here[ends, column // 64] = np.uint64(1) << (column % 64).astype(np.uint64)
    reached = here.copy()
    planes: list[NDArray[np.uint64]] = []
    steps = _steps(wiring)
    longest = max((cost for cost, _, _ in steps), default=1)
    fronts: list[NDArray[np.uint64] | None] = [here]  # the newest last; None where nothing was new
    level = 0
    while any(front is not None for front in fronts):
        level += 1
        new = _advance(steps, fronts, reached)
        fronts.append(new)
        if len(fronts) > longest:
            del fronts[0]
        if new is not None:
            reached |= new
            planes += [np.zeros_like(reached) for _ in range(level.bit_length() - len(planes))]
            for bit, plane in enumerate(planes):
                if level >> bit & 1:
                    plane |= new
    return _widen(planes, reached, len(ends))


def _advance(
    steps: list[tuple[int, NDArray[np.int64], NDArray[np.int32]]],
    fronts: list[NDArray[np.uint64] | None],
    reached: NDArray[np.uint64],
) -> NDArray[np.uint64] | None:
    """Who reaches what for the first time, in one step more than the newest of `fronts`; None if nobody does."""
    new: NDArray[np.uint64] | None = None
    for cost, rows, heads in steps:
        front = fronts[-cost] if cost <= len(fronts) else None
        if front is not None:
            new = np.zeros_like(reached) if new is None else new
            new[rows] |= front[heads]
    if new is None:
        return None
    new &= ~reached
    return new if new.any() else None


def _steps(wiring: Wiring) -> list[tuple[int, NDArray[np.int64], NDArray[np.int32]]]:
    """The links as (cost, switches, where their n-th link of that cost leads): in one of these a switch appears
    once, so that it is one gather and one assignment."""
    src = wiring.src
    steps = []
    for cost in np.unique(wiring.cost).tolist():
        mine = np.flatnonzero(wiring.cost == cost)
        owner = src[mine]
        nth = np.arange(len(mine)) - np.searchsorted(owner, owner)
        by_nth = np.argsort(nth, kind="stable")
        for part in np.split(by_nth, np.cumsum(np.bincount(nth))[:-1]):
            steps.append((int(cost), owner[part], wiring.dst[mine[part]]))
    return steps


def _widen(planes: list[NDArray[np.uint64]], reached: NDArray[np.uint64], count: int) -> NDArray[Any]:
    """Numbers from bit planes: [switches, count], UNREACHED where `reached` has no bit."""
    numbers: NDArray[Any] = np.empty((len(reached), count), np.int16 if len(planes) < 15 else np.int32)
    everyone = int(np.bitwise_count(reached).sum()) == numbers.size
    for row in range(0, len(reached), ROWS):
        part = numbers[row : row + ROWS]
        part[:] = 0
        for first in range(0, len(planes), 8):  # eight planes at a time are bytes, which are quick to add up
            octet = np.zeros(part.shape, dtype=np.uint8)
            for bit, plane in enumerate(planes[first : first + 8]):
                octet += _bits(plane[row : row + ROWS], count) * np.uint8(1 << bit)
            part |= octet.astype(numbers.dtype) << first
        if not everyone:
            part[_bits(reached[row : row + ROWS], count) == 0] = UNREACHED
    return numbers


def _bits(words: NDArray[np.uint64], count: int) -> NDArray[np.uint8]:
    """The first `count` bits of every row of words, least significant first, one byte each."""
    octets = words.astype("<u8", copy=False).view(np.uint8)
    return np.unpackbits(octets, axis=1, count=count, bitorder="little")


def _longest_hops(wiring: Wiring, cost: NDArray[Any]) -> NDArray[np.int16]:
    """Hops of the longest of the cheapest paths: int16[switches, edges]."""
    hops = np.zeros(cost.shape, dtype=np.int16)
    turn = range(wiring.switches)
    changed = True
    # at most once more than there are hops; to and fro, since neighbours often have near numbers
    while changed:
        changed = False
        turn = turn[::-1]
        for switch in turn:
            mine = slice(wiring.first[switch], wiring.first[switch + 1])
            if mine.start == mine.stop:
                continue
            closer = cost[wiring.dst[mine]] == cost[switch] - wiring.cost[mine, None]
            ways = np.where(closer, hops[wiring.dst[mine]] + np.int16(1), np.int16(0))
            best = ways.max(axis=0)
            changed |= bool((best != hops[switch]).any())
            hops[switch] = best
    return hops
