"""Fans: messages of the same contents between one host and many, which the switch of the one adds up, or copies.

What is added up is real here: a packet has with it whose parts it is the sum of, and at the one host every sum that is
taken has each part once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from gradwire.testing.oracle.packets import ACK, DATA, Packet

if TYPE_CHECKING:
    from gradwire.testing.oracle.flows import Flow


@dataclass
class Gathered:
    """What has come of one packet number: from whom, whether any was marked, and the parts of its sum."""

    whose: set[int] = field(default_factory=set)
    marked: bool = False
    parts: list[int] = field(default_factory=list)


class Fan:
    """The messages of one fan, by their place in it, and what has come of every packet number at either end."""

    def __init__(self, size: int, out: bool, edge: int) -> None:
        """`edge`: the switch that the one host hangs on."""
        self.size, self.out, self.edge = size, out, edge
        self.members: list[Flow] = []
        self.started = 0
        self.cumulative = 0
        self.held: dict[int, Gathered] = {}  # in slots of the switch
        self.passed: set[int] = set()  # numbers that the switch lets through
        self.there: dict[int, Gathered] = {}  # at the one host
        self.complete: set[int] = set()

    def inwards(self, packet: Packet) -> bool:
        """Whether it is on its way to the one host: data where messages go there, otherwise acknowledgements."""
        return packet.kind == (ACK if self.out else DATA)

    def outwards(self, packet: Packet) -> bool:
        """Whether it comes from the one host and is for all."""
        return packet.kind == DATA if self.out else packet.kind == ACK and packet.all

    def copies(self, packet: Packet) -> list[Packet]:
        """What the switch makes of a packet for all."""
        return [
            replace(
                packet, flow=each.number, all=False, entropy=each.entropy, dst=each.dst if self.out else each.src,
                priority=each.priority if self.out else each.protocol.control_priority,
            )
            for each in self.members
        ]  # fmt: skip

    def arrive(self, place: int, packet: Packet) -> Gathered | None:
        """A packet has come to the one host: what there is of its number if now that is of all, else nothing."""
        got = self.there.setdefault(packet.sequence, Gathered())
        if place in got.whose and not packet.all:
            got.marked |= marked(packet)
            return None
        add(got, place, packet, self._parts(place, packet))
        if not packet.all and len(got.whose) < self.size:
            return None
        if packet.all:
            got.parts = list(packet.parts)  # it has what came by itself as well
        assert sorted(got.parts) == list(range(self.size)), "not the sum of each part once"
        self.complete.add(packet.sequence)
        while self.cumulative in self.complete:
            self.cumulative += 1
        return got

    def has(self, place: int, packet: Packet) -> bool:
        """Whether the one host has such a packet of one of the fan already, or of all."""
        number = packet.sequence
        return number in self.complete or (
            not packet.all and number in self.there and place in self.there[number].whose
        )

    @staticmethod
    def _parts(place: int, packet: Packet) -> Sequence[int]:
        return packet.parts or (place,)


class Slots:
    """The slots of one switch."""

    def __init__(self, free: int) -> None:
        self.free = free
        self.summed = self.unsummed = self.copied = 0

    def add_up(self, fan: Fan, place: int, packet: Packet) -> Packet | None:
        """A packet on its way to the one host: what goes on, if anything does."""
        number = packet.sequence
        if number not in fan.held and number not in fan.passed:
            if self.free:
                self.free -= 1
                fan.held[number] = Gathered()
            else:
                fan.passed.add(number)
        if number in fan.passed:
            self.unsummed += packet.kind == DATA
            return packet
        slot = fan.held[number]
        again = place in slot.whose
        if not again:
            add(slot, place, packet, (place,))
            if len(slot.whose) < fan.size:
                self.summed += packet.kind == DATA
                return None
        del fan.held[number]
        fan.passed.add(number)
        self.free += 1
        if again:  # what is in the slot is lost
            self.unsummed += packet.kind == DATA
            return packet
        marks = {"ce" if packet.kind == DATA else "echo": slot.marked}
        return replace(packet, all=True, parts=tuple(slot.parts), **marks)


def marked(packet: Packet) -> bool:
    """What it says of congestion on the way: data of their own, answers of that of the data."""
    return packet.ce if packet.kind == DATA else packet.echo


def add(got: Gathered, place: int, packet: Packet, parts: Sequence[int]) -> None:
    """A packet of one of a fan, or of all, is added to what there is of its number."""
    got.whose.add(place)
    got.marked |= marked(packet)
    got.parts += parts
