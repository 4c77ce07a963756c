"""`difference_of` compares the mean iterations of two runs, and decides whether the difference is more than chance.

Differences are taken in pairs: of runs with the same seed if there are `MIN_VALUES` seeds, else of iterations with the
same number, else (different seeds) of unpaired iterations. Workers of an iteration wait for each other and are no
independent samples, so an iteration counts as one value, its mean over workers. A difference counts if it exceeds both
the half width of its 95 % confidence interval (Student's t) and a floor, which is larger the less is known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import hypot
from statistics import fmean

import numpy as np

from gradwire.analysis.confidence_intervals import MIN_VALUES, half_width
from gradwire.analysis.measurement_window import durations, steady_state
from gradwire.result_store.result import Result
from gradwire.scenarios.json_data import Json

FLOORS = {"high": 0.001, "medium": 0.005, "low": 0.01}
"""Least relative difference that counts, by confidence (our choice: equal runs of the demo differ by 0.5 % from seed
to seed, and no cluster repeats an iteration time better than 0.1 %)."""


@dataclass(frozen=True)
class Difference:
    """Mean iteration of a run less that of another, as a share of the other's.

    change : negative if it is faster. resolution : the least |change| that counts.
    """

    change: float
    resolution: float

    @property
    def is_significant(self) -> bool:
        """True if the difference is more than the samples can produce by chance."""
        return abs(self.change) > self.resolution

    def as_dict(self) -> Json:
        """Return plain values for JSON."""
        return {**vars(self), "significant": self.is_significant}


@dataclass(frozen=True)
class Samples:
    """Mean iteration times over workers in the steady state, picoseconds, by (seed, iteration)."""

    values: dict[tuple[int, int], float]

    @classmethod
    def of(cls, results: Sequence[Result], job: str) -> Samples:
        """Collect the iterations of a job from runs that differ in their seed only."""
        values: dict[tuple[int, int], float] = {}
        for result in results:
            numbers, times, _ = durations(result, job)
            _, chosen = steady_state(numbers)
            for number in np.unique(numbers[chosen]).tolist():
                values[int(result.summary.get("seed", 0)), number] = float(times[chosen & (numbers == number)].mean())
        return cls(values)

    @property
    def seeds(self) -> list[int]:
        """Seeds, in ascending order."""
        return sorted({seed for seed, _ in self.values})

    @property
    def mean_ps(self) -> float:
        """Mean over all iterations and seeds."""
        return fmean(self.values.values())

    def mean_of(self, seed: int) -> float:
        """Return the mean over the iterations of one seed."""
        return fmean(value for (of, _), value in self.values.items() if of == seed)

    @property
    def confidence(self) -> str:
        """Confidence in means: "high" with several seeds, "medium" with several iterations, else "low"."""
        if len(self.seeds) >= MIN_VALUES:
            return "high"
        return "medium" if len(self.values) >= MIN_VALUES else "low"


def difference_of(run: Samples, other: Samples) -> Difference:
    """Return the difference of two runs."""
    base = other.mean_ps
    seeds = sorted(set(run.seeds) & set(other.seeds))
    pairs = sorted(set(run.values) & set(other.values))
    if len(seeds) >= MIN_VALUES:
        half, level = half_width([run.mean_of(seed) - other.mean_of(seed) for seed in seeds]), "high"
    elif len(pairs) >= MIN_VALUES:
        half, level = half_width([run.values[pair] - other.values[pair] for pair in pairs]), "medium"
    elif not pairs and min(len(run.values), len(other.values)) >= MIN_VALUES:
        half, level = hypot(*(half_width(list(samples.values.values())) for samples in (run, other))), "medium"
    else:
        half, level = 0.0, "low"
    return Difference(run.mean_ps / base - 1, max(half / base, FLOORS[level]))
