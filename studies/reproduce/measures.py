"""Computes the measures that claims use from one Result or one training run. Times are picoseconds, shares 0 to 1.

The time to an accuracy is where the straight line between two evaluations first passes it; before the first evaluation
accuracy is that of chance. It is infinite if never reached. Processor times are measured, so only they differ when a
run is repeated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import inf
from statistics import fmean
from typing import Any

import numpy as np

from gradwire.analysis.comparison.detailed_metrics import detailed_metrics
from gradwire.analysis.metrics import measure, percentile
from gradwire.result_store.arrow import to_numpy
from gradwire.result_store.loss_bound_check import check_loss_invariant
from gradwire.result_store.result import Result
from gradwire.result_store.training_result import TrainingResult
from gradwire.scenarios.loss import allowed_loss_per_message
from gradwire.studies.reproduce.fluid_bound import fluid_bound
from gradwire.studies.reproduce.lost_magnitude import lost_magnitude

RATES = ("1Gbps", "10Gbps", "100Gbps")
"""Link rates for which step times are computed."""
MEASURE_LABELS = {
    "iteration": "iteration time, mean (steady state)",
    "p99": "message completion, p99",
    "mean": "message completion, mean",
    "p50": "message completion, p50",
    "push_p99": "push completion, p99",
    "again": "retransmissions per data packet",
    "timed_out": "share of messages with a time-out",
    "tail_timed_out": "share of the slowest 1 % of messages with a time-out",
    "worst": "loss of a message over what its bound allows, largest",
    "broken": "loss bounds broken",
    "magnitude": "mean |g| of lost gradients over that of their tensors",
    "useful": "useful share of the busiest upstream link",
    "fluid": "iteration time, fluid bound",
    "accuracy": "validation accuracy",
    "loss": "validation loss (cross entropy)",
    "lost": "share of what was sent that did not arrive",
    "worst_lost": "share of a worker's tensor that was lost in a step, largest",
    "again_lost": "of the packets lost in a step: lost in the step before, too, share",
    "often_lost": "packets lost in half of the steps or more, share",
    "runs": "mean run of lost packets, over that of as many lost anywhere in their messages",
    "together": "correlation of two workers' shares lost over the steps, mean of all pairs",
    "worst_place": "share lost where most is, by sender and hop, over that of all",
    "lost_places": "share of the packets lost by sender and hop",
    "step_bytes": "bytes that a worker sends in a step",
    "pulled": "bytes that servers send back to a worker in a step",
    "traffic": "bytes to and from a worker in a step",
    "encode": "processor time of a worker's encoding in a step",
    "server": "processor time of the server in a step",
    "clock": "simulated time of a step, mean",
    "stale": "updates that others made since what a push was computed at, mean",
    "steps_to": "steps to the accuracy",
    "to": "simulated time to the accuracy",
    **{
        f"{name}_{rate}": f"{words}, {rate.removesuffix('Gbps')} Gbps"
        for name, words in (
            ("step", "a step, computing and network"),
            ("to", "time to the accuracy, computing and network"),
            ("worked", "time to the accuracy, with encoding and server"),
        )
        for rate in RATES
    },
    "apart": "distance of the workers' parameters from their mean, root mean square at the end",
    "apart_max": "largest distance of a worker's parameter from their mean, at the end",
    **{
        f"{name}_{predictor}": f"{words}, {how}"
        for name, words in (
            ("error", "distance of the server's model from the workers' mean, over that of known values"),
            ("accuracy", "accuracy of the server's model, mean of all evaluations"),
            ("loss", "loss of the server's model, mean of all evaluations"),
        )
        for predictor, how in (("network", "predicted"), ("hold", "held velocities"), ("none", "known values"))
    },
}
NOTHING_LOST, NOTHING_DELIVERED = "nothing was lost", "no message was delivered"
WHY_ABSENT = {
    "iteration": "no iteration ended",
    **dict.fromkeys(("p99", "mean", "p50", "again", "timed_out", "tail_timed_out"), NOTHING_DELIVERED),
    "push_p99": "no push was delivered",
    "magnitude": NOTHING_LOST,
    "useful": "no upstream link carries the job",
    "fluid": "the run has more than one job, or other traffic",
    **dict.fromkeys(("again_lost", "often_lost", "runs", "worst_place", "lost_places"), NOTHING_LOST),
    "together": "the workers' shares lost do not vary",
    "clock": "the network takes no time",
    "stale": "workers do not come one by one",
    **{
        f"{name}_{how}": "no parameters are predicted"
        for name in ("error", "accuracy", "loss")
        for how in ("network", "hold", "none")
    },
}
"""Reasons why a finished run lacks a measure."""
TIMES = (
    *("iteration", "fluid", "p99", "mean", "p50", "push_p99", "encode", "server", "clock", "to"),
    *(f"{name}_{rate}" for name in ("step", "to", "worked") for rate in RATES),
)
UNITS = {
    **dict.fromkeys(TIMES, "time"),
    **dict.fromkeys(("broken", "step_bytes", "apart", "apart_max", "pulled", "traffic", "steps_to"), "count"),
    **dict.fromkeys(("worst", "magnitude", "loss", "runs", "together", "worst_place"), "ratio"),
    **{f"{name}_{how}": "ratio" for name in ("error", "loss") for how in ("network", "hold", "none")},
}


def unit_of(measure: str) -> str:
    """Return the unit in which a measure is printed."""
    return UNITS.get(measure, "share")


def figures(result: Result) -> dict[str, float]:
    """Return all measures of a Result; completion times cover all delivered messages, from readiness."""
    (entry, *_) = measure(result)
    table = result.messages
    end, start = to_numpy(table["end_ps"]), to_numpy(table["start_ps"])
    done = end >= 0
    duration = (end - start)[done]
    measures = {
        "broken": float(len(check_loss_invariant(result))),
        "worst": _worst(result),
        "under_way": float((~done).sum()),
        "finished": float(entry.finished),
    }
    if entry.iteration.count:
        measures["iteration"] = entry.iteration.mean_ps
    if not len(duration):
        return measures
    timeouts = to_numpy(table["timeouts"])[done]
    slow = duration >= percentile(duration, 0.99)
    packets = int(to_numpy(table["packets"]).sum())
    measures |= {
        "mean": float(duration.mean()),
        "p50": float(percentile(duration, 0.5)),
        "p99": float(percentile(duration, 0.99)),
        "timed_out": float((timeouts > 0).mean()),
        "tail_timed_out": float((timeouts[slow] > 0).mean()),
        "again": float(to_numpy(table["retransmitted"]).sum()) / packets,
    }
    pushes = np.asarray(to_numpy(table["kind"])[done] == "push")
    if pushes.any():
        measures["push_p99"] = float(percentile(duration[pushes], 0.99))
    fluid = fluid_bound(result)
    if fluid is not None:
        measures["fluid"] = fluid
    magnitude = lost_magnitude(result)
    if magnitude is not None:
        measures["magnitude"] = magnitude
    upstream = detailed_metrics(result, entry.job).upstream
    if upstream is not None:
        measures["useful"] = upstream.share
    return measures


def training_figures(training: TrainingResult) -> dict[str, float]:
    """Return all measures of a finished training run: final accuracy and loss, the others as means of its steps."""
    workers = int(training.summary["workers"])
    last, clock = training.scores[-1], training.steps[-1]["clock_ps"]
    return {
        **({"clock": float(clock) / len(training.steps)} if clock else {}),
        **({"stale": float(np.mean([row["stale"] for row in training.turns]))} if training.turns else {}),
        "accuracy": float(last["accuracy"]),
        "loss": float(last["loss"]),
        "lost": float(np.mean([row["lost"] for row in training.steps])),
        "worst_lost": float(max((row["lost"] for row in training.tables.get("lost", ())), default=0.0)),
        "apart": float(training.steps[-1]["apart_rms"]),
        "apart_max": float(training.steps[-1]["apart_max"]),
        "step_bytes": float(np.mean([row["sent_bytes"] for row in training.steps])) / workers,
        **_prediction_figures(training.tables.get("predictions", ())),
    }


def _prediction_figures(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return errors, accuracies and losses of the server's model by predictor, as means of all evaluations.

    "network" is any predictor but holding and none.
    """
    by_predictor: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        name = row["predictor"] if row["predictor"] in ("hold", "none") else "network"
        by_predictor.setdefault(name, []).append(row)
    return {
        f"{measure}_{name}": fmean(float(row[measure]) for row in some)
        for name, some in by_predictor.items()
        for measure in ("error", "accuracy", "loss")
    }


def _worst(result: Result) -> float:
    table = result.messages
    done = to_numpy(table["end_ps"]) >= 0
    lost, size, bound = (to_numpy(table[name])[done] for name in ("lost_bytes", "bytes", "bound"))
    allowed = allowed_loss_per_message(size, bound)
    used = np.where(lost > 0, lost / np.maximum(allowed, 1), 0.0)
    return float(used.max(initial=0.0))


CHANCE = 0.1
"""Accuracy of guessing among ten classes, where curves begin."""
SECOND_PS = 1e12


def costs(training: TrainingResult, target: float, step_ps: Mapping[str, int]) -> dict[str, float]:
    """Return measures of `MEASURE_LABELS` in bytes and picoseconds.

    For curves it adds accuracy and clock at each evaluation, and the steps to each percent of accuracy
    ("steps_to@57").

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
    by_step = [(0.0, CHANCE), *((float(row["step"]), float(row["accuracy"])) for row in training.scores)]
    measures |= {f"steps_to@{percent}": first_crossing(by_step, percent / 100) for percent in range(11, 100)}
    for row in training.scores:
        measures |= {f"accuracy@{row['step']}": float(row["accuracy"]), f"clock@{row['step']}": float(row["clock_ps"])}
    if not target:
        return measures
    measures["steps_to"] = reached = first_crossing(by_step, target)
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
