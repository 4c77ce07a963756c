"""Splits a host with several network cards into one node per card, and picks the card of a message.

The engine's nodes have one port each: a network card. A host with one cable is one such node and carries the host's
name. A host with n cables is n nodes on separate switches, `h3.nic0`, `h3.nic1`, ..., which share nothing but the host.
Jobs and traffic live on hosts; every message has a number, and leaves and enters by the card with that number modulo
the number of cards, at both ends. So between equal hosts a message stays on one *rail*, from card i to card i.

Cards are numbered in the order of their switches (parallel cables: in the order of the cables), not in the order of the
cables in a file, so that cards of the same number are on the same rail however the file is sorted (our choice).

If machines hold accelerators (`gradwire.topology.accelerators`), each accelerator is a host here, with its ports to the
network and, last, one port to the switch inside its machine, which carries the traffic within the machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from gradwire.scenarios.arrays import AnyInts, Ints
from gradwire.scenarios.errors import ScenarioError
from gradwire.scenarios.lazily import np
from gradwire.topology.cables import Cable, cables_of, card_name


@dataclass(frozen=True, eq=False)
class HostCards:
    """The network cards of each host.

    hosts : names of the hosts, in the order of their numbers.
    first : int64[hosts + 1]; the cards of host h are the nodes ``first[h] .. first[h + 1] - 1``.
    machines : int64[hosts] if hosts are accelerators: the machine of each, whose last card is its scale-up port.
    islands : int64[cards] if some cards of a network cannot reach each other: equal numbers for those that can.
    """

    hosts: tuple[str, ...]
    first: Ints
    machines: Ints | None = None
    islands: Ints | None = None

    @classmethod
    def with_one_card(cls, names: Sequence[str]) -> HostCards:
        """Return hosts with one card each, so that host and node numbers are equal."""
        return cls(tuple(names), np.arange(len(names) + 1, dtype=np.int64))

    @cached_property
    def index(self) -> dict[str, int]:
        """Host numbers by name."""
        return {name: host for host, name in enumerate(self.hosts)}

    @cached_property
    def counts(self) -> Ints:
        """Number of cards of every host."""
        return np.diff(self.first)

    @cached_property
    def single(self) -> bool:
        """True if every host has one card."""
        return bool((self.counts == 1).all())

    @cached_property
    def network(self) -> Ints:
        """Number of cards of every host on the network: all but scale-up ports."""
        return self.counts if self.machines is None else self.counts - 1

    @cached_property
    def per_machine(self) -> int:
        """Accelerators per machine; 1 if there are none."""
        return 1 if self.machines is None else int(np.bincount(self.machines).max())

    def network_rates(self, rates: Ints) -> Ints:
        """Return the total rate of every host on the network, in bits per second, from the rates of all cards:
        int64[hosts]."""
        if self.machines is not None:
            rates = rates.copy()
            rates[self.first[1:] - 1] = 0
        return np.asarray(np.add.reduceat(rates, self.first[:-1]))

    def node(self, host: int, number: int) -> int:
        """Return the card by which a host sends and receives messages with this number on the network."""
        return int(self.first[host]) + number % int(self.network[host])

    def cards(self, src: AnyInts, dst: AnyInts, numbers: AnyInts) -> tuple[Ints, Ints]:
        """Return the source and destination cards of messages with these numbers between these hosts.

        The arguments are arrays that broadcast to one shape. Raises ScenarioError if the two cards are not connected:
        accelerators on rails that are separate networks.
        """
        src, dst, numbers = np.broadcast_arrays(src, dst, numbers)
        ends = [np.asarray(self.first[hosts] + numbers % self.network[hosts]) for hosts in (src, dst)]
        if self.machines is not None:
            inside = self.machines[src] == self.machines[dst]
            ups = [self.first[hosts + 1] - 1 for hosts in (src, dst)]
            ends = [np.where(inside, up, card) for up, card in zip(ups, ends, strict=True)]
        if self.islands is not None and (apart := self.islands[ends[0]] != self.islands[ends[1]]).any():
            one, other = (self.hosts[int(hosts[apart][0])] for hosts in (src, dst))
            what = f"{one} sends to {other}, but their rails are not connected"
            raise ScenarioError(what, "topology", "spines, or an exchange within rails, such as hierarchical")
        return ends[0], ends[1]


def split_hosts(
    hosts: Sequence[str], cables: Sequence[Cable], order: Sequence[int] | None
) -> tuple[list[str], HostCards | None, list[Cable], Sequence[int] | None]:
    """Make every card of a host with several cards a separate node.

    cables : between hosts and switches, which are numbered after them; every host has at least one.
    order : of hosts and switches, or None.

    Return the names of the cards; the cards of each host (None if each host has one); the cables between cards and
    switches; and the order of cards and switches. Everything is unchanged if no host has several cards.
    """
    count = len(hosts)
    by_host = cables_of(count, cables)
    if all(len(indices) == 1 for indices in by_host):
        return list(hosts), None, list(cables), order
    first = np.concatenate(([0], np.cumsum([len(indices) for indices in by_host])))
    shift = int(first[-1]) - count
    names: list[str] = []
    card_cables = list(cables)
    for host, indices in enumerate(by_host):
        several = len(indices) > 1
        for number, index in enumerate(indices):
            names.append(card_name(hosts[host], number) if several else hosts[host])
            card, switch = int(first[host]) + number, cables[index].a + cables[index].b - host + shift
            ends = (card, switch) if cables[index].a == host else (switch, card)
            card_cables[index] = cables[index]._replace(a=ends[0], b=ends[1])
    for index, cable in enumerate(cables):
        if min(cable.a, cable.b) >= count:
            card_cables[index] = cable._replace(a=cable.a + shift, b=cable.b + shift)
    if order is not None:
        order = [
            card
            for node in order
            for card in (range(first[node], first[node + 1]) if node < count else (node + shift,))
        ]
    return names, HostCards(tuple(hosts), first.astype(np.int64)), card_cables, order
