"""Routes: for every switch and destination, all egress links that lie on a shortest path (in hops).

Tables are kept per *edge switch*, not per host: a packet for a host first travels to the switch that the
host hangs on, and all hosts of that switch share the way there.  And equal sets of egress links are stored
once per switch as an ECMP *group*: a fat-tree switch has a handful of groups however many hosts there are.

The search is breadth first, backwards from all destination switches at once: one row of a Boolean matrix per
switch, one column per destination, and per level one gather over the links.  Ties are all kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scenarios.errors import Mistake
from sim.topology.network import Network, listed, refuse

UNREACHED = np.iinfo(np.int16).max


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
        there is none to take: at the edge switch itself, and for switches without hosts.
    groups : tuple of tuples of directed link ids, ascending
        The equally good egress links of a group; all leave the same switch.
    distance : int16[switches, switches]
        Hops between switches, where `group_of` has a group; 0 on the diagonal of edge switches, else -1.
    """

    network: Network
    edge_of: NDArray[np.int32]
    up_link: NDArray[np.int32]
    down_link: NDArray[np.int32]
    group_of: NDArray[np.int32]
    groups: tuple[tuple[int, ...], ...]
    distance: NDArray[np.int16]

    def hops(self, src: int, dst: int) -> int:
        """Links on a shortest path between two hosts (2 within one switch)."""
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


def build_routing(network: Network) -> Routing:
    """Find all shortest paths.

    Raises
    ------
    ScenarioError
        Some edge switch cannot be reached from another switch (a Network from `assemble` is connected, so
        this meets only arrays built by hand).
    """
    first, switches = network.host_count, network.switch_count
    edge_of = (network.edge_of - first).astype(np.int32)
    edges = np.unique(edge_of)
    links = np.flatnonzero((network.link_src >= first) & (network.link_dst >= first)).astype(np.int32)
    links = links[np.argsort(network.link_src[links], kind="stable")]  # by switch, then by link id
    src, dst = network.link_src[links] - first, network.link_dst[links] - first

    depth = _search(src, dst, edges, switches)
    lost = np.argwhere(depth == UNREACHED)
    refuse([
        Mistake(
            "topology",
            f"{network.names[first + edges[column]]} cannot be reached from "
            + listed([network.names[first + row] for row in lost[lost[:, 1] == column, 0]]),
            expected="a path between any two nodes",
        )
        for column in np.unique(lost[:, 1])
    ])  # fmt: skip

    group_of = np.full((switches, switches), -1, dtype=np.int32)
    distance = np.full((switches, switches), -1, dtype=np.int16)
    distance[:, edges] = depth
    groups = _group(links, src, dst, edges, depth, group_of)
    return Routing(
        network=network,
        edge_of=edge_of,
        up_link=network.up_link,
        down_link=network.up_link ^ 1,
        group_of=group_of,
        groups=groups,
        distance=distance,
    )


def _search(
    src: NDArray[np.int32], dst: NDArray[np.int32], edges: NDArray[np.int32], switches: int
) -> NDArray[np.int16]:
    """Hops from every switch to every edge switch: int16[switches, edges]; links are sorted by src."""
    depth = np.full((switches, len(edges)), UNREACHED, dtype=np.int16)
    depth[edges, np.arange(len(edges))] = 0
    if not len(src):
        return depth
    with_links, starts = np.unique(src, return_index=True)
    frontier = depth == 0
    for level in range(1, switches):
        near = np.logical_or.reduceat(frontier[dst], starts, axis=0)
        frontier = np.zeros_like(frontier)
        frontier[with_links] = near
        frontier &= depth == UNREACHED
        if not frontier.any():
            break
        depth[frontier] = level
    return depth


def _group(
    links: NDArray[np.int32],
    src: NDArray[np.int32],
    dst: NDArray[np.int32],
    edges: NDArray[np.int32],
    depth: NDArray[np.int16],
    group_of: NDArray[np.int32],
) -> tuple[tuple[int, ...], ...]:
    """Fill `group_of` and return the groups, numbered by switch and by first edge switch that uses them."""
    groups: list[tuple[int, ...]] = []
    bounds = np.searchsorted(src, np.arange(len(group_of) + 1))
    for switch in range(len(group_of)):
        mine = slice(bounds[switch], bounds[switch + 1])
        closer = depth[dst[mine]] == depth[switch] - 1  # [links of the switch, edges]
        packed = np.packbits(closer, axis=0).T  # one row of bits per edge switch
        known: dict[bytes, int] = {}
        row = group_of[switch]
        for column, edge in enumerate(edges.tolist()):
            if edge == switch:
                continue
            key = packed[column].tobytes()
            number = known.get(key)
            if number is None:
                number = known[key] = len(groups)
                groups.append(tuple(links[mine][closer[:, column]].tolist()))
            row[edge] = number
    return tuple(groups)
