"""`tune` searches the partition and credit of ByteScheduler that minimise a job's iteration time, by simulations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gradwire.analysis.metrics import measure
from gradwire.scenarios.errors import ScenarioError
from gradwire.scenarios.loading.load import as_scenario, build_scenario
from gradwire.scenarios.readable import change_text, size_text
from gradwire.scenarios.schema.scenario import Scenario
from gradwire.scenarios.units import Bytes, format_size
from gradwire.scenarios.validation.argument_checks import require_integer
from gradwire.sim.simulate import simulate
from gradwire.studies.tune.gaussian_process import suggest
from gradwire.workload.prerequisites import load_traces

SMALLEST, MOST_CREDIT = 64 * 2**10, 32
"""Smallest partition, and largest credit in partitions (our choice)."""
STEPS = 25
"""Grid points in each direction."""


@dataclass(frozen=True)
class Trial:
    """One pair of sizes and its cost. `iteration_ps` : mean iteration time of the job's steady state."""

    partition: int
    credit: int
    iteration_ps: float

    def as_dict(self) -> dict[str, Any]:
        return {
            "partition": format_size(Bytes(self.partition)),
            "credit": format_size(Bytes(self.credit)),
            "iteration_ps": self.iteration_ps,
        }

    def texts(self) -> tuple[str, str, str]:
        """Return partition, credit and time as text; times of trials differ little, so they show microseconds."""
        return size_text(self.partition), size_text(self.credit), f"{self.iteration_ps / 1e9:.3f} ms"


@dataclass(frozen=True)
class TuningResult:
    """Trials in order, and the scenario with the best one; the first trial is the job's own pair."""

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
        change = change_text(own / self.best.iteration_ps)
        rows.append(f"best: {change} iterations per second relative to the job's own pair")
        return "\n".join(rows)


class TuningEnded(KeyboardInterrupt):
    """Ctrl-C during tuning; `tuned` has the trials so far."""

    def __init__(self, tuned: TuningResult) -> None:
        super().__init__("interrupted")
        self.tuned = tuned


def tune(
    scenario: Scenario | str | Path,
    *,
    job: int = 0,
    trials: int = 20,
    threads: int = 1,
    progress: Callable[[int, Trial], None] | None = None,
) -> TuningResult:
    """Find the partition and credit of a job's ByteScheduler that minimise its iteration time.

    The search is Bayesian optimisation over their logarithms, as in the paper: see
    `gradwire.studies.tune.gaussian_process`. The partition goes from 64 KiB to the largest tensor, the credit from one
    partition to 32.

    Raises `ScenarioError` if the job has another scheduler, does not exist, or completes no iteration.
    Raises `TuningEnded` on Ctrl-C, with the trials so far.
    """
    scenario = as_scenario(scenario, "tune(scenario)")
    job = require_integer(job, "tune(job)", 0, ScenarioError)
    trials = require_integer(trials, "tune(trials)", 1, ScenarioError)
    if job >= len(scenario.job):
        raise ScenarioError(
            f"has {len(scenario.job)} jobs", f"{scenario.display_name}: job {job}", "an index below that"
        )
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
        (found,) = [entry for entry in measure(result) if entry.job == scenario.job[job].name]
        if not found.iteration.count:
            raise ScenarioError("completes no iteration", f"job[{job}]", "a longer duration, or none")
        tried.append(Trial(*pair, found.iteration.mean_ps))
        if progress is not None:
            progress(len(tried), tried[-1])
        return tried[-1].iteration_ps

    def tuned() -> TuningResult:
        best = min(tried, key=lambda trial: trial.iteration_ps)
        return TuningResult(tuple(tried), _with(scenario, job, best.partition, best.credit))

    try:
        take((scheduling.cut, scheduling.credit_bytes))
        while len(tried) < trials:
            index = suggest(points, [trial.iteration_ps for trial in tried[1:]], grid)
            if index is None:
                break
            take(pairs[index])
            points.append((float(grid[index, 0]), float(grid[index, 1])))
    except KeyboardInterrupt:
        if not tried:
            raise
        raise TuningEnded(tuned()) from None
    return tuned()


def _grid(largest: int) -> tuple[np.ndarray[Any, np.dtype[np.float64]], list[tuple[int, int]]]:
    """Return points of the unit square, float64[n, 2], and the partition and credit of each."""
    top = max(largest, 2 * SMALLEST)
    side = np.linspace(0, 1, STEPS)
    points = np.array([(x, y) for x in side for y in side])
    pairs = []
    for x, y in points.tolist():
        partition = 4 * round(SMALLEST * (top / SMALLEST) ** x / 4)
        pairs.append((partition, round(partition * MOST_CREDIT**y)))
    return points, pairs


def _with(scenario: Scenario, job: int, partition: int, credit: int) -> Scenario:
    """Return the scenario without policies, with this pair for the job."""
    tables = {key: value for key, value in scenario.as_written().items() if key != "policy"}
    scheduler = tables["job"][job]["scheduler"]
    options = {} if isinstance(scheduler, str) else scheduler
    sizes = {"partition": format_size(Bytes(partition)), "credit": format_size(Bytes(credit))}
    tables["job"][job]["scheduler"] = {**options, "kind": "bytescheduler", **sizes}
    tuned = build_scenario(tables, scenario.name)
    return tuned if scenario.folder is None else tuned.at(scenario.folder)
