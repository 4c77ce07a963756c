"""What is known of a step of a program that is played, or was, and who takes it when nothing can change any more."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

from gradwire.experiment.program import DRAWN, START, Ints, Part, Step
from gradwire.scenarios.inner_units import Ps
from gradwire.sim.fabric.counts import Counts

NOTES = 5
"""Columns of `notes`: the four times that a process notes, and the time spent computing."""


class Over(NamedTuple):
    """What is kept of a step.

    numbers : int64[messages], the network's; -1 where it has none yet.
    ready : int64[messages], picoseconds: when its host had it ready; -1: not yet.
    started : int64[messages], picoseconds: when it enters its host's NIC, -1 where that is not known yet.
    notes : int64[processes, NOTES], picoseconds; -1: not yet.
    """

    step: Step
    numbers: Ints
    ready: Ints
    started: Ints
    notes: Ints


def since_of(notes: Ints, number: int) -> Ps:
    """From when on time counts where packets of a step arrive at the same time as others: since the first of its
    processes began it, or, in the first steps (`DRAWN`) and in those of traffic, always."""
    begun = notes[:, START][notes[:, START] >= 0]
    return Ps(int(begun.min()) if number >= DRAWN and len(begun) else 0)


@dataclass
class Handed:
    """How much of a part has been handed over to a `Taker`: steps, their messages and bytes, their events."""

    steps: int = 0
    messages: int = 0
    nbytes: int = 0
    events: int = 0


class Taker(Protocol):
    """Who takes what is over: the fabric keeps nothing of it then, so that its memory grows with what is under way and
    not with what is done."""

    def step(self, part: Part, number: int, over: Over, counts: Counts, missing: Ints) -> None:
        """Take a step of a part, the `number`th: every message of it has been delivered, and its counts are final.
        `missing`: rows of `gradwire.scenarios.missing` of its messages."""

    def drops(self, rows: Ints) -> None:
        """Take lost packets, as rows of `Fabric.drop_log`; later ones need not be later in time."""
