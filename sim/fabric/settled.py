"""What a network tells besides deliveries: that a sender is done, that a part of a program has come to its end."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Settled:
    """The sender of a message knows that it has nothing more to send."""

    message: int
    time_ps: int


@dataclass(frozen=True, slots=True)
class Finished:
    """A part of a program has been played to its end."""

    part: int
    time_ps: int
    message: int = -1
