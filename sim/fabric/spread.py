"""Spread: how well the mean of values that come one after the other is known.

Confidence intervals and tests by Student's t, whose quantiles are those of a series in 1 / degrees of freedom
(Abramowitz and Stegun, 26.7.5), off by less than half a per cent from seven degrees on. Values may depend on those
right before them, and go on like them or change by turns: so intervals are those of the means of batches of even
numbers of them (batch means; Law, Simulation Modeling and Analysis, chapter 9).
"""

from __future__ import annotations

from itertools import pairwise
from math import sqrt
from typing import NamedTuple

import numpy as np

from gradwire.scenarios.arrays import Floats

USUAL, RARE = 1.96, 3.0
"""Quantiles of the normal distribution: 95 % and 99.7 % of all values lie within so many deviations."""
BATCHES = 8


class Spread(NamedTuple):
    """The mean of values and half of the width of its 95 % confidence interval; how many values they are."""

    mean: float
    half_width: float
    many: int

    @classmethod
    def of(cls, values: Floats) -> Spread:
        """Of at least `BATCHES` values, in their order."""
        many, means = len(values), values
        if many >= 2 * BATCHES:
            ends = 2 * (np.arange(BATCHES + 1) * (many // 2) // BATCHES)
            ends[-1] = many
            means = np.array([values[first:end].mean() for first, end in pairwise(ends.tolist())])
        wide = quantile(USUAL, len(means) - 1) * float(means.std(ddof=1)) / sqrt(len(means))
        return cls(float(values.mean()), wide, many)

    @property
    def deviation(self) -> float:
        """Of one value, such that the mean of independent ones would be known as well."""
        return self.half_width / USUAL * sqrt(self.many)


def quantile(normal: float, freedom: int) -> float:
    """How many deviations of Student's t are as rare as so many of the normal distribution."""
    z = normal
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


def exceeds(before: Floats, seen: Floats, tolerance: float) -> bool:
    """Whether the mean of `seen` is farther from that of `before` than is tolerated, and than chance explains."""
    chance = Spread.of(before).deviation * USUAL * sqrt(1 / len(seen) + 1 / len(before))
    return abs(float(seen.mean() - before.mean())) > tolerance + chance


def drifts(values: Floats, ahead: int, tolerance: float) -> bool:
    """Whether values have a trend that chance does not explain and that, if it went on for so many more, would lead by
    more than is tolerated away from their mean."""
    return trend(values, RARE) * ahead > tolerance


def trend(values: Floats, normal: float = USUAL) -> float:
    """By how much values rise or fall from one to the next; 0 if chance explains it: it is not as rare as so many
    deviations."""
    place = np.arange(len(values)) - (len(values) - 1) / 2
    scale = float((place**2).sum())
    slope = float((place * values).sum()) / scale
    freedom = len(values) - 2
    left = values - values.mean() - slope * place
    chance = quantile(normal, freedom) * sqrt(float((left**2).sum()) / freedom / scale)
    return abs(slope) if abs(slope) > chance else 0.0
