"""Costs: bytes, processor time, and the time to an accuracy, of a training that is over.

A time to an accuracy is where the straight line between two looks at unseen data passes it first; the one before the
first look is chance. It is infinite where that is never. Processor times are measured, and so the only ones that differ
when a training is done again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import inf
from statistics import fmean

from gradwire.scenarios.learned import Learned

CHANCE = 0.1
"""Accuracy of a guess between ten classes: where curves begin."""
SECOND_PS = 1e12


def costs(training: Learned, target: float, step_ps: Mapping[str, int]) -> dict[str, float]:
    """Measures of `gradwire.analysis.claims.measures.WORDS`, bytes and picoseconds; and, for curves, accuracy and clock
    at each look at unseen data.

    target : the accuracy that times are to; 0: none.
    step_ps : what a step takes at rates of links by name, computing and network (`gradwire.pricing`).
    """
    steps, workers = len(training.steps), int(training.summary["workers"])
    pushed, pulled = (
        fmean(row[name] for row in training.steps) / workers for name in ("sent_bytes", "pulled_bytes")
    )
    encode = SECOND_PS * float(training.summary["encode_cpu_s"]) / steps / workers
    server = SECOND_PS * float(training.summary["server_cpu_s"]) / steps
    found = {"pulled": pulled, "traffic": pushed + pulled, "encode": encode, "server": server}
    clock = float(training.steps[-1]["clock_ps"])
    if clock:
        found["clock"] = clock / steps
    found |= {f"step_{rate}": float(step) for rate, step in step_ps.items()}
    for row in training.scores:
        found |= {f"accuracy@{row['step']}": float(row["accuracy"]), f"clock@{row['step']}": float(row["clock_ps"])}
    if not target:
        return found
    reached = passed([(0.0, CHANCE), *((float(row["step"]), row["accuracy"]) for row in training.scores)], target)
    found["steps_to"] = reached
    if clock:
        times = [(float(row["clock_ps"]), float(row["accuracy"])) for row in training.scores]
        found["to"] = passed([(0.0, CHANCE), *times], target)
    for rate, step in step_ps.items():
        found[f"to_{rate}"] = reached * step
        found[f"worked_{rate}"] = reached * (step + encode + server)
    return found


def passed(curve: Sequence[tuple[float, float]], target: float) -> float:
    """Where a curve of (place, height) comes to a height first, in straight lines; infinite if it does not."""
    for (before, low), (after, high) in pairwise(curve):
        if low < target <= high:
            return before + (target - low) / (high - low) * (after - before)
    return curve[0][0] if curve and curve[0][1] >= target else inf
