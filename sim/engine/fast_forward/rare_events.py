"""Rare events: have losses and time-outs been seen often enough to estimate their cost?

A lost packet may cost next to nothing or, if no later packet reveals it, a time-out as long as many iterations. An
interval from the spread of iteration times ignores what has not been seen. So if packets are lost, or may be, the
effect must have been seen first: in `FEW` periods with time-outs, if there are any, and in `MANY` without. Droppable
packets that switches drop selectively do not count: no sender waits for them. (All of it is our choice.)
"""

from __future__ import annotations

import numpy as np

from gradwire.jit.records import constants as at
from gradwire.scenarios.arrays import Flags, Ints
from gradwire.sim.engine.message_counts import MessageCounts
from gradwire.sim.engine.program.completed_step import CompletedStep
from gradwire.workload.program import ProgramPart

FEW, MANY = 10, 64


def rare_event_flags(
    part: ProgramPart, over: list[tuple[ProgramPart, int, CompletedStep, MessageCounts, Ints]], lost: list[Ints]
) -> Flags:
    """Return the periods of a part in which its messages lost packets and met time-outs: bool[periods, 2]. `over`,
    `lost`: steps and lost packets as they are handed over; whole periods of the part."""
    rows = np.concatenate(lost) if lost else np.zeros((0, 5), dtype=np.int64)
    messages = np.unique(rows[rows[:, 1] >> 32 != at.CAUSE_SELECTIVE, 4])
    flags: list[tuple[bool, bool]] = [
        (bool(np.isin(step.numbers, messages).any()), bool((counts.timeouts > 0).any()))
        for owner, _, step, counts, _ in over
        if owner is part
    ]
    return np.logical_or.reduce(np.array(flags, dtype=np.bool_).reshape(-1, part.repeats.period, 2), axis=1)


def too_rare(flags: Flags, lossy: bool) -> str:
    """Return why the periods (as `rare_event_flags`) do not suffice to predict others; empty if they do. `lossy`: links
    lose packets at random."""
    losses, timeouts = flags.sum(axis=0).tolist()
    if timeouts and timeouts < FEW:
        return "time-outs are too rare to say what they cost"
    if (losses or lossy) and not timeouts and losses < MANY:
        return "packets are lost too rarely to say what that costs"
    return ""
