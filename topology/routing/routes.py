"""`build_routing` finds all shortest paths of a network; `Routing` returns their next hops, distances and links.

Tables are per *edge switch*, not per host: a packet first travels to its host's edge switch, and all hosts of that
switch share the path to it. Equal sets of egress links are stored once per switch as an ECMP *group*, equal groups once
per switch and *block* of edge switches, and distances once per kind of switch: a fat-tree switch has a handful of
groups, and about as many entries as there are pods.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from gradwire.scenarios.arrays import AnyInts, Ints
from gradwire.scenarios.errors import Mistake, ScenarioError
from gradwire.topology.cables import refuse_network
from gradwire.topology.network import Network, name_list
from gradwire.topology.routing.blocks import GroupTable, build_group_table
from gradwire.topology.routing.groups import GroupFinder
from gradwire.topology.routing.search import UNREACHED, Kinds, find_kinds, search, switch_links

LARGEST_TABLE = 1 << 28
"""Switches times edge switches (our choice: 16,384 switches that all have hosts; 1 GiB if no two are alike)."""


@dataclass(frozen=True, eq=False)
class Routing:
    """All shortest paths of a network.  Switch indices are node id - host count.

    edge_of : int32[hosts], the edge switch (index) of every host.
    up_link, down_link : int32[hosts], the directed links host -> switch and switch -> host.
    blocks : the group from every switch towards every edge switch.
    group_first : int64[groups + 1]; the links of group g are ``group_links[group_first[g] : group_first[g + 1]]``.
    group_links : int32[...], the equal-cost egress links (directed link ids, ascending) of all groups, one after the
        other; the links of a group leave the same switch.
    kinds, columns, hops_of_kinds : kinds of switches and the distances between them, as in
        `gradwire.topology.routing.search.PathCosts`.
    """

    network: Network
    edge_of: NDArray[np.int32]
    up_link: NDArray[np.int32]
    down_link: NDArray[np.int32]
    blocks: GroupTable
    group_first: NDArray[np.int64]
    group_links: NDArray[np.int32]
    kinds: Kinds
    columns: Ints
    hops_of_kinds: NDArray[np.int16]

    def group(self, switch: int, edge: int) -> int:
        """Return the group from a switch towards an edge switch, or -1. There is none at the edge switch itself, nor
        towards the edge switches of an unconnected rail."""
        return self.blocks.at(switch, edge)

    def groups_towards(self, edge: int) -> NDArray[np.int32]:
        """Return the group of every switch towards an edge switch: int32[switches]."""
        return self.blocks.groups_towards(edge)

    def next_links(self, switch: int, edge: int) -> tuple[int, ...]:
        """Return the links of the group from a switch towards an edge switch; empty if there is none."""
        group = self.group(switch, edge)
        if group < 0:
            return ()
        first, beyond = self.group_first[group : group + 2].tolist()
        return tuple(self.group_links[first:beyond].tolist())

    def distance(self, switches: AnyInts, edges: int | AnyInts) -> Ints:
        """Return the hops from switches to edge switches: int64, broadcast by numpy's rules. The longest path counts if
        costs make paths of different lengths equal. 0 from a switch to itself, -1 without a path."""
        column = self._column[self.kinds.of[edges]]
        hops = self.hops_of_kinds[self.kinds.of[switches], column].astype(np.int64)
        return np.where(np.equal(switches, edges), 0, hops)

    def walk_towards(self, edge: int) -> Iterator[tuple[Ints, Ints, Ints]]:
        """Yield (switches, links, first link of each switch) at rising distance from an edge switch. `links` are all
        next hops of the switches; those lead to switches that were yielded before, or to `edge`."""
        switches = np.arange(self.network.switch_count)
        groups, hops = self.groups_towards(edge), self.distance(switches, edge)
        for level in range(1, int(hops.max()) + 1):
            at_level = np.flatnonzero((hops == level) & (groups >= 0))
            if len(at_level):
                first, beyond = self.group_first[groups[at_level]], self.group_first[groups[at_level] + 1]
                starts = np.cumsum(beyond - first) - (beyond - first)
                links = np.repeat(first - starts, beyond - first) + np.arange((beyond - first).sum())
                yield at_level, self.group_links[links].astype(np.int64), starts

    @cached_property
    def longest_path(self) -> int:
        """The most hops between a switch and an edge switch."""
        return max(0, int(self.hops_of_kinds.max()))

    @cached_property
    def _column(self) -> Ints:
        """The column of every kind with hosts, -1 for others."""
        column = np.full(len(self.kinds.one), -1, dtype=np.int64)
        column[self.columns] = np.arange(len(self.columns))
        return column

    def hops(self, src: int, dst: int) -> int:
        """Return the links on a (longest) shortest path between two hosts; 2 within one switch, 0 from a host to
        itself."""
        return 2 + int(self.distance(self.edge_of[src], self.edge_of[dst])) if src != dst else 0

    def paths(self, src: int, dst: int) -> Iterator[tuple[int, ...]]:
        """Yield every shortest path between two different hosts, as directed links, in order of link ids."""
        if src == dst:
            raise ValueError(f"src and dst are the same host, {self.network.names[src]}; expected two hosts")
        edge = int(self.edge_of[dst])
        first = self.network.host_count

        def onward(switch: int, links: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
            if switch == edge:
                yield (*links, int(self.down_link[dst]))
                return
            for link in self.next_links(switch, edge):
                yield from onward(int(self.network.link_dst[link]) - first, (*links, link))

        yield from onward(int(self.edge_of[src]), (int(self.up_link[src]),))


def build_routing(network: Network, without: Collection[int] = ()) -> Routing:
    """Find all shortest paths. No path takes the directed links in `without`; unreachable destinations then have no
    group and no distance.

    Raises ScenarioError if the tables would be larger than LARGEST_TABLE, or some edge switch cannot be reached from
    another switch (only for arrays built by hand, because a Network from `assemble` is connected).

    With K kinds of switches, C of them with hosts, L links between kinds and a largest distance of D, the search takes
    about L * C * D / 64 word operations; with S switches, E of them with hosts, the table takes about S * E.
    """
    first, switches = network.host_count, network.switch_count
    edge_of = (network.edge_of - first).astype(np.int32)
    edges = np.unique(edge_of).astype(np.int64)
    if (entries := switches * len(edges)) > LARGEST_TABLE:
        need = f"{switches} switches, {len(edges)} of them with hosts, need {entries:,} entries"
        what = f"routing table is too large: {need}"
        raise ScenarioError(what, "topology", f"at most {LARGEST_TABLE:,}: fewer switches, or more hosts on each")
    wiring = switch_links(network, without)
    kinds = find_kinds(wiring, symmetric=not without)
    costs = search(wiring, kinds, edges, network.link_cost is not None)
    blocks, group_first, group_links = build_group_table(network, GroupFinder(wiring, kinds, costs, edges))
    routing = Routing(
        network=network,
        edge_of=edge_of,
        up_link=network.up_link,
        down_link=network.up_link ^ 1,
        blocks=blocks,
        group_first=group_first,
        group_links=group_links,
        kinds=kinds,
        columns=costs.columns,
        hops_of_kinds=costs.hops,
    )
    if not without and network.grouped is None:  # rails may be separate networks
        _refuse_unreached(routing, edges)
    return routing


def _refuse_unreached(routing: Routing, edges: Ints) -> None:
    """Raise ScenarioError if some switch cannot reach some edge switch."""
    network, switches = routing.network, np.arange(routing.network.switch_count)
    first, mistakes = network.host_count, []
    for edge in edges.tolist() if (routing.hops_of_kinds == UNREACHED).any() else ():
        lost = np.flatnonzero(routing.distance(switches, edge) == UNREACHED)
        if len(lost):
            what = f"{network.names[first + edge]} cannot be reached from "
            what += name_list([network.names[first + switch] for switch in lost])
            mistakes.append(Mistake("topology", what, expected="a path between any two nodes"))
    refuse_network(mistakes)
