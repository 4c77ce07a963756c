"""The table of groups: one entry for every switch and block of destinations, and one for each of a block's where they
are not the same.

A switch sends most destinations the same way: all of another pod up, all of another group by one cable. So
destinations (edge switches) are ordered so that neighbours are neighbours and cut into *blocks*; where a switch has one
group for a whole block, that is its entry, and elsewhere the entry says which row of *details* has that of every single
destination. A destination is numbered ``block << shift | place``, so that finding an entry is a shift and a comparison.
What a switch does with itself is asked by nobody and agrees with everything.

Where to cut is taken from the tables of some of the switches, and decides about size alone, not about what is right.
That replaces a formula for each topology: pods of fat-trees, groups of dragonflies, all leaves below spines, and what
is alike in files, are found. A torus, in which hardly two neighbours are the same to most switches, keeps one entry for
each destination.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradwire.experiment.routing.groups import Groups, Ways
from gradwire.experiment.topology.network import Network
from gradwire.scenarios.arrays import Flags, Ints

NONE, DETAILED = -1, -2

SAMPLE = 64
"""Switches whose tables are looked at before destinations are cut into blocks (our choice)."""

GOLDEN = (5**0.5 - 1) / 2

CANDIDATES = 32
"""Ways to cut that are compared (our choice)."""

PADDED = 4
"""Numbers in use are at most so many times the destinations, since blocks are as long as the longest (our choice)."""


GAIN = 3
"""Blocks are worth their second look-up if they need so many times fewer entries (our choice)."""


class Blocks(NamedTuple):
    """Groups by switch and destination.

    shift : a block has up to ``1 << shift`` destinations.
    number : int32[switches]: ``block << shift | place`` of every edge switch, -1 for others.
    table : int32[switches, blocks]: the group, NONE, or ``DETAILED - row`` of details.
    details : int32[rows, 1 << shift]: the group of each destination of the block, or NONE; the last one stands for
        all beyond it.
    """

    shift: int
    number: NDArray[np.int32]
    table: NDArray[np.int32]
    details: NDArray[np.int32]

    @property
    def words(self) -> int:
        """Entries in all."""
        return self.table.size + self.details.size

    def towards(self, edge: int) -> NDArray[np.int32]:
        """The group of every switch towards an edge switch: int32[switches], NONE where there is none and at the edge
        switch itself."""
        number = int(self.number[edge])
        groups = self.table[:, number >> self.shift].copy()
        detailed = groups <= DETAILED
        groups[detailed] = self.details[DETAILED - groups[detailed], number & (1 << self.shift) - 1]
        groups[edge] = NONE
        return groups

    def at(self, switch: int, edge: int) -> int:
        """The group of one switch."""
        number = int(self.number[edge])
        group = int(self.table[switch, number >> self.shift])
        if group <= DETAILED:
            group = int(self.details[DETAILED - group, number & (1 << self.shift) - 1])
        return NONE if switch == edge else group


def most_words(switches: int, edges: int) -> int:
    """Entries that no table of a network with so many switches, and so many of them with hosts, exceeds."""
    return switches * edges * (1 + PADDED)


class Order(NamedTuple):
    """Destinations in the order in which they are cut, and where.

    edges : int64[edges]: places in `Ways.edges`. starts, sizes : int64[blocks]. place_of : int64[switches]: the place
    of every edge switch in the order, -1 for others.
    """

    edges: Ints
    starts: Ints
    sizes: Ints
    place_of: Ints

    @property
    def shift(self) -> int:
        return (int(self.sizes.max()) - 1).bit_length()


def lay_groups(network: Network, ways: Ways) -> tuple[Blocks, NDArray[np.int64], NDArray[np.int32]]:
    """The table of a network, and `group_first` and `group_links` of its `Routing`: groups are numbered by switch, and
    at a switch by the first edge switch that uses them."""
    wiring = ways.wiring
    sample = {switch: ways.at(switch) for switch in _some(wiring.switches)}
    order = _order(network, ways, sample)
    table = np.empty((wiring.switches, len(order.starts)), dtype=np.int32)
    details: list[NDArray[np.int32]] = [np.zeros((0, 1 << order.shift), dtype=np.int32)]
    sizes: list[Ints] = []
    members: list[NDArray[np.int32]] = []
    count = rows = 0
    for switch in range(wiring.switches):
        groups = sample.get(switch) or ways.at(switch)
        row = np.where(groups.row >= 0, groups.row + count, NONE)
        table[switch], detail = _by_block(row[order.edges], int(order.place_of[switch]), order, rows)
        details.append(detail)
        rows += len(detail)
        sizes.append(groups.sizes)
        members.append(groups.links)
        count += len(groups.sizes)
    number = np.full(wiring.switches, -1, dtype=np.int32)
    block = np.repeat(np.arange(len(order.starts)), order.sizes)
    number[ways.edges[order.edges]] = (block << order.shift) + np.arange(len(block)) - order.starts[block]
    group_first = np.concatenate((np.zeros(1, np.int64), *sizes)).cumsum()
    blocks = Blocks(order.shift, number, table, np.concatenate(details))
    return blocks, group_first, np.concatenate((np.zeros(0, np.int32), *members))


def _by_block(
    row: NDArray[np.int32], own: int, order: Order, rows: int
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """The entries of a switch, and its rows of details, from its groups by destination, in order; `own`: its own place,
    or -1; `rows`: how many there are before."""
    if order.shift == 0:
        return row, row[:0, None]
    here = int(np.searchsorted(order.starts, own, side="right")) - 1 if own >= 0 else -1
    if here >= 0 and order.sizes[here] > 1:
        start = int(order.starts[here])
        row[own] = row[start + (own == start)]
    low, high = np.minimum.reduceat(row, order.starts), np.maximum.reduceat(row, order.starts)
    if own >= 0:
        row[own] = NONE
    singly = np.flatnonzero(low != high)
    low[singly] = DETAILED - rows - np.arange(len(singly))
    places = np.minimum(np.arange(1 << order.shift), order.sizes[singly, None] - 1)
    return low, row[order.starts[singly, None] + places]


def _order(network: Network, ways: Ways, sample: dict[int, Groups]) -> Order:
    """Destinations of one kind together, and kinds and what is in them as near as they are in the network's order."""
    near = np.empty(network.node_count, dtype=np.int64)
    near[network.order] = np.arange(network.node_count)
    near = near[network.host_count + ways.edges]
    first = np.full(int(ways.column.max()) + 1, network.node_count)
    np.minimum.at(first, ways.column, near)
    edges = np.lexsort((near, first[ways.column]))
    place_of = np.full(ways.wiring.switches, -1, dtype=np.int64)
    place_of[ways.edges[edges]] = np.arange(len(edges))
    starts = _cut(_changes(sample, edges, place_of))
    return Order(edges, starts, np.diff(np.append(starts, len(edges))), place_of)


def _some(switches: int) -> list[int]:
    """Switches spread evenly, but not at equal distances (which might all be at one place of every ring of a torus);
    or all of a few."""
    if switches <= SAMPLE:
        return list(range(switches))
    some: list[int] = np.unique((np.arange(SAMPLE) * GOLDEN % 1 * switches).astype(np.int64)).tolist()
    return some


def _changes(sample: dict[int, Groups], edges: Ints, place_of: Ints) -> Flags:
    """Where some of the switches have another group than for the destination before: bool[switches, edges]."""
    changes = np.zeros((len(sample), len(edges)), dtype=np.bool_)
    for change, (switch, groups) in zip(changes, sample.items(), strict=True):
        row, own = groups.row[edges], int(place_of[switch])
        if own >= 0 and len(row) > 1:
            row[own] = row[own - 1 if own else 1]
        change[1:] = row[1:] != row[:-1]
    return changes


def _cut(changes: Flags) -> Ints:
    """Where blocks begin, so that the fewest entries are needed: before destinations at which many switches change."""
    switches, count = changes.shape
    often = changes.sum(axis=0)
    often[0] = switches + 1
    levels = np.unique(often)
    best, least = np.arange(count), switches * count // GAIN
    for level in levels[np.unique(np.linspace(0, len(levels) - 1, CANDIDATES).astype(np.int64))].tolist():
        starts = np.flatnonzero(often >= level)
        longest = int(np.diff(np.append(starts, count)).max())
        width = 1 << (longest - 1).bit_length()
        if len(starts) * width > PADDED * count:
            continue
        inside = changes.copy()
        inside[:, starts] = False
        entries = switches * len(starts) + width * int(np.logical_or.reduceat(inside, starts, axis=1).sum())
        if entries < least:
            best, least = starts, entries
    return best
