"""Rare events: whether what befalls iterations of a job now and then has been seen often enough to say what it costs.

A lost packet may cost next to nothing, or, where nothing behind it tells its sender, a time-out as long as many
iterations. An interval from the spread of iteration times knows nothing of what it has not seen. So where packets are
lost, or may be by chance, it has to have been seen first: in `FEW` periods with time-outs, if there are any, and in
`MANY` without. Droppable packets that switches drop by choice do not count: no sender waits for these. (All of it our
choice.)
"""

from __future__ import annotations

import numpy as np

from gradwire.components import layout as at
from gradwire.experiment.program import Part
from gradwire.scenarios.arrays import Flags, Ints
from gradwire.sim.fabric.counts import Counts
from gradwire.sim.fabric.over import Over

FEW, MANY = 10, 64


def seen(part: Part, over: list[tuple[Part, int, Over, Counts, Ints]], lost: list[Ints]) -> Flags:
    """In which periods of a part packets were lost, and in which its messages met time-outs: bool[periods, 2].

    `over`, `lost`: steps and lost packets as they are handed over; whole periods of the part.
    """
    rows = np.concatenate(lost) if lost else np.zeros((0, 5), dtype=np.int64)
    messages = np.unique(rows[rows[:, 1] >> 32 != at.CAUSE_SELECTIVE, 4])
    found: list[tuple[bool, bool]] = [
        (bool(np.isin(each.numbers, messages).any()), bool((counts.timeouts > 0).any()))
        for own, _, each, counts, _ in over
        if own is part
    ]
    return np.logical_or.reduce(np.array(found, dtype=np.bool_).reshape(-1, part.repeats.period, 2), axis=1)


def too_rare(flags: Flags, lossy: bool) -> str:
    """Why what periods have met (as `seen`) does not say what others will, in words; empty if it does. `lossy`: links
    lose packets at random."""
    losses, timeouts = flags.sum(axis=0).tolist()
    if timeouts and timeouts < FEW:
        return "time-outs are too rare to say what they cost"
    if (losses or lossy) and not timeouts and losses < MANY:
        return "packets are lost too rarely to say what that costs"
    return ""
