"""Suggests the next point of a Bayesian optimisation by a Gaussian process of the measurements.

ByteScheduler finds its partition and credit this way (Peng et al., SOSP '19, section 5), because a measurement is
expensive, and the time as a function of both is smooth and has no formula. The process has a Gaussian kernel on the
unit square, whose length in each direction is the likeliest of a few, and the values' own mean and variance; the next
point is the one of a grid with the greatest expected improvement on the best value (Jones et al., "Efficient Global
Optimization of Expensive Black-Box Functions", 1998). The first points are fixed, so that equal measurements give equal
searches.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product
from math import erf, pi, sqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

LENGTHS = (0.1, 0.2, 0.4, 0.8)
"""Candidate lengths of the kernel, as parts of the square's side (our choice)."""
JITTER = 1e-6
"""Variance of a measurement relative to that of all values: keeps the matrix invertible (our choice)."""
DESIGN = ((0.5, 0.5), (0.2, 0.8), (0.8, 0.2), (0.15, 0.25), (0.85, 0.75))
"""Initial points (our choice)."""


class Posterior(NamedTuple):
    """Prediction of the process at n points: mean and standard deviation, float64[n]."""

    mean: Floats
    deviation: Floats


def posterior(
    points: Floats, values: Floats, at: Floats, lengths: Sequence[float] | None = None, jitter: float = JITTER
) -> Posterior:
    """Return the prediction at float64[n, d] of a Gaussian process through `values` at `points`, float64[m, d].

    lengths : of the kernel in each direction; the likeliest of `LENGTHS` if absent.
    jitter : as `JITTER`.
    """
    centre, scale = float(values.mean()), float(values.std()) or 1.0
    scaled = (values - centre) / scale
    if lengths is None:
        lengths = likeliest_lengths(points, values, range(points.shape[1]))
    whole = _kernel(points, points, lengths) + jitter * np.eye(len(points))
    across = _kernel(at, points, lengths)
    solved = np.linalg.solve(whole, across.T)
    variance = np.maximum(1 - (across * solved.T).sum(axis=1), 0)
    return Posterior(centre + scale * (solved.T @ scaled), scale * np.sqrt(variance))


def likeliest_lengths(
    points: Floats, values: Floats, owners: Sequence[int], choices: Sequence[float] = LENGTHS, jitter: float = JITTER
) -> list[float]:
    """Return the likeliest length of the kernel for every coordinate.

    It tries all combinations in up to two directions, else changes one direction after the other, twice.

    owners : int[d], the direction of each coordinate; those of one direction share a length.
    """
    scaled = (values - values.mean()) / (float(values.std()) or 1.0)
    count = max(owners) + 1

    def likelihood(lengths: Iterable[float]) -> float:
        by_owner = list(lengths)
        return _likelihood(points, scaled, [by_owner[owner] for owner in owners], jitter)

    best = [choices[-1]] * count
    if count <= 2:
        best = list(max(product(choices, repeat=count), key=likelihood))
    for direction in [*range(count)] * 2 if count > 2 else ():
        best = max(([*best[:direction], choice, *best[direction + 1 :]] for choice in choices), key=likelihood)
    return [best[owner] for owner in owners]


def improvement(posterior: Posterior, best: float) -> Floats:
    """Return the expected improvement on the best (lowest) value: float64[n]."""
    spread = np.maximum(posterior.deviation, 1e-300)
    gain = best - posterior.mean
    z = gain / spread
    below = np.array([0.5 * (1 + erf(value / sqrt(2))) for value in z.tolist()])
    density = np.exp(-0.5 * np.minimum(z * z, 1400)) / sqrt(2 * pi)
    return np.where(posterior.deviation > 0, gain * below + spread * density, np.maximum(gain, 0))


def suggest(points: Sequence[tuple[float, float]], values: Sequence[float], grid: Floats) -> int | None:
    """Return the index of the next point of a grid, float64[n, 2], to measure; None if all have been. The first points
    are those nearest to `DESIGN`."""
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


def _likelihood(points: Floats, values: Floats, lengths: Sequence[float], jitter: float) -> float:
    """Return the log-likelihood of the values, up to a constant."""
    whole = _kernel(points, points, lengths) + jitter * np.eye(len(points))
    return float(-0.5 * values @ np.linalg.solve(whole, values) - 0.5 * np.linalg.slogdet(whole)[1])
