"""The links between switches, and the kinds of switches with equal neighbours.

Two switches are of one *kind* if they are joined to the same switches by cables of the same costs (twins in graph
theory): the edge switches of a pod of a fat-tree, the leaves of a leaf-spine, the spines. Paths from them and to them
cost the same, so the search runs once per kind, in the smaller network of kinds.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradwire.scenarios.arrays import Ints
from gradwire.topology.network import LARGEST_COST, Network


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
