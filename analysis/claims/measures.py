"""Measures: the figures that claims are about, of one Result or training. Times are picoseconds, shares 0 to 1."""

from __future__ import annotations

import numpy as np

from gradwire.analysis.claims.magnitude import lost_magnitude
from gradwire.analysis.detail import detail
from gradwire.analysis.metrics import measure, percentile
from gradwire.scenarios.arrow import numpy_of
from gradwire.scenarios.learned import Learned
from gradwire.scenarios.loss import allowed_losses
from gradwire.scenarios.result import Result
from gradwire.scenarios.soundness import check_loss_invariant

RATES = ("1Gbps", "10Gbps", "100Gbps")
"""Of links, at which it is worked out what steps would take."""
WORDS = {
    "iteration": "iteration time, mean (steady state)",
    "p99": "message completion, p99",
    "mean": "message completion, mean",
    "p50": "message completion, p50",
    "push_p99": "push completion, p99",
    "again": "packets sent again, per packet of data",
    "timed_out": "messages that met a time-out, share",
    "tail_timed_out": "of the slowest 1 % of messages: met a time-out",
    "worst": "loss of a message over what its bound allows, largest",
    "broken": "loss bounds broken",
    "magnitude": "mean |g| of lost gradients over that of their tensors",
    "useful": "useful share of the busiest upstream link",
    "accuracy": "accuracy on data that was not learned from",
    "loss": "loss (cross entropy) on data that was not learned from",
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
            ("step", "a step, computing and network"), ("to", "time to the accuracy, computing and network"),
            ("worked", "time to the accuracy, with encoding and server"),
        )
        for rate in RATES
    },
    "apart": "distance of the workers' parameters from their mean, root mean square at the end",
    "apart_max": "largest distance of a worker's parameter from their mean, at the end",
}
NOTHING_LOST, NOTHING_DELIVERED = "nothing was lost", "no message was delivered"
WHY_ABSENT = {
    "iteration": "no iteration ended",
    **dict.fromkeys(("p99", "mean", "p50", "again", "timed_out", "tail_timed_out"), NOTHING_DELIVERED),
    "push_p99": "no push was delivered",
    "magnitude": NOTHING_LOST,
    "useful": "no upstream link carries the job",
    **dict.fromkeys(("again_lost", "often_lost", "runs", "worst_place", "lost_places"), NOTHING_LOST),
    "together": "the workers' shares lost do not vary",
    "clock": "the network takes no time",
    "stale": "workers do not come one by one",
}
"""By measure, why a run that is over does not have it."""
TIMES = (
    "iteration", "p99", "mean", "p50", "push_p99", "encode", "server", "clock", "to",
    *(f"{name}_{rate}" for name in ("step", "to", "worked") for rate in RATES),
)  # fmt: skip


def figures(result: Result) -> dict[str, float]:
    """All measures that a Result has; completion times are those of all delivered messages, from readiness."""
    (entry, *_) = measure(result)
    table = result.messages
    end, start = numpy_of(table["end_ps"]), numpy_of(table["start_ps"])
    done = end >= 0
    taken = (end - start)[done]
    found = {
        "broken": float(len(check_loss_invariant(result))),
        "worst": _worst(result),
        "under_way": float((~done).sum()),
        "finished": float(entry.finished),
    }
    if entry.iteration.count:
        found["iteration"] = entry.iteration.mean_ps
    if not len(taken):
        return found
    met = numpy_of(table["timeouts"])[done]
    slow = taken >= percentile(taken, 0.99)
    packets = int(numpy_of(table["packets"]).sum())
    found |= {
        "mean": float(taken.mean()),
        "p50": float(percentile(taken, 0.5)),
        "p99": float(percentile(taken, 0.99)),
        "timed_out": float((met > 0).mean()),
        "tail_timed_out": float((met[slow] > 0).mean()),
        "again": float(numpy_of(table["retransmitted"]).sum()) / packets,
    }
    pushes = np.asarray(numpy_of(table["kind"])[done] == "push")
    if pushes.any():
        found["push_p99"] = float(percentile(taken[pushes], 0.99))
    magnitude = lost_magnitude(result)
    if magnitude is not None:
        found["magnitude"] = magnitude
    upstream = detail(result, entry.job).upstream
    if upstream is not None:
        found["useful"] = upstream.share
    return found


def learned_figures(training: Learned) -> dict[str, float]:
    """All measures of a training that is over: accuracy and loss at its end, the others as means of its steps."""
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
    }


def _worst(result: Result) -> float:
    table = result.messages
    done = numpy_of(table["end_ps"]) >= 0
    lost, size, bound = (numpy_of(table[name])[done] for name in ("lost_bytes", "bytes", "bound"))
    allowed = allowed_losses(size, bound)
    used = np.where(lost > 0, lost / np.maximum(allowed, 1), 0.0)
    return float(used.max(initial=0.0))
