"""Declares the events (delivery, sender done, program part finished) that a network reports to processes in Python."""

from __future__ import annotations

from dataclasses import dataclass

from gradwire.scenarios.inner_units import Bytes, Ps


@dataclass(frozen=True, slots=True)
class Delivery:
    """The delivery of a message, complete or as far as its loss bound allows."""

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
    """A part of a program has ended."""

    part: int
    time_ps: Ps
    message: int = -1


Event = Delivery | Finished | Settled
