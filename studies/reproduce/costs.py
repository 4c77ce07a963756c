"""Costs of a finished training run: bytes, processor time, and the time to an accuracy.

The time to an accuracy is where the straight line between two evaluations first passes it; before the first evaluation
accuracy is that of chance. It is infinite if never reached. Processor times are measured, so only they differ when a
run is repeated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import inf
from statistics import fmean

from gradwire.result_store.training_result import TrainingResult

CHANCE = 0.1
"""Accuracy of guessing among ten classes, where curves begin."""
SECOND_PS = 1e12


def costs(training: TrainingResult, target: float, step_ps: Mapping[str, int]) -> dict[str, float]:
    """Return measures of `gradwire.studies.reproduce.measures.MEASURE_LABELS` in bytes and picoseconds.

    For curves it adds accuracy and clock at each evaluation.

    target : the accuracy that times are to; 0: none.
    step_ps : step time by link rate, computing and network (`gradwire.studies.training.step_time_model`).
    """
    steps, workers = len(training.steps), int(training.summary["workers"])
    pushed, pulled = (fmean(row[name] for row in training.steps) / workers for name in ("sent_bytes", "pulled_bytes"))
    encode = SECOND_PS * float(training.summary["encode_cpu_s"]) / steps / workers
    server = SECOND_PS * float(training.summary["server_cpu_s"]) / steps
    measures = {"pulled": pulled, "traffic": pushed + pulled, "encode": encode, "server": server}
    clock = float(training.steps[-1]["clock_ps"])
    if clock:
        measures["clock"] = clock / steps
    measures |= {f"step_{rate}": float(step) for rate, step in step_ps.items()}
    for row in training.scores:
        measures |= {f"accuracy@{row['step']}": float(row["accuracy"]), f"clock@{row['step']}": float(row["clock_ps"])}
    if not target:
        return measures
    reached = first_crossing(
        [(0.0, CHANCE), *((float(row["step"]), row["accuracy"]) for row in training.scores)], target
    )
    measures["steps_to"] = reached
    if clock:
        times = [(float(row["clock_ps"]), float(row["accuracy"])) for row in training.scores]
        measures["to"] = first_crossing([(0.0, CHANCE), *times], target)
    for rate, step in step_ps.items():
        measures[f"to_{rate}"] = reached * step
        measures[f"worked_{rate}"] = reached * (step + encode + server)
    return measures


def first_crossing(curve: Sequence[tuple[float, float]], target: float) -> float:
    """Return where a curve of (x, height), joined by lines, first reaches a height; infinite if it does not."""
    for (before, low), (after, high) in pairwise(curve):
        if low < target <= high:
            return before + (target - low) / (high - low) * (after - before)
    return curve[0][0] if curve and curve[0][1] >= target else inf
