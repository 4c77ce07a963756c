"""Events: what a network tells the processes on it."""

from __future__ import annotations

from dataclasses import dataclass

from gradwire.scenarios.units import Bytes, Ps


@dataclass(frozen=True, slots=True)
class Delivery:
    """A message that its receiver has as far as it is going to."""

    message: int
    time_ps: Ps
    received_bytes: Bytes
    lost_bytes: Bytes


@dataclass(frozen=True, slots=True)
class Settled:
    """The sender of a message knows that it has nothing more to send."""

    message: int
    time_ps: Ps


@dataclass(frozen=True, slots=True)
class Finished:
    """A part of a program has been played to its end."""

    part: int
    time_ps: Ps
    message: int = -1


Event = Delivery | Finished | Settled
