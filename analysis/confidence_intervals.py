"""Computes the 95 % confidence interval of a mean over few seeds by Student's t (Gosset, 1908)."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, sqrt
from statistics import fmean, stdev

T95 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
"""97.5 % quantiles of Student's t with 1, 2, ... 30 degrees of freedom."""
MIN_VALUES = 3
"""Least number of values for which tables show an interval (our choice); for two it is 13 times their difference."""


def half_width(values: Sequence[float]) -> float:
    """Return half of the 95 % confidence interval of the mean; infinite for one value. From 32 values on the quantile
    is that of 30 degrees of freedom, which makes the interval slightly too wide."""
    count = len(values)
    if count < 2:
        return inf
    return T95[min(count - 1, len(T95)) - 1] * stdev(values) / sqrt(count)


def shown_half_width(values: Sequence[float]) -> float:
    """Return the half width as tables show it: infinite for fewer than `MIN_VALUES` values."""
    return half_width(values) if len(values) >= MIN_VALUES else inf


def confidence_interval(values: Sequence[float]) -> tuple[float, float]:
    """Return (low, high) of the 95 % confidence interval of the mean."""
    middle, half = fmean(values), half_width(values)
    return middle - half, middle + half
