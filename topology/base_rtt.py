"""Computes base round trips, the times of a full packet and its answer between two hosts on an unloaded network.

`network_size` sums them up for `gradwire check`.

Packets are stored and forwarded: every link adds the transmission time and then the cable's latency. Of several
equal-cost paths the slowest counts, separately for each direction, because a transport's queue-free time must not be
less than the time of a packet that meets no queue. So a base round trip depends on a pair of hosts, its own paths and
the packet sizes of one transport, not on cables that the pair never uses.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from gradwire.scenarios.arrays import AnyInts, Flags, Ints
from gradwire.scenarios.inner_units import Bps, Bytes, Ps
from gradwire.scenarios.wire import crossing_ps, ps_per_byte
from gradwire.topology import Network
from gradwire.topology.routing import Routing, build_routing

MAX_NODES = 2000
"""Number of network cards beyond which round trips are not computed, to keep a check quick (our choice)."""

SLOWEST = Bytes(-1)
"""Stands for a packet size to ask for the speed of the slowest link instead of the time."""


class RoundTrips:
    """The base round trips of a network with complete routes."""

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
        """Return the picoseconds from the first bit of `out` bytes leaving `src` to the last of `back` bytes returning:
        int64[n]. `src` and `dst` are hosts, as numbers or int64[n]."""
        src, dst = np.broadcast_arrays(np.atleast_1d(src), np.atleast_1d(dst))
        return self._one_way_ps(src, dst, out) + self._one_way_ps(dst, src, back)

    def slowest(self, src: int | Ints, dst: int | Ints) -> Ints:
        """Return the picoseconds per byte << 16 of the slowest link on any path from host `src` to `dst`: int64[n]."""
        src, dst = np.broadcast_arrays(np.atleast_1d(src), np.atleast_1d(dst))
        network, routing = self.network, self.routing
        if self._one_speed:
            return np.full(len(src), ps_per_byte(Bps(int(network.link_rate[0]))), dtype=np.int64)
        ends = (ps_per_byte(network.link_rate[links]) for links in (routing.up_link[src], routing.down_link[dst]))
        return np.maximum(np.maximum(*ends), self._between(routing.edge_of[src], routing.edge_of[dst], SLOWEST))

    def longest(self, out: Bytes, back: Bytes) -> Ps:
        """Return the longest round trip between any two hosts."""
        hosts, has_others = self._unequal_hosts
        if len(hosts) == 1:
            return Ps(int(self.times(hosts, hosts, out, back)[0]))
        longest = 0
        for index, host in enumerate(hosts.tolist()):
            others = hosts if has_others[index] else np.delete(hosts, index)  # the host stands for others of its set
            longest = max(longest, int(self.times(host, others, out, back).max()))
        return Ps(longest)

    def representatives(self) -> list[int]:
        """Return one host of each set of hosts on the same switch with cables of equal rate and latency."""
        hosts: list[int] = self._unequal_hosts[0].tolist()
        return hosts

    @cached_property
    def _unequal_hosts(self) -> tuple[Ints, Flags]:
        """The same hosts as an array, and True for those whose set has other hosts."""
        network, up = self.network, self.routing.up_link
        _, rate = np.unique(network.link_rate[up], return_inverse=True)
        _, latency = np.unique(network.link_latency[up], return_inverse=True)
        kind = (self.routing.edge_of.astype(np.int64) * (rate.max() + 1) + rate) * (latency.max() + 1) + latency
        _, first, counts = np.unique(kind, return_index=True, return_counts=True)
        return first, counts > 1

    def _one_way_ps(self, src: Ints, dst: Ints, size: Bytes) -> Ints:
        network, routing = self.network, self.routing
        total = self._between(routing.edge_of[src], routing.edge_of[dst], size)
        for links in (routing.up_link[src], routing.down_link[dst]):
            total = total + crossing_ps(size, network.link_rate[links], network.link_latency[links])
        return np.asarray(total, dtype=np.int64)

    def _between(self, start: AnyInts, end: AnyInts, size: Bytes) -> Ints:
        """Return the time from one switch (index) to another, or the speed of the slowest link if `size` is SLOWEST."""
        if self._alike is not None:
            hops = np.maximum(self.routing.distance(start, end), 0)
            if size == SLOWEST:
                return np.minimum(hops, 1) * ps_per_byte(self._alike[0])
            return hops * crossing_ps(size, *self._alike)
        total = np.zeros(len(start), dtype=np.int64)
        for edge in np.unique(end).tolist():
            to_edge = end == edge
            total[to_edge] = self._times_to_edge(edge, size)[start[to_edge]]
        return total

    def _times_to_edge(self, edge: int, size: Bytes) -> Ints:
        """Return the time of the slowest best path from every switch to an edge switch: int64[switches]. With SLOWEST,
        return the speed of the slowest link on any of these paths. All next hops of a switch have shorter (longest)
        paths than the switch itself, so they are computed before it."""
        known = self._columns.get((edge, size))
        if known is not None:
            return known
        network = self.network
        here = np.zeros(network.switch_count, dtype=np.int64)
        for switches, links, starts in self.routing.walk_towards(edge):
            beyond = here[network.link_dst[links] - network.host_count]
            if size == SLOWEST:
                far = np.maximum(ps_per_byte(network.link_rate[links]), beyond)
            else:
                far = crossing_ps(size, network.link_rate[links], network.link_latency[links]) + beyond
            here[switches] = np.maximum.reduceat(far, starts)
        self._columns[edge, size] = here
        return here


@dataclass(frozen=True)
class NetworkSize:
    """Counts of a network's parts. `machines`: hosts of accelerators, which are the `hosts` then; 0 without any.
    `round_trips`: the shortest and longest between two hosts, in picoseconds, or None."""

    hosts: int
    cards: int
    switches: int
    cables: int
    round_trips: tuple[int, int] | None
    machines: int = 0


def network_size(network: Network, frames: Iterable[tuple[Bytes, Bytes]]) -> NetworkSize:
    """Return the extent of a network. `frames`: wire bytes of a full packet and of its answer, for every transport."""
    cards = network.host_count
    trips = None
    sizes = set(frames)
    if sizes and cards <= MAX_NODES and len(network.cards.hosts) > 1:
        trips = _round_trips(network, sizes)
    machines = 0 if network.cards.machines is None else len(np.unique(network.cards.machines))
    return NetworkSize(len(network.cards.hosts), cards, network.switch_count, network.link_count // 2, trips, machines)


def _round_trips(network: Network, frames: Iterable[tuple[Bytes, Bytes]]) -> tuple[int, int]:
    """Return the shortest and longest round trip over all pairs of cards that exchange messages. Those are cards of the
    same number at two hosts; for accelerators, the scale-up ports of one machine, and the other cards of different
    machines."""
    trips = RoundTrips(network, build_routing(network))
    cards = network.cards
    first, counts = cards.first[:-1], cards.counts
    host = np.repeat(np.arange(len(first)), counts)
    number = np.arange(network.host_count) - np.repeat(first, counts)
    machine = host if cards.machines is None else cards.machines[host]
    inside = np.zeros(len(host), dtype=np.bool_) if cards.machines is None else number == counts[host] - 1
    island = inside if cards.islands is None else np.where(inside, -1, cards.islands)
    low, high = [], []
    for out, back in frames:
        for card in trips.representatives():
            peers = (host != host[card]) & (inside == inside[card]) & ((machine == machine[card]) == inside[card])
            if cards.machines is None:
                peers &= number == number[card]
            others = np.flatnonzero(peers & (island == island[card]))
            if len(others):
                times = trips.times(card, others, out, back)
                low.append(int(times.min()))
                high.append(int(times.max()))
    return min(low), max(high)
