"""Computes messages' unloaded transfer times, from cables, packet sizes and paths without a transport's rules, as the
reference of slowdowns.

They are those of the fastest delivery on an empty network. Packets leave the sender back to back and are stored and
forwarded at every switch, without a window or other traffic.
If all cables between switches are equal and a message keeps to one path, its time is exact. With serialisation times
s_h (full packets) and t_h (the last packet) at hop h and n packets, the last byte arrives after the sum of the
latencies and the longest path through the grid of hops and packets: for some hop m where the last packet takes over
from the one before it,

    sum of s_h up to m  +  (n - 2) max of s_h up to m  +  sum of t_h from m on        (n >= 2)

and the sum of t_h for n = 1.

If cables differ, or packets of one message take several paths, it is a lower bound: the host's cable at either end
takes all packets one after the other, and the hops between take at least the fastest path's time for one packet; a
message on one path is no faster than the widest path's narrowest cable, one on several paths no faster than all cables
together by which it may leave its first switch.
"""

from __future__ import annotations

import numpy as np

from gradwire.jit.records import constants as at
from gradwire.scenarios.arrays import Ints
from gradwire.scenarios.inner_units import Bps, Bytes
from gradwire.scenarios.wire import MIN_FRAME, ps_per_byte
from gradwire.topology import Network
from gradwire.topology.routing import Routing

ONE_PATH = ("ecmp", "ecmp_weighted")
"""Load balancers that keep the packets of a message on one path."""


def unloaded_times(
    network: Network,
    routing: Routing,
    src: Ints,
    dst: Ints,
    nbytes: Ints,
    payload: Bytes,
    overhead: Bytes,
    balancing: str = "ecmp",
) -> Ints:
    """Return the picoseconds from entering the NIC to delivery of messages on the empty network: int64[n].

    src, dst, nbytes : int64[n].
    payload, overhead : bytes of a full packet, and of headers, of the transport.
    balancing : the scenario's load balancing.
    """
    packets = -(-nbytes // payload)
    last = np.maximum(nbytes - (packets - 1) * payload + overhead, MIN_FRAME)
    full = max(payload + overhead, MIN_FRAME)
    if balancing in ONE_PATH and _alike(network):
        return _on_one_path(*_paths(network, routing, src, dst), packets, last, full)
    return _bound(network, routing, src, dst, packets, last, full, balancing in ONE_PATH)


def _alike(network: Network) -> bool:
    """Return True if all cables between switches have one rate and one latency, and all paths are shortest paths."""
    between = (network.link_src >= network.host_count) & (network.link_dst >= network.host_count)
    kinds = np.stack((network.link_rate[between], network.link_latency[between]))
    return network.link_cost is None and np.unique(kinds, axis=1).shape[1] <= 1


def _takes(speed: Ints, size: int | Ints) -> Ints:
    """Return the picoseconds of packets on links, rounded up, as in the engine."""
    return speed * size + ((1 << at.SPEED_SHIFT) - 1) >> at.SPEED_SHIFT


def _on_one_path(speeds: Ints, latencies: Ints, packets: Ints, last: Ints, full: int) -> Ints:
    s, t = _takes(speeds, full), _takes(speeds, last[:, None])
    arrival = np.cumsum(s, axis=1)
    slowest = np.maximum.accumulate(s, axis=1)
    onward = np.cumsum(t[:, ::-1], axis=1)[:, ::-1]
    several = (arrival + (packets - 2)[:, None] * slowest + onward).max(axis=1)
    return np.asarray(latencies.sum(axis=1) + np.where(packets > 1, several, t.sum(axis=1)))


def _bound(
    network: Network, routing: Routing, src: Ints, dst: Ints, packets: Ints, last: Ints, full: int, one: bool
) -> Ints:
    """Return a lower bound for any paths of the packets; `one`: the same path for all."""
    up, down = routing.up_link[src], routing.down_link[dst]
    speed_up, speed_down = (
        ps_per_byte(network.link_rate[links].astype(object)).astype(np.int64) for links in (up, down)
    )
    edges, which = np.unique(np.stack((routing.edge_of[src], routing.edge_of[dst])), axis=1, return_inverse=True)
    latency, speed, narrow = (column[which.ravel()] for column in _between(network, routing, edges[0], edges[1], one))
    ends = network.link_latency[up] + network.link_latency[down] + latency
    inner_full, inner_last = speed * full >> at.SPEED_SHIFT, speed * last >> at.SPEED_SHIFT
    s_up, s_down = _takes(speed_up, full), _takes(speed_down, full)
    t_up, t_down = _takes(speed_up, last), _takes(speed_down, last)
    narrowest = (packets - 1) * (narrow * full >> at.SPEED_SHIFT)
    several = np.maximum.reduce(
        (
            (packets - 1) * s_up + t_up + inner_last + t_down,
            (packets - 1) * s_up + inner_full + s_down,
            s_up + inner_full + (packets - 1) * s_down + t_down,
            s_up + narrowest + t_down,
        )
    )
    return np.asarray(ends + np.where(packets > 1, several, t_up + inner_last + t_down))


def _between(network: Network, routing: Routing, start: Ints, end: Ints, one: bool) -> tuple[Ints, Ints, Ints]:
    """Return the minimum latency, minimum speed and bottleneck speed between pairs of edge switches.

    Speeds are picoseconds per byte, fixed point, summed over the path. The bottleneck is that of the widest path, or,
    of several paths, all cables out of the first switch together.
    """
    speeds = ps_per_byte(network.link_rate.astype(object)).astype(np.int64)
    bounds = np.zeros((3, len(start)), dtype=np.int64)
    inner = np.flatnonzero((network.link_src >= network.host_count) & (network.link_dst >= network.host_count))
    alike = _alike(network)
    for edge in np.unique(end).tolist():
        selected = end == edge
        if alike:
            hops = np.maximum(routing.distance(start[selected], edge), 0)
            cable = (network.link_latency[inner[0]], speeds[inner[0]]) if len(inner) else (0, 0)
            bounds[:, selected] = hops * cable[0], hops * cable[1], (hops > 0) * cable[1]
        else:
            bounds[:, selected] = np.stack(_towards(network, routing, edge, speeds))[:, start[selected]]
        if one:
            continue
        for pair in np.flatnonzero(selected & (start != edge)).tolist():
            links = list(routing.next_links(int(start[pair]), edge))
            bounds[2, pair] = ps_per_byte(Bps(int(network.link_rate[links].sum())))
    return bounds[0], bounds[1], bounds[2]


def _towards(network: Network, routing: Routing, edge: int, speeds: Ints) -> tuple[Ints, Ints, Ints]:
    """Return minimum latency, minimum speed and bottleneck speed of the best paths from every switch to one edge
    switch.

    The bottleneck is that of the widest path. Next hops have shorter (longest) paths, so they are computed before.
    """
    latency, speed, narrow = (np.zeros(network.switch_count, dtype=np.int64) for _ in range(3))
    for switches, links, starts in routing.walk_towards(edge):
        beyond = network.link_dst[links] - network.host_count
        latency[switches] = np.minimum.reduceat(network.link_latency[links] + latency[beyond], starts)
        speed[switches] = np.minimum.reduceat(speeds[links] + speed[beyond], starts)
        narrow[switches] = np.minimum.reduceat(np.maximum(speeds[links], narrow[beyond]), starts)
    return latency, speed, narrow


def _paths(network: Network, routing: Routing, src: Ints, dst: Ints) -> tuple[Ints, Ints]:
    """Return speed (picoseconds per byte, fixed point) and latency of every hop of one shortest path: int64[n, hops],
    zero after the last hop."""
    edge = routing.edge_of.astype(np.int64)
    pairs, which = np.unique(edge[src] * network.switch_count + edge[dst], return_inverse=True)
    one_of = np.unique(which, return_index=True)[1]
    inner: list[tuple[int, ...]] = [next(routing.paths(int(src[i]), int(dst[i])))[1:-1] for i in one_of.tolist()]
    longest = max(len(path) for path in inner)
    table = np.full((len(pairs), longest), -1, dtype=np.int64)
    for row, path in zip(table, inner, strict=True):
        row[: len(path)] = path
    links: Ints = np.column_stack((routing.up_link[src], table[which], routing.down_link[dst]))
    exists = links >= 0
    speeds = np.where(exists, ps_per_byte(network.link_rate[links]), 0)
    return np.asarray(speeds, dtype=np.int64), np.where(exists, network.link_latency[links], 0)
