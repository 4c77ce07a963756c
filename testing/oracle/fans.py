"""Fans: messages of the same contents between one host and many, which switches add up, or copy: that of the one, and
those that several of the many hang on.

What is added up is real here: a packet has with it whose parts it is the sum of, and the values, if it is said what each
message carries; at the one host every sum that is taken has each part once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from gradwire.scenarios.arrays import Ints
from gradwire.testing.oracle.packets import ACK, DATA, Packet

if TYPE_CHECKING:
    from gradwire.testing.oracle.flows import Flow


@dataclass
class Gathered:
    """What has come of one packet number: from whom, whether any was marked, the parts of its sum, and the sum."""

    whose: set[int] = field(default_factory=set)
    marked: bool = False
    parts: list[int] = field(default_factory=list)
    values: Ints | None = None


class Station:
    """A switch at which some of a fan meet, or all, and what it knows of their packets, by number."""

    def __init__(self, switch: int, places: Sequence[int]) -> None:
        self.switch, self.places = switch, places
        self.held: dict[int, Gathered] = {}  # in slots
        self.passed: set[int] = set()  # numbers that it lets through
        self.copied: Counter[int] = Counter()  # how often it has made copies of each


class Fan:
    """The messages of one fan, by their place in it, and what has come of every packet number at either end."""

    def __init__(self, switches: Sequence[int], edge: int, out: bool, levels: int) -> None:
        """`switches`: those that each of the many hangs on; `edge`: that of the one host. `levels`: of switches that sum."""
        places = range(len(switches))
        together = levels > 1 and len(set(switches)) == 1
        self.whole = Station(switches[0] if together else edge, places)
        self.leaves = {
            switch: Station(switch, [place for place in places if switches[place] == switch])
            for switch in set(switches)
            if levels > 1 and not together and switch != edge and switches.count(switch) > 1
        }
        self.leaf_of = [self.leaves.get(switch) for switch in switches]
        self.size, self.out = len(switches), out
        self.members: list[Flow] = []
        self.started = 0
        self.cumulative = 0
        self.there: dict[int, Gathered] = {}  # at the one host
        self.complete: set[int] = set()

    def station(self, place: int, switch: int) -> Station | None:
        """Where a packet of one of the fan has come to at a switch, if it meets others there."""
        leaf = self.leaf_of[place]
        if self.whole.switch == switch:
            return self.whole
        return leaf if leaf is not None and leaf.switch == switch else None

    def inwards(self, packet: Packet) -> bool:
        """Whether it is on its way to the one host: data where messages go there, otherwise acknowledgements."""
        return packet.kind == (ACK if self.out else DATA)

    def outwards(self, station: Station, packet: Packet) -> bool:
        """Whether it comes from the one host and is for all that meet at a station."""
        if station is not self.whole:
            return packet.leaf and not self.inwards(packet)
        return packet.kind == DATA if self.out else packet.kind == ACK and packet.all

    def copies(self, station: Station, packet: Packet) -> list[Packet]:
        """What a station makes of a packet for all: one for each, or for each station before it; when it comes again,
        with another one first."""
        made = []
        for place in station.places:
            leaf, each = self.leaf_of[place], self.members[place]
            before = station is self.whole and leaf is not None
            if before and leaf is not None and place != leaf.places[0]:
                continue
            made.append(replace(self.as_of(each, packet), all=False, leaf=before))
        turn = station.copied[packet.sequence] % len(made)
        station.copied[packet.sequence] += 1
        return made[turn:] + made[:turn]

    def as_of(self, one: Flow, packet: Packet) -> Packet:
        """A packet of one message of the fan, made of that of another."""
        data = packet.kind == DATA
        return replace(
            packet, flow=one.number, entropy=one.entropy, dst=one.dst if data else one.src,
            priority=one.priority if data else one.protocol.control_priority,
        )  # fmt: skip

    def whose(self, place: int, packet: Packet) -> set[int]:
        """The places that a packet stands for."""
        if packet.all:
            return set(range(self.size))
        leaf = self.leaf_of[place]
        return set(leaf.places) if packet.leaf and leaf is not None else {place}

    def arrive(self, place: int, packet: Packet) -> Gathered | None:
        """A packet has come to the one host: what there is of its number if now that is of all, else nothing."""
        got = self.there.setdefault(packet.sequence, Gathered())
        if packet.all:  # it has what came by itself as well
            got = self.there[packet.sequence] = Gathered(marked=got.marked)
        whose = self.whose(place, packet)
        if whose & got.whose:
            got.marked |= marked(packet)
            return None
        add(got, whose, place, packet)
        if len(got.whose) < self.size:
            return None
        assert sorted(got.parts) == list(range(self.size)), "not the sum of each part once"
        self.complete.add(packet.sequence)
        while self.cumulative in self.complete:
            self.cumulative += 1
        return got

    def has(self, place: int, packet: Packet) -> bool:
        """Whether the one host has such a packet already, or a part of it, or that of all."""
        number = packet.sequence
        there = self.there[number].whose if number in self.there else set()
        return number in self.complete or (not packet.all and bool(self.whose(place, packet) & there))


class Slots:
    """The slots of one switch."""

    def __init__(self, free: int) -> None:
        self.free = free
        self.summed = self.unsummed = self.copied = 0

    def add_up(self, fan: Fan, station: Station, place: int, packet: Packet) -> Packet | None:
        """A packet on its way to the one host: what goes on, if anything does."""
        number = packet.sequence
        if packet.leaf and station is not fan.whole:
            return packet
        if number not in station.held and number not in station.passed:
            if self.free:
                self.free -= 1
                station.held[number] = Gathered()
            else:
                station.passed.add(number)
        if number in station.passed:
            self.unsummed += packet.kind == DATA
            return packet
        slot, whose = station.held[number], fan.whose(place, packet)
        again = bool(whose & slot.whose)
        if not again:
            add(slot, whose, place, packet)
            if len(slot.whose) < len(station.places):
                self.summed += packet.kind == DATA
                return None
        del station.held[number]
        station.passed.add(number)
        self.free += 1
        if again:  # what is in the slot is lost
            self.unsummed += packet.kind == DATA
            return packet
        changes: dict[str, Any] = {"ce" if packet.kind == DATA else "echo": slot.marked}
        whole = station is fan.whole
        return replace(
            fan.as_of(fan.members[station.places[0]], packet), all=whole, leaf=not whole, parts=tuple(slot.parts),
            values=slot.values, **changes,
        )  # fmt: skip


def marked(packet: Packet) -> bool:
    """What it says of congestion on the way: data of their own, answers of that of the data."""
    return packet.ce if packet.kind == DATA else packet.echo


def add(got: Gathered, whose: set[int], place: int, packet: Packet) -> None:
    """A packet of one of a fan, or of several, is added to what there is of its number."""
    got.whose |= whose
    got.marked |= marked(packet)
    got.parts += packet.parts or (place,)
    if packet.values is not None:
        got.values = packet.values if got.values is None else got.values + packet.values
