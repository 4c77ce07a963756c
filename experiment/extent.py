"""How large a network is, and how long its base round trips are: what `gradwire check` says of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from gradwire.experiment.routing import build_routing
from gradwire.experiment.topology import Network
from gradwire.experiment.trips import RoundTrips
from gradwire.scenarios.inner_units import Bytes

MOST_NODES = 2000
"""Network cards beyond which round trips are not looked for: a check is to be quick (our choice)."""


@dataclass(frozen=True)
class Extent:
    """What there is of each. `round_trips`: the fastest and the slowest between two hosts, picoseconds; None where it
    was not looked for."""

    hosts: int
    cards: int
    switches: int
    cables: int
    round_trips: tuple[int, int] | None


def extent_of(network: Network, frames: Iterable[tuple[Bytes, Bytes]]) -> Extent:
    """The extent of a network. `frames`: bytes on a link of a full packet and of its answer, of every transport."""
    cards = network.host_count
    trips = None
    sizes = set(frames)
    if sizes and cards <= MOST_NODES and len(network.cards.hosts) > 1:
        trips = _round_trips(network, sizes)
    return Extent(len(network.cards.hosts), cards, network.switch_count, network.link_count // 2, trips)


def _round_trips(network: Network, frames: Iterable[tuple[Bytes, Bytes]]) -> tuple[int, int]:
    """Of all pairs of cards by which messages leave and enter: those of one number, of two hosts; of accelerators,
    those of one machine by their scale-up ports and others by the rest."""
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
            met = (host != host[card]) & (inside == inside[card]) & ((machine == machine[card]) == inside[card])
            if cards.machines is None:
                met &= number == number[card]
            others = np.flatnonzero(met & (island == island[card]))
            if len(others):
                times = trips.times(card, others, out, back)
                low.append(int(times.min()))
                high.append(int(times.max()))
    return min(low), max(high)
