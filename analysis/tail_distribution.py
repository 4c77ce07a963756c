"""Tail of a distribution: the share of values as large or larger, thinned for plots."""

from __future__ import annotations

import numpy as np

from gradwire.scenarios.arrays import AnyInts, Floats

MANY_POINTS = 2000


def tail(values: AnyInts, most: int = MANY_POINTS) -> tuple[AnyInts, Floats]:
    """Return (values that occur, percentage of all values as large or larger). At most about `most` points, evenly
    spread on a logarithmic scale of the percentage."""
    unique, counts = np.unique(values, return_counts=True)
    more = len(values) - np.cumsum(counts) + counts
    chosen = np.unique(np.searchsorted(-more, -np.geomspace(more[0], 1, most)).clip(0, len(unique) - 1))
    return unique[chosen], 100 * more[chosen] / len(values)
