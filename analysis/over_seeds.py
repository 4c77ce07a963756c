"""Trainings over seeds: a table of means and of differences within seeds, with intervals."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf, isinf
from statistics import fmean, median
from typing import Any, TextIO

from gradwire.analysis.claims.intervals import FEWEST, shown_half_width
from gradwire.analysis.tables import Row, print_rows
from gradwire.scenarios.learned import Learned
from gradwire.scenarios.readable import accuracy_text, share_text, size_text, time_text

NONE = ""


@dataclass(frozen=True)
class Arm:
    """What was trained under one policy, by seed."""

    name: str
    by_seed: Mapping[int, Learned]

    @property
    def trainings(self) -> list[Learned]:
        """In the order of the seeds."""
        return [self.by_seed[seed] for seed in sorted(self.by_seed)]


def arms_of(trainings: Iterable[Learned]) -> list[Arm]:
    """Trainings by policy, in the order of the first of each."""
    found: dict[tuple[str, str], dict[int, Learned]] = {}
    for each in trainings:
        found.setdefault((str(each.summary.get("policy", "")), each.name), {})[each.seed or 0] = each
    return [Arm(name, by_seed) for (_, name), by_seed in found.items()]


def rows_over(arms: Sequence[Arm], until: float | None = None) -> list[Row]:
    """The table: a row per figure, a column per arm. Means with half of their 95 % interval (Student's t), differences
    to the first arm between trainings of the same seed; one whose interval holds zero, or of less than `FEWEST` seeds,
    is called unresolved."""
    first, timed = arms[0], any(each.timed for arm in arms for each in arm.trainings)
    pulled = any(row["pulled_bytes"] for arm in arms for each in arm.trainings for row in each.steps)
    rows = [
        Row("seeds", [str(len(arm.by_seed)) for arm in arms]),
        Row("steps", [f"{fmean(each.summary['steps_done'] for each in arm.trainings):,.0f}" for arm in arms]),
        Row("accuracy at the end", [_spread(_of(arm, _accuracy)) for arm in arms]),
    ]
    if len(arms) > 1:
        rows.append(Row(f"  less {first.name}, in pairs", [NONE, *(_difference(arm, first) for arm in arms[1:])]))
    rows += [
        Row("loss at the end", [f"{fmean(_of(arm, _loss)):.4f}" for arm in arms]),
        Row("sent by all workers", [size_text(round(fmean(_of(arm, _sent)))) for arm in arms]),
    ]
    if pulled:
        rows.append(Row("sent back by servers", [size_text(round(fmean(_of(arm, _pulled)))) for arm in arms]))
    rows.append(Row("lost of it, mean of the steps", [share_text(fmean(_of(arm, _lost))) for arm in arms]))
    if timed:
        rows.append(Row("simulated time", [_time(arm, _clock) for arm in arms]))
        rows.append(Row("  per step, mean", [_time(arm, _step) for arm in arms]))
    if any(each.diverged is not None for arm in arms for each in arm.trainings):
        rows.append(Row("whose loss became no number", [_diverged(arm) for arm in arms]))
    if until is not None:
        what = "time" if timed else "steps"
        rows.append(Row(f"{what} to accuracy {until:g}, median", [_reached(arm, until, timed) for arm in arms]))
    return rows


def rows_by_seed(arms: Sequence[Arm]) -> list[Row]:
    """Accuracy at the end, a row per seed."""
    seeds = sorted({seed for arm in arms for seed in arm.by_seed})
    return [
        Row(f"seed {seed}", [
            accuracy_text(_accuracy(arm.by_seed[seed])) if seed in arm.by_seed else "none" for arm in arms
        ]) for seed in seeds
    ]  # fmt: skip


def print_over(arms: Sequence[Arm], until: float | None = None, file: TextIO | None = None) -> None:
    """The table, for people, on stdout unless into a file."""
    print_rows([arm.name for arm in arms], rows_over(arms, until), "mean of the seeds", file)


def table_over(arms: Sequence[Arm], until: float | None = None) -> str:
    """The same as plain text."""
    text = io.StringIO()
    print_over(arms, until, text)
    return text.getvalue()


def _of(arm: Arm, figure: Callable[[Learned], float]) -> list[float]:
    return [figure(each) for each in arm.trainings]


def _accuracy(training: Learned) -> float:
    return float(training.scores[-1]["accuracy"])


def _loss(training: Learned) -> float:
    return float(training.scores[-1]["loss"])


def _sent(training: Learned) -> float:
    return float(sum(row["sent_bytes"] for row in training.steps))


def _pulled(training: Learned) -> float:
    return float(sum(row["pulled_bytes"] for row in training.steps))


def _lost(training: Learned) -> float:
    return fmean(row["lost"] for row in training.steps)


def _clock(training: Learned) -> float:
    return float(training.steps[-1]["clock_ps"])


def _step(training: Learned) -> float:
    return fmean(row["time_ps"] for row in training.steps)


def _diverged(arm: Arm) -> str:
    return f"{sum(each.diverged is not None for each in arm.trainings)} of {len(arm.by_seed)}"


def figures_of(arms: Sequence[Arm], until: float | None = None) -> list[dict[str, Any]]:
    """The same figures for programs: by arm, means and halves of intervals (None of fewer than `FEWEST` seeds),
    accuracies in shares."""
    timed = any(each.timed for arm in arms for each in arm.trainings)
    found = []
    for arm in arms:
        apart = _apart(arm, arms[0])
        found.append({
            "name": arm.name, "seeds": sorted(arm.by_seed), "accuracy": _mean(_of(arm, _accuracy)),
            "less_first": _mean([*apart.values()]) if arm is not arms[0] else None, "pairs": [*apart],
            "sent_bytes": fmean(_of(arm, _sent)), "lost": fmean(_of(arm, _lost)),
            "clock_ps": fmean(_of(arm, _clock)) if timed else None,
            "reached": None if until is None else [
                None if isinf(when := _when(each, until, timed)) else when for each in arm.trainings
            ],
        })  # fmt: skip
    return found


def _mean(values: Sequence[float]) -> dict[str, float | None] | None:
    if not values:
        return None
    return {"mean": fmean(values), "half_width": None if isinf(half := shown_half_width(values)) else half}


def _time(arm: Arm, figure: Callable[[Learned], float]) -> str:
    mean = fmean(_of(arm, figure))
    return time_text(mean) if mean else "none"


def _spread(values: Sequence[float]) -> str:
    half = shown_half_width(values)
    return f"{100 * fmean(values):.1f} %" if isinf(half) else f"{100 * fmean(values):.1f} ± {100 * half:.1f} %"


def _apart(arm: Arm, first: Arm) -> dict[int, float]:
    """By seed that both have, how much more accurate one ends."""
    both = sorted(arm.by_seed.keys() & first.by_seed.keys())
    return {seed: _accuracy(arm.by_seed[seed]) - _accuracy(first.by_seed[seed]) for seed in both}


def _difference(arm: Arm, first: Arm) -> str:
    values = [*_apart(arm, first).values()]
    if not values:
        return "no seed of both"
    mean, half = fmean(values), shown_half_width(values)
    if isinf(half):
        needed = f", unresolved: at least {FEWEST} seeds" if len(values) > 1 else ""
        return f"{100 * mean:+.1f} points{needed}"
    open_ = abs(mean) <= half
    return f"{100 * mean:+.1f} ± {100 * half:.1f} points" + (", unresolved" if open_ else "")


def _reached(arm: Arm, until: float, timed: bool) -> str:
    """When it was seen to be as good, the median of the seeds; later than ever where half of them were not."""
    times = [_when(each, until, timed) for each in arm.trainings]
    missed = sum(map(isinf, times))
    words = f", {missed} of {len(times)} never" if missed else ""
    middle = median(times)
    if isinf(middle):
        return "not reached" if missed == len(times) else f"not reached by {missed} of {len(times)}"
    return (time_text(middle) if timed else f"{middle:,.0f}") + words


def _when(training: Learned, until: float, timed: bool) -> float:
    for row in training.scores:
        if row["accuracy"] >= until:
            return float(row["clock_ps"] if timed else row["step"])
    return inf
