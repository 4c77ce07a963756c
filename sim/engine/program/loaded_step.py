"""`LoadedStep` records the position of a program's step in the engine's state, and moves it past skipped iterations."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from gradwire.jit.records import constants as at
from gradwire.jit.records import view
from gradwire.jit.records.programs import ProgramMessage, StepCount, Variant
from gradwire.scenarios.arrays import Ints
from gradwire.scenarios.inner_units import Ps
from gradwire.sim.engine.program.completed_step import NOTE_COLUMNS
from gradwire.workload.program import Step, StepSkip
from gradwire.workload.steps import shift_step


@dataclass(eq=False)
class LoadedStep:
    """A step in the state.

    first : number of its first message.
    event : number of its first event, counted through the part.
    number : its own number.
    events, messages, notes, left : bases.
    stretches : (words, base) of the arena stretches that it owns.
    position : messages that begin by themselves have records up to here.
    soonest : by message, the first start of any later message that begins by itself; empty if there is none.
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
        """Return the number of its messages."""
        return len(self.step.messages)

    @property
    def unopened_messages(self) -> bool:
        return self.position < len(self.soonest)

    def jump(self, state: Ints, processes: int, jump: StepSkip, messages: int, by: Ps) -> None:
        """Turn it into the step that is like it, some steps later, with higher message numbers and later times.

        `state` : the state; `processes` : number of processes of its part.
        """
        self.step, self.number = shift_step(self.step, jump), self.number + jump.steps
        self.first, self.event = self.first + messages, self.event + jump.events
        rows = state[self.messages : self.messages + ProgramMessage.WORDS * len(self)].reshape(
            len(self), ProgramMessage.WORDS
        )
        rows[:, ProgramMessage.destination.offset] += jump.steps << at.TURN_SHIFT
        view(Variant, state, np.unique(rows[:, ProgramMessage.variant.offset])).first_message += messages
        notes = state[self.notes : self.notes + NOTE_COLUMNS * processes].reshape(processes, NOTE_COLUMNS)
        for times in (
            rows[:, ProgramMessage.ready_at.offset],
            rows[:, ProgramMessage.released_at.offset],
            notes[:, :-1],
        ):
            times[times >= 0] += by
        for word in (self.left + 1, self.left + StepCount.since.offset):
            if state[word]:
                state[word] += by
