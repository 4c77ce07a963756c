"""The links between switches, and which switches are joined alike.

Two switches are of one *kind* if they are joined to the same switches by cables of the same costs (twins, in the words
of graph theory): the edge switches of a pod of a fat-tree, the leaves of a leaf-spine, the spines. Paths from them and
to them cost the same, so they are searched for once for each kind, in a network of kinds that is as much smaller.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradwire.experiment.topology.network import LARGEST_COST, Network
from gradwire.scenarios.arrays import Ints


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

    @property
    def src(self) -> Ints:
        """The switches that they leave."""
        return np.repeat(np.arange(self.switches), np.diff(self.first))


def wire(network: Network, without: Collection[int]) -> Wiring:
    """The links of a network between switches but those of `without`."""
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
    """Which switches are joined alike.

    of : int64[switches]: the kind of each; kinds are numbered by the first switch of each.
    one : int64[kinds]: that switch.
    size : int64[kinds]: how many there are.
    """

    of: Ints
    one: Ints
    size: Ints


def find_kinds(wiring: Wiring, symmetric: bool) -> Kinds:
    """Compare what leads away from every switch; and what leads to it, unless that is known to be the same."""
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
    """The same with one switch of each kind. Of links that lead to one kind at one cost there is one."""
    if len(kinds.one) == wiring.switches:
        return wiring
    mine = np.flatnonzero((kinds.one[kinds.of] == np.arange(wiring.switches))[wiring.src])
    src, dst, cost = kinds.of[wiring.src[mine]], kinds.of[wiring.dst[mine]], wiring.cost[mine]
    _, once = np.unique((src * len(kinds.one) + dst) * (LARGEST_COST + 1) + cost, return_index=True)
    counts = np.bincount(src[once], minlength=len(kinds.one))
    return Wiring(_starts(counts), wiring.links[mine[once]], dst[once].astype(np.int32), cost[once])
