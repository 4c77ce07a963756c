"""Declares a case (network, messages, changes during the run) and its outcome, for comparing engine and oracle."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gradwire.scenarios.inner_units import Ps
from gradwire.scenarios.schema.network.network import Switch as SwitchTable
from gradwire.scenarios.schema.network.transport_base import Transport
from gradwire.testing.oracle.packets import Counters, DeliveredMessage, Drop, Transmission
from gradwire.topology import Network

FOREVER = 10**13  # 10 s: longer than any case takes


@dataclass(frozen=True)
class MessageSpec:
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
    """its own part of a loss budget; None: its bound"""
    pool: int = 0
    turn: int | None = None
    """None: its number"""
    fan: int | None = None
    """number of the aggregation group: equal letters between one host and others, which switches sum or multicast"""
    since: int = 0
    """start of relative time, which breaks ties with simultaneous packets"""


@dataclass(frozen=True)
class NetworkChange:
    """A change of the network during a run.

    what : a method of `gradwire.sim.engine.network_control`.
    target : a link or a host, or the links that routes are to avoid.
    value : a rate or a probability of loss.
    """

    time: int
    what: str
    target: Any
    value: Any = None


@dataclass(frozen=True)
class Case:
    """A network with its switches and transports, the letters to be sent over it, and changes during the run."""

    network: Network
    transports: Sequence[Transport]
    letters: Sequence[MessageSpec]
    switch: SwitchTable = field(default_factory=SwitchTable)
    balancing: str = "ecmp"
    seed: int = 1
    host_latency: Ps = Ps(2_000_000)
    changes: Sequence[NetworkChange] = ()
    folder: Path | None = None
    """folder of user-defined modules; None: the working directory"""


@dataclass(frozen=True)
class Outcome:
    """Complete outcome of a run, in an implementation-independent order."""

    transmissions: list[Transmission]
    drops: list[Drop]
    arrivals: list[DeliveredMessage]
    ports: list[Counters]
    sent: list[int]
    """packets per message: data and probes"""
    again: list[int]
    """retransmitted data packets per message"""


def initial_letters(case: Case) -> list[int]:
    return [number for number, letter in enumerate(case.letters) if letter.after is None]


def following_letters(case: Case, by: int) -> list[int]:
    return [number for number, letter in enumerate(case.letters) if letter.after == by]


def members(case: Case, fan: int) -> list[int]:
    return [number for number, letter in enumerate(case.letters) if letter.fan == fan]


def start_key(one: Transmission) -> tuple[int, int]:
    return one.start, one.link


def sorted_by_time(drops: Iterable[Drop]) -> list[Drop]:
    return sorted(drops, key=lambda drop: (drop.time, drop.link, drop.packet.flow, drop.packet.as_words()))
