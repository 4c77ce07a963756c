"""Tuning a scheduler: the partition and the credit of ByteScheduler, found by simulating some."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gradwire.analysis.metrics import measure
from gradwire.analysis.tuning import suggest
from gradwire.experiment.needs import load_traces
from gradwire.scenarios.errors import ScenarioError
from gradwire.scenarios.given import whole_number
from gradwire.scenarios.load import build_scenario, scenario_of
from gradwire.scenarios.readable import change_text, size_text
from gradwire.scenarios.units import Bytes, format_size
from gradwire.sim.simulate import simulate

if TYPE_CHECKING:
    from gradwire.scenarios.schema.scenario import Scenario

SMALLEST, MOST_CREDIT = 64 * 2**10, 32
"""The smallest partition, and the largest credit in partitions (our choice)."""
STEPS = 25
"""Of the grid, each way."""


@dataclass(frozen=True)
class Trial:
    """One pair and what it takes. `iteration_ps`: the mean iteration time of the job's steady state."""

    partition: int
    credit: int
    iteration_ps: float

    def as_dict(self) -> dict[str, Any]:
        return {
            "partition": format_size(Bytes(self.partition)), "credit": format_size(Bytes(self.credit)),
            "iteration_ps": self.iteration_ps,
        }  # fmt: skip

    def texts(self) -> tuple[str, str, str]:
        """Partition, credit and time for people; times of trials differ little, and have their microseconds."""
        return size_text(self.partition), size_text(self.credit), f"{self.iteration_ps / 1e9:.3f} ms"


@dataclass(frozen=True)
class Tuned:
    """What was tried, in order, and the scenario with the best of it; the first trial is the job's own pair."""

    trials: tuple[Trial, ...]
    scenario: Scenario

    @property
    def best(self) -> Trial:
        return min(self.trials, key=lambda trial: trial.iteration_ps)

    def as_dict(self) -> dict[str, Any]:
        return {"best": self.best.as_dict(), "trials": [trial.as_dict() for trial in self.trials]}

    def __str__(self) -> str:
        rows = [f"{'partition':>12} {'credit':>12}   iteration time"]
        for trial in self.trials:
            partition, credit, time = trial.texts()
            rows.append(f"{partition:>12} {credit:>12}   {time}{'   best' if trial == self.best else ''}")
        own = self.trials[0].iteration_ps
        rows.append(f"best: {change_text(own / self.best.iteration_ps)} iterations a second against what the job has")
        return "\n".join(rows)


class TuningEnded(KeyboardInterrupt):
    """Ctrl-C while something is tuned; `tuned` has what was tried by then."""

    def __init__(self, tuned: Tuned) -> None:
        super().__init__("interrupted")
        self.tuned = tuned


def tune(
    scenario: Scenario | str | Path, *, job: int = 0, trials: int = 20, threads: int = 1,
    progress: Callable[[int, Trial], None] | None = None,
) -> Tuned:  # fmt: skip
    """Find the partition and the credit of a job with ByteScheduler with which its iterations take the least time.

    The search is Bayesian optimisation over their logarithms, as in the paper: see `gradwire.analysis.tuning`. The
    partition goes from 64 KiB to the largest tensor, the credit from one partition to 32.

    Raises
    ------
    ScenarioError
        The job has another scheduler, or there is no such job, or nothing to try.
    TuningEnded
        Ctrl-C, with what was tried by then.
    """
    scenario = scenario_of(scenario, "tune(scenario)")
    job = whole_number(job, "tune(job)", 0, ScenarioError)
    trials = whole_number(trials, "tune(trials)", 1, ScenarioError)
    if job >= len(scenario.job):
        raise ScenarioError(f"has {len(scenario.job)} jobs", f"{scenario.called}: job {job}", "the number of one")
    scheduler = scenario.job[job].scheduler
    if scheduler is None or scheduler.kind != "bytescheduler":
        kind = "none" if scheduler is None else scheduler.kind
        raise ScenarioError(f"is {kind}, which has nothing to tune", f"job[{job}].scheduler", "bytescheduler")
    trace = load_traces(scenario, None)[job]
    scheduling: Any = scheduler.scheduling(scenario.job[job], trace)
    grid, pairs = _grid(max(tensor.bytes for tensor in trace.tensors))
    tried: list[Trial] = []
    points: list[tuple[float, float]] = []

    def take(pair: tuple[int, int]) -> float:
        result = simulate(_with(scenario, job, *pair), threads=threads)
        (found,) = [each for each in measure(result) if each.job == scenario.job[job].name]
        if not found.iteration.count:
            raise ScenarioError("ends before an iteration of it is over", f"job[{job}]", "a longer duration, or none")
        tried.append(Trial(*pair, found.iteration.mean_ps))
        if progress is not None:
            progress(len(tried), tried[-1])
        return tried[-1].iteration_ps

    def tuned() -> Tuned:
        best = min(tried, key=lambda trial: trial.iteration_ps)
        return Tuned(tuple(tried), _with(scenario, job, best.partition, best.credit))

    try:
        take((scheduling.cut, scheduling.credit_bytes))
        while len(tried) < trials:
            place = suggest(points, [each.iteration_ps for each in tried[1:]], grid)
            if place is None:
                break
            take(pairs[place])
            points.append((float(grid[place, 0]), float(grid[place, 1])))
    except KeyboardInterrupt:
        if not tried:
            raise
        raise TuningEnded(tuned()) from None
    return tuned()


def _grid(largest: int) -> tuple[np.ndarray[Any, np.dtype[np.float64]], list[tuple[int, int]]]:
    """Points of the unit square, float64[n, 2], and the partition and credit that each stands for."""
    top = max(largest, 2 * SMALLEST)
    side = np.linspace(0, 1, STEPS)
    points = np.array([(x, y) for x in side for y in side])
    pairs = []
    for x, y in points.tolist():
        partition = 4 * round(SMALLEST * (top / SMALLEST) ** x / 4)
        pairs.append((partition, round(partition * MOST_CREDIT**y)))
    return points, pairs


def _with(scenario: Scenario, job: int, partition: int, credit: int) -> Scenario:
    """The scenario without policies, whose job has this pair."""
    tables = {key: value for key, value in scenario.as_written().items() if key != "policy"}
    scheduler = tables["job"][job]["scheduler"]
    kept = {} if isinstance(scheduler, str) else scheduler
    sizes = {"partition": format_size(Bytes(partition)), "credit": format_size(Bytes(credit))}
    tables["job"][job]["scheduler"] = {**kept, "kind": "bytescheduler", **sizes}
    made = build_scenario(tables, scenario.name)
    return made if scenario.folder is None else made.at(scenario.folder)
