"""Which network cards flows take, where hosts have several.

A flow leaves and enters by the cards of one number: `Flows.rails`, modulo the cards of each host. A flow that waits for
deliveries has to leave by the card by which they come in, since nothing but a card knows what has arrived there (our
choice; a host's memory would know as well). So flows that wait for each other, directly or by way of others, all take
the number of the first of them. An accelerator knows what arrived by any of its ports.
"""

from __future__ import annotations

import numpy as np

from gradwire.experiment.program import Ints
from gradwire.experiment.topology import Cards
from gradwire.experiment.traffic.base import Flows


def ends(flows: Flows, cards: Cards) -> tuple[Ints, Ints]:
    """The nodes that flows go from and to: two int64[n]."""
    if cards.single:
        return flows.src, flows.dst
    rails = flows.rails[_firsts(len(flows), flows.edges)]
    return cards.ends(flows.src, flows.dst, rails)


def _firsts(n: int, edges: Ints) -> Ints:
    """For each of n flows, the first of those that it is tied to by edges, itself included."""
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
