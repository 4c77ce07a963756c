"""Builds the routing table, which maps a switch and a block of destinations to an ECMP group of links.

A switch sends most destinations the same way: all of another pod up, all of another group by one cable. So destinations
(edge switches) are ordered with neighbours together and cut into *blocks*. If a switch has one group for a whole block,
that is its entry; otherwise the entry names the row of *details* with the group of every destination in the block. A
destination is numbered ``block << shift | place``, so a look-up is a shift and a comparison. A switch's entry for
itself is never read and may have any value.

The cuts are chosen from the tables of some sample switches and affect only the size of the table, not its contents. No
formula per topology is needed: pods of fat-trees, groups of dragonflies, all leaves below spines, and equal parts of
networks from files are detected. In a torus, hardly any two neighbours look alike to most switches, so it keeps one
entry per destination.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradwire.scenarios.arrays import Flags, Ints
from gradwire.topology.network import Network
from gradwire.topology.routing.groups import GroupFinder, Groups

NONE, DETAILED = -1, -2

SAMPLE = 64
"""Number of switches whose tables are examined before destinations are cut into blocks (our choice)."""

GOLDEN = (5**0.5 - 1) / 2

CANDIDATES = 32
"""Number of cuts that are compared (our choice)."""

PADDED = 4
"""Limit of the numbers in use over the number of destinations, since all blocks are as long as the longest (our
choice)."""


GAIN = 3
"""Blocks are used only if they need fewer entries by this factor, to be worth the second look-up (our choice)."""


class GroupTable(NamedTuple):
    """Groups by switch and destination.

    shift : a block has up to ``1 << shift`` destinations.
    number : int32[switches]: ``block << shift | place`` of every edge switch, -1 for others.
    table : int32[switches, blocks]: the group, NONE, or ``DETAILED - row`` of details.
    details : int32[rows, 1 << shift]: the group of each destination of the block, or NONE; the last one is repeated.
    """

    shift: int
    number: NDArray[np.int32]
    table: NDArray[np.int32]
    details: NDArray[np.int32]

    @property
    def word_count(self) -> int:
        """Total number of entries."""
        return self.table.size + self.details.size

    def groups_towards(self, edge: int) -> NDArray[np.int32]:
        """Return the group of every switch towards an edge switch: int32[switches], NONE if there is none."""
        number = int(self.number[edge])
        groups = self.table[:, number >> self.shift].copy()
        detailed = groups <= DETAILED
        groups[detailed] = self.details[DETAILED - groups[detailed], number & (1 << self.shift) - 1]
        groups[edge] = NONE
        return groups

    def at(self, switch: int, edge: int) -> int:
        """Return the group of one switch towards an edge switch, or NONE."""
        number = int(self.number[edge])
        group = int(self.table[switch, number >> self.shift])
        if group <= DETAILED:
            group = int(self.details[DETAILED - group, number & (1 << self.shift) - 1])
        return NONE if switch == edge else group


def max_entries(switches: int, edges: int) -> int:
    """Return an upper bound of the entries for this number of switches and of edge switches."""
    return switches * edges * (1 + PADDED)


class DestinationOrder(NamedTuple):
    """The order of destinations, and its cuts.

    edges : int64[edges]: indices into `GroupFinder.edges`. starts, sizes : int64[blocks]. place_of : int64[switches]:
        the position of every edge switch in the order, -1 for others.
    """

    edges: Ints
    starts: Ints
    sizes: Ints
    place_of: Ints

    @property
    def shift(self) -> int:
        return (int(self.sizes.max()) - 1).bit_length()


def build_group_table(network: Network, finder: GroupFinder) -> tuple[GroupTable, NDArray[np.int64], NDArray[np.int32]]:
    """Build the table of a network, and `group_first` and `group_links` of its `Routing`. Groups are numbered by
    switch, and at a switch by the first edge switch that uses them."""
    wiring = finder.wiring
    sample = {switch: finder.at(switch) for switch in _some(wiring.switches)}
    order = _order(network, finder, sample)
    table = np.empty((wiring.switches, len(order.starts)), dtype=np.int32)
    details: list[NDArray[np.int32]] = [np.zeros((0, 1 << order.shift), dtype=np.int32)]
    sizes: list[Ints] = []
    members: list[NDArray[np.int32]] = []
    count = rows = 0
    for switch in range(wiring.switches):
        groups = sample.get(switch) or finder.at(switch)
        row = np.where(groups.row >= 0, groups.row + count, NONE)
        table[switch], detail = _by_block(row[order.edges], int(order.place_of[switch]), order, rows)
        details.append(detail)
        rows += len(detail)
        sizes.append(groups.sizes)
        members.append(groups.links)
        count += len(groups.sizes)
    number = np.full(wiring.switches, -1, dtype=np.int32)
    block = np.repeat(np.arange(len(order.starts)), order.sizes)
    number[finder.edges[order.edges]] = (block << order.shift) + np.arange(len(block)) - order.starts[block]
    group_first = np.concatenate((np.zeros(1, np.int64), *sizes)).cumsum()
    blocks = GroupTable(order.shift, number, table, np.concatenate(details))
    return blocks, group_first, np.concatenate((np.zeros(0, np.int32), *members))


def _by_block(
    row: NDArray[np.int32], own: int, order: DestinationOrder, rows: int
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Return the entries of a switch and its rows of details. `row`: its groups by destination, in order; `own`: its
    own position, or -1; `rows`: number of rows of details before."""
    if order.shift == 0:
        return row, row[:0, None]
    here = int(np.searchsorted(order.starts, own, side="right")) - 1 if own >= 0 else -1
    if here >= 0 and order.sizes[here] > 1:
        start = int(order.starts[here])
        row[own] = row[start + (own == start)]
    low, high = np.minimum.reduceat(row, order.starts), np.maximum.reduceat(row, order.starts)
    if own >= 0:
        row[own] = NONE
    detailed = np.flatnonzero(low != high)
    low[detailed] = DETAILED - rows - np.arange(len(detailed))
    places = np.minimum(np.arange(1 << order.shift), order.sizes[detailed, None] - 1)
    return low, row[order.starts[detailed, None] + places]


def _order(network: Network, finder: GroupFinder, sample: dict[int, Groups]) -> DestinationOrder:
    """Return destinations with those of one kind together, otherwise as close as in the network's order."""
    near = np.empty(network.node_count, dtype=np.int64)
    near[network.order] = np.arange(network.node_count)
    near = near[network.host_count + finder.edges]
    first = np.full(int(finder.column.max()) + 1, network.node_count)
    np.minimum.at(first, finder.column, near)
    edges = np.lexsort((near, first[finder.column]))
    place_of = np.full(finder.wiring.switches, -1, dtype=np.int64)
    place_of[finder.edges[edges]] = np.arange(len(edges))
    starts = _cut(_changes(sample, edges, place_of))
    return DestinationOrder(edges, starts, np.diff(np.append(starts, len(edges))), place_of)


def _some(switches: int) -> list[int]:
    """Return up to SAMPLE switches, spread evenly but not at equal distances. Equal distances might hit the same
    position in every ring of a torus."""
    if switches <= SAMPLE:
        return list(range(switches))
    some: list[int] = np.unique((np.arange(SAMPLE) * GOLDEN % 1 * switches).astype(np.int64)).tolist()
    return some


def _changes(sample: dict[int, Groups], edges: Ints, place_of: Ints) -> Flags:
    """Return True where a sample switch has another group than for the previous destination: bool[switches, edges]."""
    changes = np.zeros((len(sample), len(edges)), dtype=np.bool_)
    for change, (switch, groups) in zip(changes, sample.items(), strict=True):
        row, own = groups.row[edges], int(place_of[switch])
        if own >= 0 and len(row) > 1:
            row[own] = row[own - 1 if own else 1]
        change[1:] = row[1:] != row[:-1]
    return changes


def _cut(changes: Flags) -> Ints:
    """Return the starts of the blocks that need the fewest entries: destinations at which many switches change
    groups."""
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
