"""Base round trips: how long a full packet and its answer take between two hosts when nothing else is on the way.

A packet is stored and forwarded: on every link its bytes take their time, then the cable's latency passes. Of several
equally good paths it is the slowest that counts, out and back each for itself: what a transport takes for the time
without queues must not be less than a packet without queues can take. So the base round trip belongs to a pair of
hosts, to its own paths and to the sizes of one transport; cables that the pair never uses do not show in it.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from gradwire.experiment.routing import Routing
from gradwire.experiment.topology import Network
from gradwire.scenarios.arrays import AnyInts, Flags, Ints
from gradwire.scenarios.inner_units import Bps, Bytes, Ps
from gradwire.scenarios.wire import crossing_ps, speed_of

SLOWEST = Bytes(-1)
"""In the place of a packet's size: not how long it takes is asked, but how slow the slowest link is."""


class RoundTrips:
    """The base round trips of a network whose routes are whole."""

    def __init__(self, network: Network, routing: Routing) -> None:
        self.network, self.routing = network, routing
        between = (network.link_src >= network.host_count) & (network.link_dst >= network.host_count)
        kinds = np.unique(np.stack((network.link_rate[between], network.link_latency[between])), axis=1)
        self._alike: tuple[Bps, Ps] | None = None  # rate and latency of all inner links
        if kinds.shape[1] == 1:
            self._alike = Bps(int(kinds[0, 0])), Ps(int(kinds[1, 0]))
        self._one_speed = len(np.unique(network.link_rate)) == 1
        self._columns: dict[tuple[int, int], Ints] = {}

    def times(self, src: int | Ints, dst: int | Ints, out: Bytes, back: Bytes) -> Ints:
        """Picoseconds from the first bit of `out` bytes leaving host `src` to the last of `back` bytes returning from
        `dst`: int64[n]; hosts are numbers or int64[n]."""
        src, dst = np.broadcast_arrays(np.atleast_1d(src), np.atleast_1d(dst))
        return self._one_way(src, dst, out) + self._one_way(dst, src, back)

    def slowest(self, src: int | Ints, dst: int | Ints) -> Ints:
        """Picoseconds per byte << 16 of the slowest link on any of the paths from host `src` to `dst`: int64[n]."""
        src, dst = np.broadcast_arrays(np.atleast_1d(src), np.atleast_1d(dst))
        network, routing = self.network, self.routing
        if self._one_speed:
            return np.full(len(src), speed_of(Bps(int(network.link_rate[0]))), dtype=np.int64)
        ends = (speed_of(network.link_rate[links]) for links in (routing.up_link[src], routing.down_link[dst]))
        return np.maximum(np.maximum(*ends), self._between(routing.edge_of[src], routing.edge_of[dst], SLOWEST))

    def longest(self, out: Bytes, back: Bytes) -> Ps:
        """That of the two hosts for which it is longest."""
        hosts, several = self._unlike
        if len(hosts) == 1:
            return Ps(int(self.times(hosts, hosts, out, back)[0]))
        found = 0
        for place, host in enumerate(hosts.tolist()):
            others = hosts if several[place] else np.delete(hosts, place)  # itself stands for one of its own set
            found = max(found, int(self.times(host, others, out, back).max()))
        return Ps(found)

    def unlike(self) -> list[int]:
        """One host of each set that hangs on one switch by cables alike."""
        hosts: list[int] = self._unlike[0].tolist()
        return hosts

    @cached_property
    def _unlike(self) -> tuple[Ints, Flags]:
        """The same as an array, and whether there are more hosts in the set."""
        network, up = self.network, self.routing.up_link
        _, rate = np.unique(network.link_rate[up], return_inverse=True)
        _, latency = np.unique(network.link_latency[up], return_inverse=True)
        kind = (self.routing.edge_of.astype(np.int64) * (rate.max() + 1) + rate) * (latency.max() + 1) + latency
        _, first, counts = np.unique(kind, return_index=True, return_counts=True)
        return first, counts > 1

    def _one_way(self, src: Ints, dst: Ints, size: Bytes) -> Ints:
        network, routing = self.network, self.routing
        total = self._between(routing.edge_of[src], routing.edge_of[dst], size)
        for links in (routing.up_link[src], routing.down_link[dst]):
            total = total + crossing_ps(size, network.link_rate[links], network.link_latency[links])
        return np.asarray(total, dtype=np.int64)

    def _between(self, start: AnyInts, end: AnyInts, size: Bytes) -> Ints:
        """From one switch (index) to another: the time, or with SLOWEST for a size the slowest link."""
        if self._alike is not None:
            hops = np.maximum(self.routing.distance(start, end), 0)
            if size == SLOWEST:
                return np.minimum(hops, 1) * speed_of(self._alike[0])
            return hops * crossing_ps(size, *self._alike)
        total = np.zeros(len(start), dtype=np.int64)
        for edge in np.unique(end).tolist():
            mine = end == edge
            total[mine] = self._towards(edge, size)[start[mine]]
        return total

    def _towards(self, edge: int, size: Bytes) -> Ints:
        """The slowest of the best paths of every switch to one edge switch (with SLOWEST: the slowest link on any of
        them): int64[switches]. All next hops of a switch have shorter (longest) paths than itself, so they are known
        before it."""
        known = self._columns.get((edge, size))
        if known is not None:
            return known
        network, routing = self.network, self.routing
        here = np.zeros(network.switch_count, dtype=np.int64)
        groups, hops = routing.groups_towards(edge), routing.distance(np.arange(network.switch_count), edge)
        for level in range(1, int(hops.max()) + 1):
            switches = np.flatnonzero((hops == level) & (groups >= 0))
            if not len(switches):
                continue
            first = routing.group_first[groups[switches]]
            counts = routing.group_first[groups[switches] + 1] - first
            starts = np.cumsum(counts) - counts
            links = routing.group_links[np.repeat(first - starts, counts) + np.arange(counts.sum())]
            beyond = here[network.link_dst[links] - network.host_count]
            if size == SLOWEST:
                far = np.maximum(speed_of(network.link_rate[links]), beyond)
            else:
                far = crossing_ps(size, network.link_rate[links], network.link_latency[links]) + beyond
            here[switches] = np.maximum.reduceat(far, starts)
        self._columns[edge, size] = here
        return here
