"""Declares the oracle's packets and its records of them, and converts packets from and to the engine's words."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import NamedTuple

from gradwire.scenarios.arrays import Ints

DATA, ACK, STOP, BITMAP, PROBE, NACK, PULL, PAUSE = range(8)


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
        """Return the packet with the congestion mark set."""
        return replace(self, ce=True)

    def as_words(self) -> tuple[int, int]:
        """Return the two words of the engine's format, for load balancers.

        Layout: destination 18, size 14, kind 3, priority 3, important, ce, echo, trimmed, entropy 16, logged (not
        here), all, leaf; and flow 20, sequence 22, argument 22 bits, lowest first.
        """
        first = (
            self.dst
            | self.size << 18
            | self.kind << 32
            | self.priority << 35
            | self.important << 38
            | self.ce << 39
            | self.echo << 40
            | self.trimmed << 41
            | self.entropy << 42
            | self.all << 59
            | self.leaf << 60
        )
        return first, self.flow | self.sequence << 20 | self.argument << 42


def packet_of(first: int, second: int, flow: int) -> Packet:
    """Return the packet of two words of the engine; the number of its flow record is replaced by its message."""
    return Packet(
        flow=flow,
        dst=first & 0x3FFFF,
        size=first >> 18 & 0x3FFF,
        kind=first >> 32 & 7,
        priority=first >> 35 & 7,
        important=bool(first >> 38 & 1),
        ce=bool(first >> 39 & 1),
        echo=bool(first >> 40 & 1),
        trimmed=bool(first >> 41 & 1),
        entropy=first >> 42 & 0xFFFF,
        all=bool(first >> 59 & 1),
        leaf=bool(first >> 60 & 1),
        sequence=second >> 20 & 0x3FFFFF,
        argument=second >> 42 & 0x3FFFFF,
    )


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
