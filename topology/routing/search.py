"""`search` finds the cheapest paths' costs and hops between kinds of switches (twins with equal links) towards those
with hosts.

Two switches are of one *kind* if they are joined to the same switches by cables of the same costs (twins in graph
theory): the edge switches of a pod of a fat-tree, the leaves of a leaf-spine, the spines. Paths from them and to them
cost the same, so the search runs once per kind, in the smaller network of kinds.

The search goes backwards from all destinations at once, one step of cost per round.  A set of destinations is a row of
bits, so a round is a few bitwise operations: the destinations that a switch reaches in d steps are the union of those
that its neighbours reach in d - 1.  Distances are collected in *bit planes* (plane j has the switches whose distance
has bit j) and widened to numbers once, at the end.

Source: Dial, "Algorithm 360: shortest-path forest with topological ordering", CACM 1969, for the rounds by cost
[recalled]; the bit rows and planes are our choice.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradwire.scenarios.arrays import AnyInts, Ints
from gradwire.topology.network import LARGEST_COST, Network

UNREACHED = -1

FAR = {np.dtype(np.int16): 30_000, np.dtype(np.int32): 1 << 30}
"""The value for "unreached" in a table of costs: far above the cost of any path (14 bits, 16 bits or more)."""

ROWS = 256
"""Number of switches widened from bits to numbers at a time (our choice: small compared with the tables)."""


class Wiring(NamedTuple):
    """The directed links between switches, by switch and then by link id. `first[s] : first[s + 1]` are the links that
    leave switch s; `links` their ids, `dst` the switches (indices) at their far ends, `cost` their costs."""

    first: NDArray[np.int64]
    links: NDArray[np.int32]
    dst: NDArray[np.int32]
    cost: NDArray[np.int16]

    @property
    def switches(self) -> int:
        return len(self.first) - 1

    @property
    def src(self) -> Ints:
        """The switch at the near end of each link."""
        return np.repeat(np.arange(self.switches), np.diff(self.first))


def switch_links(network: Network, without: Collection[int]) -> Wiring:
    """Return the links of a network between switches, except those in `without`."""
    first = network.host_count
    links = np.flatnonzero((network.link_src >= first) & (network.link_dst >= first)).astype(np.int32)
    links = links[~np.isin(links, list(without))]
    links = links[np.argsort(network.link_src[links], kind="stable")]  # by switch, then by link id
    counts = np.bincount(network.link_src[links] - first, minlength=network.switch_count)
    costs = np.ones(len(links)) if network.link_cost is None else network.link_cost[links]
    return Wiring(_starts(counts), links, network.link_dst[links] - first, costs.astype(np.int16))


def _starts(counts: Ints) -> Ints:
    return np.concatenate(([0], np.cumsum(counts)))


class Kinds(NamedTuple):
    """The kinds of switches.

    of : int64[switches]: the kind of each; kinds are numbered by their first switch.
    one : int64[kinds]: that switch.
    size : int64[kinds]: the number of switches.
    """

    of: Ints
    one: Ints
    size: Ints


def find_kinds(wiring: Wiring, symmetric: bool) -> Kinds:
    """Find the kinds of switches by comparing their outgoing links, and their incoming links unless `symmetric`."""
    src, dst, cost = wiring.src, wiring.dst.astype(np.int64), wiring.cost.astype(np.int64)
    owner, far = src, (dst * (LARGEST_COST + 1) + cost) * 2
    if not symmetric:
        owner, far = np.append(owner, dst), np.append(far, (src * (LARGEST_COST + 1) + cost) * 2 + 1)
    order = np.lexsort((far, owner))
    starts = (8 * _starts(np.bincount(owner, minlength=wiring.switches))).tolist()
    octets = far[order].tobytes()
    seen: dict[bytes, int] = {}
    like = [seen.setdefault(octets[starts[switch] : starts[switch + 1]], switch) for switch in range(wiring.switches)]
    one, of, size = np.unique(like, return_inverse=True, return_counts=True)
    return Kinds(of, one, size)


def between_kinds(wiring: Wiring, kinds: Kinds) -> Wiring:
    """Return the wiring of the first switches of all kinds, with one link per pair of kinds and cost."""
    if len(kinds.one) == wiring.switches:
        return wiring
    leaving = np.flatnonzero((kinds.one[kinds.of] == np.arange(wiring.switches))[wiring.src])
    src, dst, cost = kinds.of[wiring.src[leaving]], kinds.of[wiring.dst[leaving]], wiring.cost[leaving]
    _, once = np.unique((src * len(kinds.one) + dst) * (LARGEST_COST + 1) + cost, return_index=True)
    counts = np.bincount(src[once], minlength=len(kinds.one))
    return Wiring(_starts(counts), wiring.links[leaving[once]], dst[once].astype(np.int32), cost[once])


class PathCosts(NamedTuple):
    """Costs and hops between kinds of switches.

    columns : int64[columns]: the kinds with hosts, in the order of their first edge switches.
    cost : int16 or int32[kinds, columns]: of the cheapest path from one kind to another, FAR if there is none; 0 from a
        kind to itself.
    among : [columns]: from a switch to another switch of its kind.
    hops : int16[kinds, columns]: links on the longest of the cheapest paths, -1 if there is none; from a kind to
        itself, those between two of its switches, 0 if it has only one.
    """

    columns: Ints
    cost: NDArray[Any]
    among: NDArray[Any]
    hops: NDArray[np.int16]


def search(wiring: Wiring, kinds: Kinds, edges: AnyInts, weighted: bool) -> PathCosts:
    """Find the cheapest paths to all `edges` (ascending switches with hosts). `weighted`: not all links cost 1."""
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
    else:  # shares memory with `cost` if nothing will differ
        hops = cost.astype(np.int16, copy=len(several) > 0 or bool(unreached.any()))
    among = np.zeros(len(columns), dtype=cost.dtype)
    for column in several.tolist():
        kind = columns[column]
        leaving = slice(small.first[kind], small.first[kind + 1])
        costs = cost[small.dst[leaving], column] + small.cost[leaving]
        among[column] = best = min(costs.min(initial=far), far)
        hops[kind, column] = hops[small.dst[leaving], column][costs == best].max(initial=UNREACHED - 1) + 1
    hops[unreached] = UNREACHED
    return PathCosts(columns, cost, among, hops)


def _costs(wiring: Wiring, ends: AnyInts) -> NDArray[Any]:
    """Return the cost of the cheapest path from every switch to each of `ends`, UNREACHED if there is none. The table
    is int16[switches, ends], or int32 if 16 bits might not suffice."""
    switches = wiring.switches
    column = np.arange(len(ends))
    here = np.zeros((switches, -(-len(ends) // 64)), dtype=np.uint64)
    here[ends, column // 64] = np.uint64(1) << (column % 64).astype(np.uint64)
    reached = here.copy()
    planes: list[NDArray[np.uint64]] = []
    steps = _steps(wiring)
    longest = max((cost for cost, _, _ in steps), default=1)
    fronts: list[NDArray[np.uint64] | None] = [here]  # the newest last; None if nothing was new
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
    """Return the (switch, destination) bits first reached one step after the newest of `fronts`; None if there are
    none."""
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
    """Return the links as tuples (cost, switches, far ends of their n-th links of that cost). A switch appears at most
    once in a tuple, so a step is one gather and one assignment."""
    src = wiring.src
    steps = []
    for cost in np.unique(wiring.cost).tolist():
        indices = np.flatnonzero(wiring.cost == cost)
        owner = src[indices]
        nth = np.arange(len(indices)) - np.searchsorted(owner, owner)
        by_nth = np.argsort(nth, kind="stable")
        for part in np.split(by_nth, np.cumsum(np.bincount(nth))[:-1]):
            steps.append((int(cost), owner[part], wiring.dst[indices[part]]))
    return steps


def _widen(planes: list[NDArray[np.uint64]], reached: NDArray[np.uint64], count: int) -> NDArray[Any]:
    """Return numbers from bit planes: [switches, count], UNREACHED where `reached` has no bit."""
    numbers: NDArray[Any] = np.empty((len(reached), count), np.int16 if len(planes) < 15 else np.int32)
    all_reached = int(np.bitwise_count(reached).sum()) == numbers.size
    for row in range(0, len(reached), ROWS):
        part = numbers[row : row + ROWS]
        part[:] = 0
        for first in range(0, len(planes), 8):  # eight planes at a time fit in bytes, which are fast to add
            octet = np.zeros(part.shape, dtype=np.uint8)
            for bit, plane in enumerate(planes[first : first + 8]):
                octet += _bits(plane[row : row + ROWS], count) * np.uint8(1 << bit)
            part |= octet.astype(numbers.dtype) << first
        if not all_reached:
            part[_bits(reached[row : row + ROWS], count) == 0] = UNREACHED
    return numbers


def _bits(words: NDArray[np.uint64], count: int) -> NDArray[np.uint8]:
    """Return the first `count` bits of every row of words, least significant first, one byte each."""
    octets = words.astype("<u8", copy=False).view(np.uint8)
    return np.unpackbits(octets, axis=1, count=count, bitorder="little")


def _longest_hops(wiring: Wiring, cost: NDArray[Any]) -> NDArray[np.int16]:
    """Return the hops of the longest of the cheapest paths: int16[switches, edges]."""
    hops = np.zeros(cost.shape, dtype=np.int16)
    switches = range(wiring.switches)
    changed = True
    # at most one round more than there are hops; in alternating directions, as neighbours often have close numbers
    while changed:
        changed = False
        switches = switches[::-1]
        for switch in switches:
            leaving = slice(wiring.first[switch], wiring.first[switch + 1])
            if leaving.start == leaving.stop:
                continue
            closer = cost[wiring.dst[leaving]] == cost[switch] - wiring.cost[leaving, None]
            candidates = np.where(closer, hops[wiring.dst[leaving]] + np.int16(1), np.int16(0))
            best = candidates.max(axis=0)
            changed |= bool((best != hops[switch]).any())
            hops[switch] = best
    return hops
