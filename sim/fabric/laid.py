"""A step of a program in the state of the engine."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from gradwire.components import layout as at
from gradwire.experiment.program import Jump, Step
from gradwire.experiment.repeating import later
from gradwire.scenarios.arrays import Ints
from gradwire.scenarios.inner_units import Ps
from gradwire.sim.fabric.over import NOTES


@dataclass(eq=False)
class Laid:
    """A step in the state.

    first : number of its first message. event : number of its first event, counted through the part. number : its own.
    events, messages, notes, left : bases.
    stretches : words that are given back with it, (how many, base).
    position : of the messages that begin by themselves, none before it is without a record.
    soonest : the first start of any message that begins by itself, from a message on; empty where none does.
    """

    step: Step
    first: int
    event: int
    number: int
    events: int = 0
    messages: int = 0
    notes: int = 0
    left: int = 0
    stretches: list[tuple[int, int]] = field(default_factory=list)
    position: int = 0
    soonest: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))

    def __len__(self) -> int:
        """How many messages it has."""
        return len(self.step.messages)

    @property
    def unopened(self) -> bool:
        return self.position < len(self.soonest)

    def jump(self, M: Ints, processes: int, jump: Jump, messages: int, by: Ps) -> None:
        """It is the step that is like this one, so many steps later: its messages have numbers so much higher, and what
        has happened of it did so much later. `M` : the state; `processes` : of its part."""
        self.step, self.number = later(self.step, jump), self.number + jump.steps
        self.first, self.event = self.first + messages, self.event + jump.events
        rows = M[self.messages : self.messages + at.MESSAGE_WORDS * len(self)].reshape(len(self), at.MESSAGE_WORDS)
        rows[:, at.G_TO] += jump.steps << at.A_SIZE
        M[np.unique(rows[:, at.G_VARIANT]) + at.V_FIRST] += messages
        notes = M[self.notes : self.notes + NOTES * processes].reshape(processes, NOTES)
        for times in (rows[:, at.G_READY], rows[:, at.G_RELEASED], notes[:, :-1]):
            times[times >= 0] += by
        for word in (self.left + 1, self.left + at.LEFT_SINCE):
            if M[word]:
                M[word] += by
