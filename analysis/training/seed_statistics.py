"""Tabulates means of training runs over seeds and differences between policies at equal seeds, with 95 % confidence
intervals.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf, isinf
from statistics import fmean, median
from typing import Any

from gradwire.analysis.comparison.tables import TableRow
from gradwire.analysis.confidence_intervals import MIN_VALUES, shown_half_width
from gradwire.result_store.training_result import TrainingResult
from gradwire.scenarios.readable import accuracy_text, share_text, size_text, time_text

EMPTY_CELL = ""


@dataclass(frozen=True)
class TrainingArm:
    """Training runs under one policy, by seed."""

    name: str
    by_seed: Mapping[int, TrainingResult]

    @property
    def trainings(self) -> list[TrainingResult]:
        """The runs, in the order of the seeds."""
        return [self.by_seed[seed] for seed in sorted(self.by_seed)]


def arms_of(trainings: Iterable[TrainingResult]) -> list[TrainingArm]:
    """Group training runs by policy, in the order of the first run of each."""
    runs_by_arm: dict[tuple[str, str], dict[int, TrainingResult]] = {}
    for training in trainings:
        by_seed = runs_by_arm.setdefault((str(training.summary.get("policy", "")), training.name), {})
        by_seed[training.seed or 0] = training
    return [TrainingArm(name, by_seed) for (_, name), by_seed in runs_by_arm.items()]


def rows_over(arms: Sequence[TrainingArm], until: float | None = None) -> list[TableRow]:
    """Return the table: a row per figure, a column per arm. Means have half of their 95 % interval (Student's t).
    Differences to the first arm are between runs of the same seed; one whose interval includes zero, or of fewer than
    `MIN_VALUES` seeds, is marked unresolved."""
    first, timed = arms[0], any(training.timed for arm in arms for training in arm.trainings)
    pulled = any(row["pulled_bytes"] for arm in arms for training in arm.trainings for row in training.steps)
    rows = [
        TableRow("seeds", [str(len(arm.by_seed)) for arm in arms]),
        TableRow(
            "steps", [f"{fmean(training.summary['steps_done'] for training in arm.trainings):,.0f}" for arm in arms]
        ),
        TableRow("final accuracy", [_spread(_of(arm, "accuracy")) for arm in arms]),
    ]
    if len(arms) > 1:
        rows.append(
            TableRow(f"  minus {first.name}, same seeds", [EMPTY_CELL, *(_difference(arm, first) for arm in arms[1:])])
        )
    rows += [
        TableRow("final loss", [f"{fmean(_of(arm, 'loss')):.4f}" for arm in arms]),
        TableRow("sent by all workers", [size_text(round(fmean(_of(arm, "sent")))) for arm in arms]),
    ]
    if pulled:
        rows.append(TableRow("sent by servers", [size_text(round(fmean(_of(arm, "pulled")))) for arm in arms]))
    rows.append(TableRow("lost, mean of the steps", [share_text(fmean(_of(arm, "lost"))) for arm in arms]))
    if timed:
        rows.append(TableRow("simulated time", [_time(arm, "clock") for arm in arms]))
        rows.append(TableRow("  per step, mean", [_time(arm, "step") for arm in arms]))
    diverged = [sum(training.diverged is not None for training in arm.trainings) for arm in arms]
    if any(diverged):
        cells = [f"{count} of {len(arm.by_seed)}" for count, arm in zip(diverged, arms, strict=True)]
        rows.append(TableRow("runs that diverged", cells))
    if until is not None:
        what = "time" if timed else "steps"
        rows.append(TableRow(f"{what} to accuracy {until:g}, median", [_reached(arm, until, timed) for arm in arms]))
    return rows


def rows_by_seed(arms: Sequence[TrainingArm]) -> list[TableRow]:
    """Return the final accuracies, a row per seed."""
    seeds = sorted({seed for arm in arms for seed in arm.by_seed})
    return [
        TableRow(
            f"seed {seed}",
            [accuracy_text(_accuracy(arm.by_seed[seed])) if seed in arm.by_seed else "none" for arm in arms],
        )
        for seed in seeds
    ]


def table_over(arms: Sequence[TrainingArm], until: float | None = None) -> tuple[list[str], list[TableRow], str]:
    """Return the arguments of `print_rows` for the table."""
    return [arm.name for arm in arms], rows_over(arms, until), "mean over the seeds"


_FIGURES: Mapping[str, Callable[[TrainingResult], float]] = {
    "accuracy": lambda training: float(training.scores[-1]["accuracy"]),
    "loss": lambda training: float(training.scores[-1]["loss"]),
    "sent": lambda training: float(sum(row["sent_bytes"] for row in training.steps)),
    "pulled": lambda training: float(sum(row["pulled_bytes"] for row in training.steps)),
    "lost": lambda training: fmean(row["lost"] for row in training.steps),
    "clock": lambda training: float(training.steps[-1]["clock_ps"]),
    "step": lambda training: fmean(row["time_ps"] for row in training.steps),
}


def _of(arm: TrainingArm, figure: str) -> list[float]:
    return [_FIGURES[figure](training) for training in arm.trainings]


def _accuracy(training: TrainingResult) -> float:
    return _FIGURES["accuracy"](training)


def figures_of(arms: Sequence[TrainingArm], until: float | None = None) -> list[dict[str, Any]]:
    """Return the figures for programs: by arm, means and half intervals (None for fewer than `MIN_VALUES` seeds).
    Accuracies are shares."""
    timed = any(training.timed for arm in arms for training in arm.trainings)
    figures = []
    for arm in arms:
        differences = _differences(arm, arms[0])
        reached = None
        if until is not None:
            times = [_when(training, until, timed) for training in arm.trainings]
            reached = [None if isinf(time) else time for time in times]
        figures.append(
            {
                "name": arm.name,
                "seeds": sorted(arm.by_seed),
                "accuracy": _mean(_of(arm, "accuracy")),
                "less_first": _mean([*differences.values()]) if arm is not arms[0] else None,
                "pairs": [*differences],
                "sent_bytes": fmean(_of(arm, "sent")),
                "lost": fmean(_of(arm, "lost")),
                "clock_ps": fmean(_of(arm, "clock")) if timed else None,
                "reached": reached,
            }
        )
    return figures


def _mean(values: Sequence[float]) -> dict[str, float | None] | None:
    if not values:
        return None
    return {"mean": fmean(values), "half_width": None if isinf(half := shown_half_width(values)) else half}


def _time(arm: TrainingArm, figure: str) -> str:
    mean = fmean(_of(arm, figure))
    return time_text(mean) if mean else "none"


def _spread(values: Sequence[float]) -> str:
    half = shown_half_width(values)
    return f"{100 * fmean(values):.1f} %" if isinf(half) else f"{100 * fmean(values):.1f} ± {100 * half:.1f} %"


def _differences(arm: TrainingArm, first: TrainingArm) -> dict[int, float]:
    """Return, by seed of both arms, the difference of their final accuracies."""
    both = sorted(arm.by_seed.keys() & first.by_seed.keys())
    return {seed: _accuracy(arm.by_seed[seed]) - _accuracy(first.by_seed[seed]) for seed in both}


def _difference(arm: TrainingArm, first: TrainingArm) -> str:
    values = [*_differences(arm, first).values()]
    if not values:
        return "no common seed"
    mean, half = fmean(values), shown_half_width(values)
    if isinf(half):
        needed = f", unresolved: at least {MIN_VALUES} seeds" if len(values) > 1 else ""
        return f"{100 * mean:+.1f} points{needed}"
    is_open = abs(mean) <= half
    return f"{100 * mean:+.1f} ± {100 * half:.1f} points" + (", unresolved" if is_open else "")


def _reached(arm: TrainingArm, until: float, timed: bool) -> str:
    """Describe when an accuracy was reached: the median over the seeds, "not reached" if half of them never did."""
    times = [_when(training, until, timed) for training in arm.trainings]
    missed = sum(map(isinf, times))
    words = f", {missed} of {len(times)} never" if missed else ""
    middle = median(times)
    if isinf(middle):
        return "not reached" if missed == len(times) else f"not reached by {missed} of {len(times)}"
    return (time_text(middle) if timed else f"{middle:,.0f}") + words


def _when(training: TrainingResult, until: float, timed: bool) -> float:
    for row in training.scores:
        if row["accuracy"] >= until:
            return float(row["clock_ps"] if timed else row["step"])
    return inf
