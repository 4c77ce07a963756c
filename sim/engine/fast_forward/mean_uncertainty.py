"""Uncertainty of the mean of consecutive values.

Confidence intervals and tests use Student's t, with quantiles from a series in 1 / degrees of freedom (Abramowitz and
Stegun, 26.7.5), off by less than half a per cent from seven degrees on. Values may depend on those right before them,
positively or by turns: so intervals are those of the means of batches of even sizes (batch means; Law, Simulation
Modeling and Analysis, chapter 9).
"""

from __future__ import annotations

from itertools import pairwise
from math import sqrt
from typing import NamedTuple

import numpy as np

from gradwire.scenarios.arrays import Floats

USUAL, RARE = 1.96, 3.0
"""Quantiles of the normal distribution: 95 % and 99.7 % of values lie within this many deviations."""
BATCHES = 8


class MeanUncertainty(NamedTuple):
    """The mean of values, half the width of its 95 % confidence interval, and the number of values."""

    mean: float
    half_width: float
    many: int

    @classmethod
    def of(cls, values: Floats) -> MeanUncertainty:
        """Return the spread of at least `BATCHES` values, in order."""
        count, means = len(values), values
        if count >= 2 * BATCHES:
            ends = 2 * (np.arange(BATCHES + 1) * (count // 2) // BATCHES)
            ends[-1] = count
            means = np.array([values[first:end].mean() for first, end in pairwise(ends.tolist())])
        half_width = quantile(USUAL, len(means) - 1) * float(means.std(ddof=1)) / sqrt(len(means))
        return cls(float(values.mean()), half_width, count)

    @property
    def deviation(self) -> float:
        """Deviation of independent values whose mean would be known equally well."""
        return self.half_width / USUAL * sqrt(self.many)


def quantile(normal: float, freedom: int) -> float:
    """Return the quantile of Student's t that corresponds to a quantile of the normal distribution."""
    z = normal
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


def exceeds(before: Floats, seen: Floats, tolerance: float) -> bool:
    """Return True if the means differ by more than the tolerance and chance explain."""
    chance = MeanUncertainty.of(before).deviation * USUAL * sqrt(1 / len(seen) + 1 / len(before))
    return abs(float(seen.mean() - before.mean())) > tolerance + chance


def drifts(values: Floats, ahead: int, tolerance: float) -> bool:
    """Return True if values have a significant trend that would exceed the tolerance after `ahead` more."""
    return trend(values, RARE) * ahead > tolerance


def trend(values: Floats, normal: float = USUAL) -> float:
    """Return the change from one value to the next; 0 if chance explains it (at the quantile `normal`)."""
    offsets = np.arange(len(values)) - (len(values) - 1) / 2
    scale = float((offsets**2).sum())
    slope = float((offsets * values).sum()) / scale
    freedom = len(values) - 2
    residuals = values - values.mean() - slope * offsets
    chance = quantile(normal, freedom) * sqrt(float((residuals**2).sum()) / freedom / scale)
    return abs(slope) if abs(slope) > chance else 0.0
