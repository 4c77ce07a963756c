"""Hosts with several network cards.

The engine knows nodes with one port: each is a network card. A host with one cable is one such node and carries the
host's name; a host with n cables is n nodes, which hang on switches of their own and share nothing but their host:
`h3.nic0`, `h3.nic1`, ... Jobs and traffic live on hosts, and every message leaves and enters by one card, chosen by a
number that whoever sends it gives it: the number modulo the cards of the host, at both ends. So between hosts alike a
message stays on one *rail*: it leaves by card i and enters by card i.

Cards are numbered in the order of the switches that they hang on (parallel cables: in the order of the cables), not
in that of the cables in a file, so that cards of the same number are on the same rail however the file is sorted (our
choice).

Where machines hold accelerators (`gradwire.experiment.topology.accelerators`), each of these is a host here, with the
ports by which it reaches the network and, last, one port to the switch inside of its machine: what stays in the machine
goes by that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradwire.experiment.topology.cables import Cable, cables_of, card_name
from gradwire.scenarios.errors import ScenarioError


@dataclass(frozen=True, eq=False)
class Cards:
    """Which nodes of the network are the cards of which host.

    Attributes
    ----------
    hosts : names of the hosts; their numbers count through them.
    first : int64[hosts + 1]
        The cards of host h are the nodes ``first[h] .. first[h + 1] - 1``.
    machines : int64[hosts] or None
        Where hosts are accelerators, the machine that each is in. The last card of each is then its scale-up port.
    islands : int64[cards] or None
        Where not every card of a network reaches every other one, a number that those have in common that do.
    """

    hosts: tuple[str, ...]
    first: NDArray[np.int64]
    machines: NDArray[np.int64] | None = None
    islands: NDArray[np.int64] | None = None

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

    @cached_property
    def network(self) -> NDArray[np.int64]:
        """Cards of every host that are on the network: all but scale-up ports."""
        return self.counts if self.machines is None else self.counts - 1

    @cached_property
    def per_machine(self) -> int:
        """Accelerators of a machine; 1 where hosts have none of their own."""
        return 1 if self.machines is None else int(np.bincount(self.machines).max())

    def network_rates(self, rates: NDArray[np.int64]) -> NDArray[np.int64]:
        """Bits per second by which every host is on the network, given those of all cards: int64[hosts]."""
        if self.machines is not None:
            rates = rates.copy()
            rates[self.first[1:] - 1] = 0
        return np.asarray(np.add.reduceat(rates, self.first[:-1]))

    def node(self, host: int, number: int) -> int:
        """The card by which a host reaches the network with what has this number."""
        return int(self.first[host]) + number % int(self.network[host])

    def ends(
        self, src: NDArray[Any], dst: NDArray[Any], numbers: NDArray[Any]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The cards by which messages leave and enter, that have these numbers and go between these hosts; arrays of
        one shape, or that broadcast to one.

        Raises
        ------
        ScenarioError
            Nothing joins the two cards: accelerators on rails that are networks of their own.
        """
        src, dst, numbers = np.broadcast_arrays(src, dst, numbers)
        both = [np.asarray(self.first[each] + numbers % self.network[each]) for each in (src, dst)]
        if self.machines is not None:
            inside = self.machines[src] == self.machines[dst]
            ups = [self.first[each + 1] - 1 for each in (src, dst)]
            both = [np.where(inside, up, card) for up, card in zip(ups, both, strict=True)]
        if self.islands is not None:
            self._refuse_apart(src, dst, self.islands[both[0]] != self.islands[both[1]])
        return both[0], both[1]

    def _refuse_apart(self, src: NDArray[Any], dst: NDArray[Any], apart: NDArray[np.bool_]) -> None:
        """Raise ScenarioError if some pairs of hosts are `apart`."""
        if apart.any():
            pair = [int(np.broadcast_to(each, apart.shape)[apart][0]) for each in (src, dst)]
            raise ScenarioError(
                f"{self.hosts[pair[0]]} and {self.hosts[pair[1]]} are on rails that nothing joins, and one sends to "
                "the other", "topology", "spines, or an exchange that keeps to rails, such as hierarchical",
            )  # fmt: skip


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
