"""NICs of flows, for hosts with several.

A flow leaves and enters by the NICs of one number: `Flows.rails`, modulo the NICs of each host. A flow that waits for
deliveries has to leave by the NIC by which they arrive, since only that NIC knows of them (our choice; a host's memory
would know as well). So flows that wait for each other, directly or indirectly, all take the number of the first of
them. An accelerator knows the arrivals at all of its ports.
"""

from __future__ import annotations

import numpy as np

from gradwire.topology import HostCards
from gradwire.workload.program import Ints
from gradwire.workload.traffic.base import Flows


def flow_ends(flows: Flows, cards: HostCards) -> tuple[Ints, Ints]:
    """Return the nodes that flows go from and to: two int64[n]."""
    if cards.single:
        return flows.src, flows.dst
    rails = flows.rails[_firsts(len(flows), flows.edges)]
    return cards.ends(flows.src, flows.dst, rails)


def _firsts(n: int, edges: Ints) -> Ints:
    """Return for each of n flows the first flow of its component of `edges`."""
    first = list(range(n))

    def find(flow: int) -> int:
        while first[flow] != flow:
            first[flow] = first[first[flow]]
            flow = first[flow]
        return flow

    for a, b in edges.tolist():
        one, other = find(a), find(b)
        first[max(one, other)] = min(one, other)
    return np.array([find(flow) for flow in range(n)], dtype=np.int64)
