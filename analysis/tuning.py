"""Bayesian optimisation in two dimensions: a Gaussian process of what was measured, and where to measure next.

ByteScheduler finds its partition and its credit so (Peng et al., SOSP '19, section 5), because a measurement is dear,
and the time as a function of both is smooth and has no formula. The process has a Gaussian kernel on the unit square,
whose length in each direction is the likeliest of a few, and the values' own mean and variance; the next point is that
of a grid where the expected improvement on the best value is greatest (Jones et al., "Efficient Global Optimization of
Expensive Black-Box Functions", 1998). The first points are a fixed design, so that equal measurements make equal
searches.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import erf, pi, sqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

LENGTHS = (0.1, 0.2, 0.4, 0.8)
"""Lengths of the kernel that are tried, in parts of the square's side (our choice)."""
JITTER = 1e-6
"""Variance of a measurement, in that of all values: simulations repeat, and a matrix wants to be inverted (ours)."""
DESIGN = ((0.5, 0.5), (0.2, 0.8), (0.8, 0.2), (0.15, 0.25), (0.85, 0.75))
"""Points to begin with (our choice)."""


class Posterior(NamedTuple):
    """What a process says of points: mean and standard deviation, float64[n]."""

    mean: Floats
    deviation: Floats


def posterior(points: Floats, values: Floats, at: Floats) -> Posterior:
    """A Gaussian process that went through `values` at `points`, float64[m, d], asked at float64[n, d]."""
    centre, scale = float(values.mean()), float(values.std()) or 1.0
    scaled = (values - centre) / scale
    lengths = max(product(LENGTHS, repeat=points.shape[1]), key=lambda each: _likelihood(points, scaled, each))
    whole = _kernel(points, points, lengths) + JITTER * np.eye(len(points))
    across = _kernel(at, points, lengths)
    solved = np.linalg.solve(whole, across.T)
    variance = np.maximum(1 - (across * solved.T).sum(axis=1), 0)
    return Posterior(centre + scale * (solved.T @ scaled), scale * np.sqrt(variance))


def improvement(found: Posterior, best: float) -> Floats:
    """By how much values are expected to be below the best one, where they are: float64[n]."""
    spread = np.maximum(found.deviation, 1e-300)
    gain = best - found.mean
    z = gain / spread
    below = np.array([0.5 * (1 + erf(each / sqrt(2))) for each in z.tolist()])
    density = np.exp(-0.5 * np.minimum(z * z, 1400)) / sqrt(2 * pi)
    return np.where(found.deviation > 0, gain * below + spread * density, np.maximum(gain, 0))


def suggest(points: Sequence[tuple[float, float]], values: Sequence[float], grid: Floats) -> int | None:
    """Which point of a grid, float64[n, 2], to measure next, given what was measured; None where all has been. The
    first ones are those nearest to `DESIGN`."""
    left = np.ones(len(grid), dtype=np.bool_)
    for point in points:
        left &= (np.abs(grid - point) > 1e-9).any(axis=1)
    if not left.any():
        return None
    if len(points) < len(DESIGN):
        far = ((grid - DESIGN[len(points)]) ** 2).sum(axis=1)
        return int(np.where(left, far, np.inf).argmin())
    known = posterior(np.array(points, dtype=np.float64), np.array(values, dtype=np.float64), grid)
    return int(np.where(left, improvement(known, min(values)), -1.0).argmax())


def _kernel(one: Floats, other: Floats, lengths: Sequence[float]) -> Floats:
    apart = (one[:, None, :] - other[None, :, :]) / np.array(lengths)
    return np.asarray(np.exp(-0.5 * (apart**2).sum(axis=2)), dtype=np.float64)


def _likelihood(points: Floats, values: Floats, lengths: Sequence[float]) -> float:
    """The logarithm of how likely values are, but for what does not depend on lengths."""
    whole = _kernel(points, points, lengths) + JITTER * np.eye(len(points))
    return float(-0.5 * values @ np.linalg.solve(whole, values) - 0.5 * np.linalg.slogdet(whole)[1])
