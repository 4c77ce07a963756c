"""Hosts with several network cards.

The engine knows nodes with one port: each is a network card. A host with one cable is one such node and carries the
host's name; a host with n cables is n nodes, which hang on switches of their own and share nothing but their host:
`h3.nic0`, `h3.nic1`, ... Jobs and traffic live on hosts, and every message leaves and enters by one card, chosen by a
number that whoever sends it gives it: the number modulo the cards of the host, at both ends. So between hosts alike a
message stays on one *rail*: it leaves by card i and enters by card i.

Cards are numbered in the order of the switches that they hang on (parallel cables: in the order of the cables), not
in that of the cables in a file, so that cards of the same number are on the same rail however the file is sorted (our
choice).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradwire.experiment.topology.cables import Cable, cables_of, card_name


@dataclass(frozen=True, eq=False)
class Cards:
    """Which nodes of the network are the cards of which host.

    Attributes
    ----------
    hosts : names of the hosts; their numbers count through them.
    first : int64[hosts + 1]
        The cards of host h are the nodes ``first[h] .. first[h + 1] - 1``.
    """

    hosts: tuple[str, ...]
    first: NDArray[np.int64]

    @classmethod
    def one_each(cls, names: Sequence[str]) -> Cards:
        """Hosts with one card each: host and node are the same number."""
        return cls(tuple(names), np.arange(len(names) + 1, dtype=np.int64))

    @cached_property
    def index(self) -> dict[str, int]:
        """Number of a host by its name."""
        return {name: host for host, name in enumerate(self.hosts)}

    @cached_property
    def counts(self) -> NDArray[np.int64]:
        """Cards of every host."""
        return np.diff(self.first)

    @cached_property
    def single(self) -> bool:
        """Whether every host has one card."""
        return bool((self.counts == 1).all())

    def node(self, host: int, number: int) -> int:
        """The card by which a host sends or receives what has this number."""
        return int(self.first[host]) + number % int(self.counts[host])

    def nodes(self, hosts: NDArray[Any], numbers: NDArray[Any]) -> NDArray[np.int64]:
        """The same for many hosts and numbers."""
        return np.asarray(self.first[hosts] + numbers % self.counts[hosts])


def split(
    hosts: Sequence[str], cables: Sequence[Cable], order: Sequence[int] | None
) -> tuple[list[str], Cards | None, list[Cable], Sequence[int] | None]:
    """Make every card of a host with several a node of its own.

    Parameters
    ----------
    hosts : names, one per host.
    cables : between hosts and switches, which are numbered after them; every host has at least one.
    order : of hosts and switches, or None.

    Returns
    -------
    names of the cards, which card is whose (None where each host has one), the cables between cards and switches, and
    the order of these: all as they were if no host has several.
    """
    count = len(hosts)
    mine = cables_of(count, cables)
    if all(len(places) == 1 for places in mine):
        return list(hosts), None, list(cables), order
    first = np.concatenate(([0], np.cumsum([len(places) for places in mine])))
    further = int(first[-1]) - count
    names: list[str] = []
    plugged = list(cables)
    for host, places in enumerate(mine):
        several = len(places) > 1
        for number, place in enumerate(places):
            names.append(card_name(hosts[host], number) if several else hosts[host])
            card, switch = int(first[host]) + number, cables[place].a + cables[place].b - host + further
            ends = (card, switch) if cables[place].a == host else (switch, card)
            plugged[place] = cables[place]._replace(a=ends[0], b=ends[1])
    for place, cable in enumerate(cables):
        if min(cable.a, cable.b) >= count:
            plugged[place] = cable._replace(a=cable.a + further, b=cable.b + further)
    if order is not None:
        order = [
            card
            for node in order
            for card in (range(first[node], first[node + 1]) if node < count else (node + further,))
        ]
    return names, Cards(tuple(hosts), first.astype(np.int64)), plugged, order
