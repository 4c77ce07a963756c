"""The tail of a distribution: the share of values that are as large or larger, thinned for a picture."""

from __future__ import annotations

import numpy as np

from gradwire.scenarios.arrays import AnyInts, Floats

MANY_POINTS = 2000


def later(values: AnyInts, most: int = MANY_POINTS) -> tuple[AnyInts, Floats]:
    """(values that occur, percentage of all that are as large or larger), at most about `most` of them, even on a
    logarithmic scale of the percentage."""
    found, counts = np.unique(values, return_counts=True)
    more = len(values) - np.cumsum(counts) + counts
    kept = np.unique(np.searchsorted(-more, -np.geomspace(more[0], 1, most)).clip(0, len(found) - 1))
    return found[kept], 100 * more[kept] / len(values)
