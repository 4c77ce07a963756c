"""One run described: a network, what is sent over it, what befalls it; and all that happened."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gradwire.experiment.topology import Network
from gradwire.scenarios.inner_units import Ps
from gradwire.scenarios.schema.network import Switch as SwitchTable
from gradwire.scenarios.schema.transport_base import Transport
from gradwire.testing.oracle.packets import Arrival, Counters, Drop, Transmission

FOREVER = 10**13  # 10 s: longer than any case takes


@dataclass(frozen=True)
class Letter:
    """A message to be sent: at `time`, or `time` after the delivery of letter number `after`."""

    time: int
    src: int
    dst: int
    nbytes: int
    transport: int = 0
    priority: int = 0
    bound: float = 0.0
    important: Sequence[bool] | bool | None = None
    after: int | None = None
    share: float | None = None
    """its own part of a budget; None: its bound"""
    pool: int = 0
    turn: int | None = None
    """None: its number"""
    fan: int | None = None
    """letters of one fan are alike, between one host and others: switches sum them up, or make them of one"""
    since: int = 0
    """from when on time counts where its packets arrive at the same time as others"""


@dataclass(frozen=True)
class Change:
    """Something is done to the network at a time, in the words of `gradwire.sim.fabric.control`: `what` is one of its methods,
    `target` a link or a host, or the links that routes are to avoid; `value` a rate or a probability of loss."""

    time: int
    what: str
    target: Any
    value: Any = None


@dataclass(frozen=True)
class Case:
    """A network, what its switches and transports are like, the letters to be sent over it, and what befalls it."""

    network: Network
    transports: Sequence[Transport]
    letters: Sequence[Letter]
    switch: SwitchTable = field(default_factory=SwitchTable)
    balancing: str = "ecmp"
    seed: int = 1
    host_latency: Ps = Ps(2_000_000)
    changes: Sequence[Change] = ()
    folder: Path | None = None
    """where modules of one's own lie; None: in the working directory"""


@dataclass(frozen=True)
class Outcome:
    """Everything that happened, in an order of its own that no implementation decides."""

    transmissions: list[Transmission]
    drops: list[Drop]
    arrivals: list[Arrival]
    ports: list[Counters]
    sent: list[int]
    """packets per message: data and probes"""
    again: list[int]
    """per message: data packets that had been sent before"""


def unprompted(case: Case) -> list[int]:
    return [number for number, letter in enumerate(case.letters) if letter.after is None]


def prompted(case: Case, by: int) -> list[int]:
    return [number for number, letter in enumerate(case.letters) if letter.after == by]


def members(case: Case, fan: int) -> list[int]:
    """The letters of a fan."""
    return [number for number, letter in enumerate(case.letters) if letter.fan == fan]


def by_start(one: Transmission) -> tuple[int, int]:
    return one.start, one.link


def by_time(drops: Iterable[Drop]) -> list[Drop]:
    return sorted(drops, key=lambda drop: (drop.time, drop.link, drop.packet.flow, drop.packet.words()))
