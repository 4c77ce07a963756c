"""Routes: for every switch and destination, all egress links that lie on a shortest path.

Shortest means: the smallest sum of the cables' costs.  A cable costs 1 unless its topology says otherwise, and
then it means the fewest hops.  Ties are all kept.

Tables are kept per *edge switch*, not per host: a packet for a host first travels to the switch that the
host hangs on, and all hosts of that switch share the way there.  And equal sets of egress links are stored
once per switch as an ECMP *group*: a fat-tree switch has a handful of groups however many hosts there are.

The search goes backwards from all destination switches at once, one step of cost per round.  A set of
destinations is a row of bits, so that a round is a few bitwise operations: "who reaches what in d steps" is the
union of what its neighbours reach in d - 1.  Distances are kept in *bit planes* meanwhile - plane j has the bits
of those whose distance has bit j - which are widened to numbers once, at the end.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradwire.experiment.topology.cables import refuse_network
from gradwire.experiment.topology.network import Network, listed
from gradwire.scenarios.errors import Mistake, ScenarioError

UNREACHED = -1

FAR = 30_000
"""A cost above that of any path, below what 16 bits hold."""

LARGEST_TABLE = 1 << 28
"""Switches times edge switches (our choice: 16,384 switches that all have hosts; a table of 1 GiB)."""

ROWS = 256
"""How many switches are widened from bits to numbers at once (our choice: small beside the tables)."""


@dataclass(frozen=True, eq=False)
class Routing:
    """All shortest paths of a network.  Switch indices are node id - host count.

    Attributes
    ----------
    edge_of : int32[hosts]
        The switch (index) that every host hangs on.
    up_link, down_link : int32[hosts]
        The directed links host -> switch and switch -> host.
    group_of : int32[switches, switches]
        ``group_of[switch, edge]``: the group that leads from a switch towards an edge switch; -1 where
        there is none to take: at the edge switch itself, for switches without hosts, and for those of another rail
        that nothing joins to this one.
    group_first : int64[groups + 1]
        The links of group g are ``group_links[group_first[g] : group_first[g + 1]]``.
    group_links : int32[...]
        The equally good egress links (directed link ids, ascending) of all groups, one after the other; those
        of one group leave the same switch.
    distance : int16[switches, switches]
        Hops between switches, where `group_of` has a group: of the longest of the paths where costs make
        paths of different lengths equally good; 0 on the diagonal of edge switches, else -1.
    """

    network: Network
    edge_of: NDArray[np.int32]
    up_link: NDArray[np.int32]
    down_link: NDArray[np.int32]
    group_of: NDArray[np.int32]
    group_first: NDArray[np.int64]
    group_links: NDArray[np.int32]
    distance: NDArray[np.int16]

    @cached_property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """The groups as tuples of directed link ids; made when first asked for."""
        first, links = self.group_first.tolist(), self.group_links.tolist()
        return tuple(tuple(links[a:b]) for a, b in pairwise(first))

    def hops(self, src: int, dst: int) -> int:
        """Links on a (longest) shortest path between two hosts; 2 within one switch, 0 to itself."""
        return 2 + int(self.distance[self.edge_of[src], self.edge_of[dst]]) if src != dst else 0

    def paths(self, src: int, dst: int) -> Iterator[tuple[int, ...]]:
        """Every shortest path between two different hosts, as directed links, in order of link ids."""
        if src == dst:
            raise ValueError(f"a path needs two different hosts, not {self.network.names[src]} twice")
        edge = int(self.edge_of[dst])
        first = self.network.host_count

        def onward(switch: int, links: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
            if switch == edge:
                yield (*links, int(self.down_link[dst]))
                return
            for link in self.groups[self.group_of[switch, edge]]:
                yield from onward(int(self.network.link_dst[link]) - first, (*links, link))

        yield from onward(int(self.edge_of[src]), (int(self.up_link[src]),))


class Wiring(NamedTuple):
    """The directed links between switches, by switch and then by link id.

    `first[s] : first[s + 1]` are those that leave switch s; `links` their ids, `dst` the switches (indices) that
    they lead to, `cost` what they cost.
    """

    first: NDArray[np.int64]
    links: NDArray[np.int32]
    dst: NDArray[np.int32]
    cost: NDArray[np.int16]

    @property
    def switches(self) -> int:
        return len(self.first) - 1


def build_routing(network: Network, without: Collection[int] = ()) -> Routing:
    """Find all shortest paths.

    Parameters
    ----------
    network : Network
    without : directed links that no path may take. What cannot be reached then has no group and no distance.

    Returns
    -------
    Routing

    Raises
    ------
    ScenarioError
        The tables would be larger than LARGEST_TABLE; or some edge switch cannot be reached from another
        switch (a Network from `assemble` is connected, so this meets only arrays built by hand).

    Notes
    -----
    With S switches, E of them with hosts, L links between switches and a largest distance of D, the search takes
    about L * E * D / 64 word operations, and the grouping L * E byte operations.

    References
    ----------
    Dial: "Algorithm 360: shortest-path forest with topological ordering", CACM 1969, for the rounds by cost
    [recalled]; the bit rows and planes are our choice.
    """
    first, switches = network.host_count, network.switch_count
    edge_of = (network.edge_of - first).astype(np.int32)
    edges = np.unique(edge_of)
    if switches * len(edges) > LARGEST_TABLE:
        raise ScenarioError(
            f"{switches} switches, {len(edges)} of them with hosts, make a routing table of "
            f"{switches * len(edges):,} entries",
            "topology",
            f"at most {LARGEST_TABLE:,}: fewer switches, or more hosts on each",
        )
    wiring = _wire(network, without)
    cost = _search(wiring, edges)
    unreached = cost == UNREACHED
    if without:
        cost[unreached] = FAR
    else:
        _refuse_unreached(network, edges, cost)
    group_of, group_first, group_links = _group(wiring, edges, cost)
    hops = cost if network.link_cost is None else _longest(wiring, cost)
    if without:
        hops[unreached] = UNREACHED
    if len(edges) == switches:
        distance = hops
    else:
        distance = np.full((switches, switches), -1, dtype=np.int16)
        distance[:, edges] = hops
    return Routing(
        network=network,
        edge_of=edge_of,
        up_link=network.up_link,
        down_link=network.up_link ^ 1,
        group_of=group_of,
        group_first=group_first,
        group_links=group_links,
        distance=distance,
    )


def _wire(network: Network, without: Collection[int]) -> Wiring:
    first = network.host_count
    links = np.flatnonzero((network.link_src >= first) & (network.link_dst >= first)).astype(np.int32)
    links = links[~np.isin(links, list(without))]
    links = links[np.argsort(network.link_src[links], kind="stable")]  # by switch, then by link id
    counts = np.bincount(network.link_src[links] - first, minlength=network.switch_count)
    costs = np.ones(len(links)) if network.link_cost is None else network.link_cost[links]
    starts = np.concatenate(([0], np.cumsum(counts)))
    return Wiring(starts, links, network.link_dst[links] - first, costs.astype(np.int16))


def _search(wiring: Wiring, edges: NDArray[np.int32]) -> NDArray[Any]:
    """Cost of the cheapest path from every switch to every edge switch, UNREACHED if there is none:
    int16[switches, edges], or int32 where 16 bits might not do."""
    switches = wiring.switches
    column = np.arange(len(edges))
    here = np.zeros((switches, -(-len(edges) // 64)), dtype=np.uint64)
    here[edges, column // 64] = np.uint64(1) << (column % 64).astype(np.uint64)
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
    return _widen(planes, reached, len(edges))


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
    src = np.repeat(np.arange(wiring.switches), np.diff(wiring.first))
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
    numbers: NDArray[Any] = np.empty((len(reached), count), np.int16 if len(planes) < 16 else np.int32)
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


def _refuse_unreached(network: Network, edges: NDArray[np.int32], cost: NDArray[Any]) -> None:
    if network.grouped is not None or (cost != UNREACHED).all():  # rails may be networks of their own
        return
    first = network.host_count
    lost = np.argwhere(cost == UNREACHED)
    refuse_network([
        Mistake(
            "topology",
            f"{network.names[first + edges[column]]} cannot be reached from "
            + listed([network.names[first + row] for row in lost[lost[:, 1] == column, 0]]),
            expected="a path between any two nodes",
        )
        for column in np.unique(lost[:, 1])
    ])  # fmt: skip


def _closer(wiring: Wiring, cost: NDArray[Any], switch: int) -> NDArray[np.bool_]:
    """Which links of a switch begin a shortest path to which edge switch: bool[links of the switch, edges]."""
    mine = slice(wiring.first[switch], wiring.first[switch + 1])
    closer: NDArray[np.bool_] = cost[wiring.dst[mine]] == cost[switch] - wiring.cost[mine, None]
    return closer


def _group(
    wiring: Wiring, edges: NDArray[np.int32], cost: NDArray[Any]
) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int32]]:
    """`group_of`, `group_first` and `group_links` of a Routing; groups are numbered by switch, and at a switch by the
    first edge switch that uses them."""
    group_of = np.empty((wiring.switches, wiring.switches), dtype=np.int32)
    columns: Any = edges if len(edges) < wiring.switches else slice(None)  # a slice is much faster
    sizes: list[NDArray[np.int64]] = []
    members: list[NDArray[np.int32]] = []
    count = 0
    for switch in range(wiring.switches):
        row = group_of[switch]
        row[:] = -1
        closer = _closer(wiring, cost, switch)
        if not len(closer):
            continue
        samples, which = _distinct(_packed(closer))
        sets = closer[:, samples].T  # [distinct sets, links]
        used = sets.any(axis=1)  # all but that of the switch itself, to which no link leads
        number = np.where(used, np.cumsum(used) - 1 + count, -1).astype(np.int32)
        row[columns] = number[which]
        sizes.append(sets[used].sum(axis=1))
        members.append(wiring.links[wiring.first[switch] + np.nonzero(sets)[1]])
        count += int(used.sum())
    group_first = np.concatenate((np.zeros(1, np.int64), *sizes)).cumsum()
    return group_of, group_first, np.concatenate((np.zeros(0, np.int32), *members))


def _packed(closer: NDArray[np.bool_]) -> NDArray[np.uint8]:
    """Eight rows of Booleans to a row of bytes, what is missing in the last being 0. np.packbits does the same along
    the other axis quickly, and along this one slowly."""
    octets = np.zeros((-(-len(closer) // 8), closer.shape[1]), dtype=np.uint8)
    for number, row in enumerate(closer.view(np.uint8)):
        octets[number // 8] += row * np.uint8(1 << number % 8)
    return octets


def _distinct(octets: NDArray[np.uint8]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The distinct columns: where each occurs first, ascending, and for every column which of them it equals."""
    if len(octets) <= 2:  # few enough values for a table of them, which beats sorting
        keys = octets[0].astype(np.int64)
        if len(octets) == 2:
            keys |= octets[1].astype(np.int64) << 8
        seen = np.full(1 << 8 * len(octets), -1, dtype=np.int64)
        seen[keys[::-1]] = np.arange(len(keys))[::-1]  # of equal keys the last write is the first column
        first = np.sort(seen[seen >= 0])
        seen[keys[first]] = np.arange(len(first))
        return first, seen[keys]
    padded = np.zeros((-(-len(octets) // 8) * 8, octets.shape[1]), dtype=np.uint8)
    padded[: len(octets)] = octets
    words = np.ascontiguousarray(padded.T).view(np.uint64)  # [columns, words]
    which = np.zeros(len(words), dtype=np.int64)
    for word in words.T:  # refine: columns stay together as long as their words are equal
        values, place = np.unique(word, return_inverse=True)
        _, first, which = np.unique(which * len(values) + place, return_index=True, return_inverse=True)
    rank = np.empty(len(first), dtype=np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return np.sort(first), rank[which]


def _longest(wiring: Wiring, cost: NDArray[Any]) -> NDArray[np.int16]:
    """Hops of the longest of the cheapest paths: int16[switches, edges]."""
    hops = np.zeros(cost.shape, dtype=np.int16)
    turn = range(wiring.switches)
    changed = True
    while (
        changed
    ):  # at most once more than there are hops; to and fro, since neighbours often have near numbers
        changed = False
        turn = turn[::-1]
        for switch in turn:
            mine = slice(wiring.first[switch], wiring.first[switch + 1])
            if mine.start == mine.stop:
                continue
            ways = np.where(_closer(wiring, cost, switch), hops[wiring.dst[mine]] + np.int16(1), np.int16(0))
            best = ways.max(axis=0)
            changed |= bool((best != hops[switch]).any())
            hops[switch] = best
    return hops
