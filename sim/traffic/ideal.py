"""How long a message takes on an empty network: what slowdowns are measured against.

Packets leave the sender back to back and are stored and forwarded at every switch, along one of the shortest paths, and
nothing is in their way: no window, no other traffic. With serialisation times s_h (full packets) and t_h (the last
packet) at hop h and n packets, the last byte arrives after the sum of the latencies and the longest way through the
grid of hops and packets: for some hop m where the last packet takes over from the one before it,

    sum of s_h up to m  +  (n - 2) max of s_h up to m  +  sum of t_h from m on        (n >= 2)

and the sum of t_h for n = 1. Where links differ between equally short paths, it is that of one of them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from scenarios.wire import MIN_FRAME
from sim.fabric import layout as at
from sim.fabric.room import speed_of
from sim.routing import Routing
from sim.topology import Network

Ints = NDArray[np.int64]


def ideal_times(
    network: Network, routing: Routing, src: Ints, dst: Ints, nbytes: Ints, payload: int, overhead: int
) -> Ints:
    """Picoseconds from entering the interface to delivery of messages on the empty network: int64[n].

    Parameters
    ----------
    src, dst, nbytes : int64[n].
    payload, overhead : bytes of a full packet, and of headers, of the transport.
    """
    speeds, latencies = _paths(network, routing, src, dst)
    packets = -(-nbytes // payload)
    last = np.maximum(nbytes - (packets - 1) * payload + overhead, MIN_FRAME)
    full = max(payload + overhead, MIN_FRAME)
    up = (1 << at.SPEED_SHIFT) - 1  # picoseconds are rounded up, as in the engine
    s = speeds * full + up >> at.SPEED_SHIFT
    t = speeds * last[:, None] + up >> at.SPEED_SHIFT
    there = np.cumsum(s, axis=1)
    slowest = np.maximum.accumulate(s, axis=1)
    onward = np.cumsum(t[:, ::-1], axis=1)[:, ::-1]
    many = (there + (packets - 2)[:, None] * slowest + onward).max(axis=1)
    return np.asarray(latencies.sum(axis=1) + np.where(packets > 1, many, t.sum(axis=1)))


def _paths(network: Network, routing: Routing, src: Ints, dst: Ints) -> tuple[Ints, Ints]:
    """Speed (picoseconds per byte, fixed point) and latency of every hop of one shortest path: int64[n, hops], zero
    behind the last hop."""
    edge = routing.edge_of.astype(np.int64)
    pairs, which = np.unique(edge[src] * network.switch_count + edge[dst], return_inverse=True)
    one_of = np.unique(which, return_index=True)[1]
    inner: list[tuple[int, ...]] = [
        next(routing.paths(int(src[i]), int(dst[i])))[1:-1] for i in one_of.tolist()
    ]
    longest = max(len(path) for path in inner)
    table = np.full((len(pairs), longest), -1, dtype=np.int64)
    for row, path in zip(table, inner, strict=True):
        row[: len(path)] = path
    links: Ints = np.column_stack((routing.up_link[src], table[which], routing.down_link[dst]))
    there = links >= 0
    speeds: Any = np.where(there, speed_of(network.link_rate[links]), 0)
    return np.asarray(speeds, dtype=np.int64), np.where(there, network.link_latency[links], 0)
