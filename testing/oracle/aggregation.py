"""Models the oracle's aggregation groups, whose packets switches sum or copy on the way between one host and many.

Sums are real here: a packet records the members whose parts it sums, and the values, if messages have values; the one
host checks that every sum contains each part once.
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
class SlotState:
    """State of one packet number: members received, congestion mark, the parts of its sum, and the sum."""

    whose: set[int] = field(default_factory=set)
    marked: bool = False
    parts: list[int] = field(default_factory=list)
    values: Ints | None = None


class AggregationNode:
    """A switch at which members of a group meet, and the state of their packets, by number."""

    def __init__(self, switch: int, members: Sequence[int]) -> None:
        self.switch, self.places = switch, members
        self.held: dict[int, SlotState] = {}  # in slots
        self.passed: set[int] = set()  # numbers that it forwards unsummed
        self.copied: Counter[int] = Counter()  # copies made of each number


class AggregationGroup:
    """The messages of one aggregation group, by their index in it, and the state of every packet number at the ends."""

    def __init__(self, switches: Sequence[int], edge: int, out: bool, levels: int) -> None:
        """`switches`: those of each of the many; `edge`: that of the one host; `levels`: of switches that sum."""
        members = range(len(switches))
        together = levels > 1 and len(set(switches)) == 1
        self.whole = AggregationNode(switches[0] if together else edge, members)
        self.leaves = {
            switch: AggregationNode(switch, [member for member in members if switches[member] == switch])
            for switch in set(switches)
            if levels > 1 and not together and switch != edge and switches.count(switch) > 1
        }
        self.leaf_of = [self.leaves.get(switch) for switch in switches]
        self.size, self.out = len(switches), out
        self.members: list[Flow] = []
        self.started = 0
        self.cumulative = 0
        self.there: dict[int, SlotState] = {}  # at the one host
        self.complete: set[int] = set()

    def station(self, position: int, switch: int) -> AggregationNode | None:
        """Return the switch's station if members of the group meet there, else None."""
        leaf = self.leaf_of[position]
        if self.whole.switch == switch:
            return self.whole
        return leaf if leaf is not None and leaf.switch == switch else None

    def is_towards_one(self, packet: Packet) -> bool:
        """Return True if the packet goes to the one host: data if messages go there, otherwise acknowledgements."""
        return packet.kind == (ACK if self.out else DATA)

    def is_from_one(self, station: AggregationNode, packet: Packet) -> bool:
        """Return True if the packet comes from the one host and is for all members that meet at a station."""
        if station is not self.whole:
            return packet.leaf and not self.is_towards_one(packet)
        return packet.kind == DATA if self.out else packet.kind == ACK and packet.all

    def copies(self, station: AggregationNode, packet: Packet) -> list[Packet]:
        """Return a station's copies of a packet for all: one per member, or per next station.

        If the packet comes again, the copies are rotated by one.
        """
        copies = []
        for place in station.places:
            leaf, member = self.leaf_of[place], self.members[place]
            before = station is self.whole and leaf is not None
            if before and leaf is not None and place != leaf.places[0]:
                continue
            copies.append(replace(self.copy_for(member, packet), all=False, leaf=before))
        turn = station.copied[packet.sequence] % len(copies)
        station.copied[packet.sequence] += 1
        return copies[turn:] + copies[:turn]

    def copy_for(self, one: Flow, packet: Packet) -> Packet:
        """Return a packet of message `one` of the group, copied from that of another member."""
        data = packet.kind == DATA
        return replace(
            packet,
            flow=one.number,
            entropy=one.entropy,
            dst=one.dst if data else one.src,
            priority=one.priority if data else one.protocol.control_priority,
        )

    def members_of(self, position: int, packet: Packet) -> set[int]:
        if packet.all:
            return set(range(self.size))
        leaf = self.leaf_of[position]
        return set(leaf.places) if packet.leaf and leaf is not None else {position}

    def arrive(self, position: int, packet: Packet) -> SlotState | None:
        """Record a packet at the one host; return the state of its number if it is now complete, else None."""
        state = self.there.setdefault(packet.sequence, SlotState())
        if packet.all:  # it also contains the parts received before
            state = self.there[packet.sequence] = SlotState(marked=state.marked)
        whose = self.members_of(position, packet)
        if whose & state.whose:
            state.marked |= marked(packet)
            return None
        add_packet(state, whose, position, packet)
        if len(state.whose) < self.size:
            return None
        assert sorted(state.parts) == list(range(self.size)), "not the sum of each part once"
        self.complete.add(packet.sequence)
        while self.cumulative in self.complete:
            self.cumulative += 1
        return state

    def has(self, position: int, packet: Packet) -> bool:
        """Return True if the one host already has such a packet, a part of it, or that of all."""
        number = packet.sequence
        there = self.there[number].whose if number in self.there else set()
        return number in self.complete or (not packet.all and bool(self.members_of(position, packet) & there))


class SwitchSlots:
    """The slots of one switch."""

    def __init__(self, free: int) -> None:
        self.free = free
        self.summed = self.unsummed = self.copied = 0

    def add_up(self, fan: AggregationGroup, station: AggregationNode, position: int, packet: Packet) -> Packet | None:
        """Handle a packet to the one host; return the packet to forward, or None."""
        number = packet.sequence
        if packet.leaf and station is not fan.whole:
            return packet
        if number not in station.held and number not in station.passed:
            if self.free:
                self.free -= 1
                station.held[number] = SlotState()
            else:
                station.passed.add(number)
        if number in station.passed:
            self.unsummed += packet.kind == DATA
            return packet
        slot, whose = station.held[number], fan.members_of(position, packet)
        repeated = bool(whose & slot.whose)
        if not repeated:
            add_packet(slot, whose, position, packet)
            if len(slot.whose) < len(station.places):
                self.summed += packet.kind == DATA
                return None
        del station.held[number]
        station.passed.add(number)
        self.free += 1
        if repeated:  # the content of the slot is lost
            self.unsummed += packet.kind == DATA
            return packet
        changes: dict[str, Any] = {"ce" if packet.kind == DATA else "echo": slot.marked}
        whole = station is fan.whole
        return replace(
            fan.copy_for(fan.members[station.places[0]], packet),
            all=whole,
            leaf=not whole,
            parts=tuple(slot.parts),
            values=slot.values,
            **changes,
        )


def marked(packet: Packet) -> bool:
    """Return the packet's congestion mark: CE of data, echo of answers."""
    return packet.ce if packet.kind == DATA else packet.echo


def add_packet(state: SlotState, whose: set[int], position: int, packet: Packet) -> None:
    """Add the packet of one or several members to the state of its number."""
    state.whose |= whose
    state.marked |= marked(packet)
    state.parts += packet.parts or (position,)
    if packet.values is not None:
        state.values = packet.values if state.values is None else state.values + packet.values
