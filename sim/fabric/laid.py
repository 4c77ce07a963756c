"""A step of a program in the state of the engine."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from gradwire.experiment.program import Step
from gradwire.scenarios.arrays import Ints


@dataclass(eq=False)
class Laid:
    """A step in the state.

    first : number of its first message. event : number of its first event, counted through the part.
    events, messages, notes, left : bases; `left`: deliveries that are left, the time of the last one so far, and how
        many messages have no records any more.
    stretches : words that are given back with it, (how many, base).
    position : of the messages that begin by themselves, none before it is without a record.
    soonest : the first start of any message that begins by itself, from a message on; empty where none does.
    """

    step: Step
    first: int
    event: int
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
