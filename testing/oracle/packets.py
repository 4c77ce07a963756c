"""Declares the oracle's packets and its records of them, and converts packets from and to the engine's words."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from gradwire.jit.records import packets as fields
from gradwire.scenarios.arrays import Ints

DATA, ACK, STOP, BITMAP, PROBE, NACK, PULL, PAUSE = range(8)
HEADER = {
    "dst": fields.destination_of,
    "size": fields.size_of,
    "kind": fields.kind_of,
    "priority": fields.priority_of,
    "important": fields.is_important,
    "ce": fields.is_marked,
    "echo": fields.has_echo,
    "trimmed": fields.is_trimmed,
    "entropy": fields.entropy_of,
    "all": fields.is_group_sum,
    "leaf": fields.is_node_sum,
}
BODY = {"flow": fields.flow_of, "sequence": fields.sequence_of, "argument": fields.argument_of}
"""Attributes of a packet in the engine's two words."""


@dataclass(frozen=True)
class Packet:
    """One packet. `flow` is its message; `priority` is the requested one, whatever queues there are."""

    flow: int
    kind: int
    dst: int
    size: int
    priority: int
    important: bool
    entropy: int
    sequence: int = 0
    argument: int = 0
    ce: bool = False
    echo: bool = False
    trimmed: bool = False
    all: bool = False
    """it represents all members of its aggregation group"""
    leaf: bool = False
    """it represents the members that meet at its first station"""
    parts: tuple[int, ...] = field(default=(), compare=False)
    """members whose parts switches have summed in it; not on the wire"""
    values: Ints | None = field(default=None, compare=False)
    """its values, if it has any"""

    @property
    def rank(self) -> int:
        """Remaining bytes, for shortest-first ports: lower goes first, control packets before data."""
        return self.argument if self.kind == DATA else 0

    def with_mark(self) -> Packet:
        return replace(self, ce=True)

    def as_words(self) -> tuple[int, int]:
        """Return the two words of the engine's format, for load balancers."""
        first, second = (
            sum(int(getattr(self, name)) << place.shift for name, place in word.items()) for word in (HEADER, BODY)
        )
        return first, second


def packet_of(first: int, second: int, flow: int) -> Packet:
    """Return the packet of two words of the engine; the number of its flow record is replaced by its message."""
    values: dict[str, Any] = {name: place(first) for name, place in HEADER.items()}
    values |= {name: place(second) for name, place in BODY.items()}
    return Packet(**{**values, "flow": flow})


class Transmission(NamedTuple):
    """A packet whose first bit leaves onto directed link `link` at `start`; `lost`: it never arrives."""

    start: int
    link: int
    packet: Packet
    lost: bool


class Drop(NamedTuple):
    """A packet lost at the port of `link`.

    Causes: "tail", "selective" or "evicted" in the queue, "no_route" at a switch without a route, which counts it at
    its first port; "link_loss" or "link_down" after it had left.
    """

    time: int
    link: int
    cause: str
    packet: Packet


class DeliveredMessage(NamedTuple):
    """A delivered message; `missing`: its packets that have not arrived."""

    time: int
    message: int
    received: int
    missing: tuple[int, ...]


class Counters(NamedTuple):
    """Counters of one port."""

    packets: int
    bytes: int
    tail: int
    selective: int
    link_loss: int
    evicted: int
    down: int
    no_route: int
    marks: int
    control_marks: int
    trimmed: int
    pauses: int
    peak: int
