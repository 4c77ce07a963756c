"""`CompletedStep` holds a step's message numbers and times; a `StepTaker` receives steps once all their messages are
delivered."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

from gradwire.scenarios.inner_units import Ps
from gradwire.sim.engine.message_counts import MessageCounts
from gradwire.workload.program import START, TIE_DRAW_STEPS, Ints, ProgramPart, Step

NOTE_COLUMNS = 5
"""Columns of `notes`: the four times that a process records, and the time spent computing."""


class CompletedStep(NamedTuple):
    """The outcome of a step.

    numbers : int64[messages], the network's message numbers; -1 while unassigned.
    ready : int64[messages], picoseconds: when its host had it ready; -1: not yet.
    started : int64[messages], picoseconds: when it enters its host's NIC; -1: unknown yet.
    notes : int64[processes, NOTES], picoseconds; -1: not yet.
    """

    step: Step
    numbers: Ints
    ready: Ints
    started: Ints
    notes: Ints


def tie_origin(notes: Ints, number: int) -> Ps:
    """Return the origin of time for breaking ties between simultaneous packets of a step. It is the time at which the
    first process began the step, or 0 in the first steps (`TIE_DRAW_STEPS`) and in those of traffic."""
    begun = notes[:, START][notes[:, START] >= 0]
    return Ps(int(begun.min()) if number >= TIE_DRAW_STEPS and len(begun) else 0)


@dataclass
class HandedOver:
    """Totals of what a part has handed over to a `StepTaker`: steps, their messages and bytes, their events."""

    steps: int = 0
    messages: int = 0
    nbytes: int = 0
    events: int = 0


class StepTaker(Protocol):
    """Takes completed steps and drops, which the fabric then forgets, so that its memory grows only with what is under
    way."""

    def step(self, part: ProgramPart, number: int, over: CompletedStep, counts: MessageCounts, missing: Ints) -> None:
        """Take step `number` of a part: every message of it has been delivered, and its counts are final. `missing`:
        rows of `gradwire.result_store.missing_packets` of its messages."""

    def drops(self, rows: Ints) -> None:
        """Take lost packets, as rows of `Fabric.drop_log`, not necessarily in order of time."""
