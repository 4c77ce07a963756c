"""All shortest paths of a network.

Tables are kept per *edge switch*, not per host: a packet for a host first travels to the switch that the
host hangs on, and all hosts of that switch share the way there.  Equal sets of egress links are stored
once per switch as an ECMP *group*, equal groups once per switch and *block* of edge switches, and distances once for
switches that are joined alike: a fat-tree switch has a handful of groups, and about as many entries as there are pods.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from gradwire.experiment.routing.blocks import Blocks, lay_groups
from gradwire.experiment.routing.groups import Ways
from gradwire.experiment.routing.search import UNREACHED, search
from gradwire.experiment.routing.wiring import Kinds, find_kinds, wire
from gradwire.experiment.topology.cables import refuse_network
from gradwire.experiment.topology.network import Network, listed
from gradwire.scenarios.arrays import AnyInts, Ints
from gradwire.scenarios.errors import Mistake, ScenarioError

LARGEST_TABLE = 1 << 28
"""Switches times edge switches (our choice: 16,384 switches that all have hosts; where nothing is alike, a table of
1 GiB)."""


@dataclass(frozen=True, eq=False)
class Routing:
    """All shortest paths of a network.  Switch indices are node id - host count.

    Attributes
    ----------
    edge_of : int32[hosts]
        The switch (index) that every host hangs on.
    up_link, down_link : int32[hosts]
        The directed links host -> switch and switch -> host.
    blocks : the group that leads from every switch towards every edge switch.
    group_first : int64[groups + 1]
        The links of group g are ``group_links[group_first[g] : group_first[g + 1]]``.
    group_links : int32[...]
        The equally good egress links (directed link ids, ascending) of all groups, one after the other; those
        of one group leave the same switch.
    kinds, columns, hops_of_kinds : which switches are joined alike, and how far they are from each other, as in
        `gradwire.experiment.routing.search.Found`.
    """

    network: Network
    edge_of: NDArray[np.int32]
    up_link: NDArray[np.int32]
    down_link: NDArray[np.int32]
    blocks: Blocks
    group_first: NDArray[np.int64]
    group_links: NDArray[np.int32]
    kinds: Kinds
    columns: Ints
    hops_of_kinds: NDArray[np.int16]

    @cached_property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """The groups as tuples of directed link ids; made when first asked for."""
        first, links = self.group_first.tolist(), self.group_links.tolist()
        return tuple(tuple(links[a:b]) for a, b in pairwise(first))

    def group(self, switch: int, edge: int) -> int:
        """The group that leads from a switch towards an edge switch; -1 where there is none to take: at the edge switch
        itself, and for those of another rail that nothing joins to this one."""
        return self.blocks.at(switch, edge)

    def groups_towards(self, edge: int) -> NDArray[np.int32]:
        """The same of every switch: int32[switches]."""
        return self.blocks.towards(edge)

    def next_links(self, switch: int, edge: int) -> tuple[int, ...]:
        """The links of that group; none where there is none."""
        group = self.group(switch, edge)
        if group < 0:
            return ()
        first, beyond = self.group_first[group : group + 2].tolist()
        return tuple(self.group_links[first:beyond].tolist())

    def distance(self, switches: AnyInts, edges: int | AnyInts) -> Ints:
        """Hops from switches to edge switches, of the longest of the paths where costs make paths of different
        lengths equally good; 0 from one to itself, -1 where there is no path: int64, by numpy's rules for shapes."""
        column = self._column[self.kinds.of[edges]]
        hops = self.hops_of_kinds[self.kinds.of[switches], column].astype(np.int64)
        return np.where(np.equal(switches, edges), 0, hops)

    @cached_property
    def farthest(self) -> int:
        """The most hops between a switch and an edge switch."""
        return max(0, int(self.hops_of_kinds.max()))

    @cached_property
    def _column(self) -> Ints:
        """Of every kind of edge switches its column."""
        column = np.full(len(self.kinds.one), -1, dtype=np.int64)
        column[self.columns] = np.arange(len(self.columns))
        return column

    def hops(self, src: int, dst: int) -> int:
        """Links on a (longest) shortest path between two hosts; 2 within one switch, 0 to itself."""
        return 2 + int(self.distance(self.edge_of[src], self.edge_of[dst])) if src != dst else 0

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
            for link in self.next_links(switch, edge):
                yield from onward(int(self.network.link_dst[link]) - first, (*links, link))

        yield from onward(int(self.edge_of[src]), (int(self.up_link[src]),))


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
    With K kinds of switches, C of them with hosts, L links between kinds and a largest distance of D, the search
    takes about L * C * D / 64 word operations; with S switches, E of them with hosts, the table takes some S * E.
    """
    first, switches = network.host_count, network.switch_count
    edge_of = (network.edge_of - first).astype(np.int32)
    edges = np.unique(edge_of).astype(np.int64)
    if switches * len(edges) > LARGEST_TABLE:
        raise ScenarioError(
            f"{switches} switches, {len(edges)} of them with hosts, make a routing table of "
            f"{switches * len(edges):,} entries",
            "topology",
            f"at most {LARGEST_TABLE:,}: fewer switches, or more hosts on each",
        )
    wiring = wire(network, without)
    kinds = find_kinds(wiring, symmetric=not without)
    found = search(wiring, kinds, edges, network.link_cost is not None)
    blocks, group_first, group_links = lay_groups(network, Ways(wiring, kinds, found, edges))
    routing = Routing(
        network=network,
        edge_of=edge_of,
        up_link=network.up_link,
        down_link=network.up_link ^ 1,
        blocks=blocks,
        group_first=group_first,
        group_links=group_links,
        kinds=kinds,
        columns=found.columns,
        hops_of_kinds=found.hops,
    )
    if not without and network.grouped is None:  # rails may be networks of their own
        _refuse_unreached(routing, edges)
    return routing


def _refuse_unreached(routing: Routing, edges: Ints) -> None:
    """Raise ScenarioError if there is an edge switch that some switch does not reach."""
    network, everyone = routing.network, np.arange(routing.network.switch_count)
    first, found = network.host_count, []
    for edge in edges.tolist() if (routing.hops_of_kinds == UNREACHED).any() else ():
        lost = np.flatnonzero(routing.distance(everyone, edge) == UNREACHED)
        if len(lost):
            what = f"{network.names[first + edge]} cannot be reached from "
            what += listed([network.names[first + switch] for switch in lost])
            found.append(Mistake("topology", what, expected="a path between any two nodes"))
    refuse_network(found)
