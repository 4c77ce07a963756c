"""A step of a program in the state of the engine."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from gradwire.experiment.program import Step
from gradwire.scenarios.arrays import Flags, Ints


@dataclass(eq=False)
class Laid:
    """A step in the state.

    first : number of its first message. event : number of its first event, counted through the part.
    events, messages, notes, left : bases; `left`: deliveries that are left, and the time of the last one so far.
    stretches : words that are given back with it, (how many, base).
    opened : which messages have had a record; `position`: none before it is unopened.
    soonest : the first start of any message that begins by itself, from a message on.
    """

    step: Step
    first: int
    event: int
    events: int = 0
    messages: int = 0
    notes: int = 0
    left: int = 0
    stretches: list[tuple[int, int]] = field(default_factory=list)
    opened: Flags = field(default_factory=lambda: np.zeros(0, dtype=np.bool_))
    position: int = 0
    closed: int = 0
    soonest: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    tags: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    wanted: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))

    @property
    def unopened(self) -> bool:
        return self.position < len(self.opened)
