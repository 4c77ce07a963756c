"""Size and base round trips of a network, for `gradwire check`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from gradwire.scenarios.inner_units import Bytes
from gradwire.topology import Network
from gradwire.topology.base_rtt import RoundTrips
from gradwire.topology.routing import build_routing

MAX_NODES = 2000
"""Number of network cards beyond which round trips are not computed, to keep a check quick (our choice)."""


@dataclass(frozen=True)
class NetworkSize:
    """Counts of a network's parts. `round_trips`: the shortest and longest between two hosts, in picoseconds, or
    None."""

    hosts: int
    cards: int
    switches: int
    cables: int
    round_trips: tuple[int, int] | None


def network_size(network: Network, frames: Iterable[tuple[Bytes, Bytes]]) -> NetworkSize:
    """Return the extent of a network. `frames`: wire bytes of a full packet and of its answer, for every transport."""
    cards = network.host_count
    trips = None
    sizes = set(frames)
    if sizes and cards <= MAX_NODES and len(network.cards.hosts) > 1:
        trips = _round_trips(network, sizes)
    return NetworkSize(len(network.cards.hosts), cards, network.switch_count, network.link_count // 2, trips)


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
        for card in trips.unlike():
            peers = (host != host[card]) & (inside == inside[card]) & ((machine == machine[card]) == inside[card])
            if cards.machines is None:
                peers &= number == number[card]
            others = np.flatnonzero(peers & (island == island[card]))
            if len(others):
                times = trips.times(card, others, out, back)
                low.append(int(times.min()))
                high.append(int(times.max()))
    return min(low), max(high)
