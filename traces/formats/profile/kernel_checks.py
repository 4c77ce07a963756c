"""Checks of kernel records against their launch, their stream and each other.

Each returns a mask of the kernels that cannot be believed. Kernels of a stream are in the order of their launches.
"""

from __future__ import annotations

from bisect import bisect_right

import numpy as np
from numpy.typing import NDArray

from gradwire.traces.formats.draft import Draft

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

CLOCK_US = 2.0
"""Clocks of CPU and accelerator agree to this; old profiles have whole microseconds. Our choice."""
USUAL = 0.1
"""A share of kernels from which on a doubt is a property of the machine, and not of single records. Our choice."""
MANY_LOST = 0.25
"""A share of a step's launches from which on it is left out if their kernels are not in the file. Our choice."""
MANY = 20
"""No share is taken of fewer kernels."""


class Kernels:
    """Columns of equal length: `start`, `end`, `launch` (NaN if unknown), `correlation`, `row`, `name`, `is_kernel`."""

    def __init__(self, columns: dict[str, NDArray[np.generic]]) -> None:
        self.start: Floats = columns["start"]  # type: ignore[assignment]
        self.end: Floats = columns["end"]  # type: ignore[assignment]
        self.launch: Floats = columns["launch"]  # type: ignore[assignment]
        self.correlation: Floats = columns["correlation"]  # type: ignore[assignment]
        self.row: Ints = columns["row"]  # type: ignore[assignment]
        self.name: Ints = columns["name"]  # type: ignore[assignment]
        self.is_kernel: Bools = columns["is_kernel"]  # type: ignore[assignment]

    def take(self, which: NDArray[np.generic]) -> Kernels:
        """Return the kernels at these indices, or where this mask is true."""
        return Kernels({key: column[which] for key, column in vars(self).items()})

    def __len__(self) -> int:
        return len(self.start)


def duplicates(kernels: Kernels) -> Bools:
    columns = (kernels.start, kernels.end, kernels.correlation, kernels.row)
    order = np.lexsort(columns)
    again = np.zeros(len(kernels), dtype=bool)
    again[order[1:]] = np.logical_and.reduce([each[order[1:]] == each[order[:-1]] for each in columns])
    return again


def moved(kernels: Kernels, main: int, steps: int) -> Bools:
    """Return which kernels are on another stream than `main` that has fewer of them than there are steps.

    What a step runs on a side stream recurs with each step: fewer are kernels of `main` whose stream or process is
    damaged.
    """
    counts = np.bincount(kernels.row[kernels.is_kernel], minlength=int(kernels.row.max()) + 1)
    is_moved: Bools = kernels.is_kernel & (kernels.row != main) & (counts[kernels.row] < steps)
    return is_moved


def without_duration(kernels: Kernels) -> Bools:
    """Return where a kernel lasts no time although others of its name do, unless that is usual (whole microseconds)."""
    lasts = kernels.end - kernels.start
    names, inverse = np.unique(kernels.name, return_inverse=True)
    longest = np.zeros(len(names))
    np.maximum.at(longest, inverse, lasts)
    is_alone = np.bincount(inverse, minlength=len(names))[inverse] == 1
    zero: Bools = (lasts == 0) & kernels.is_kernel & ((longest[inverse] > 1) | is_alone)
    if zero.sum() > MANY and zero.mean() > USUAL / 5:
        return np.zeros(len(zero), dtype=bool)
    return zero


def early(kernels: Kernels, draft: Draft) -> Bools:
    is_early = kernels.launch - kernels.start > CLOCK_US
    if (
        len(is_early) > MANY and is_early.mean() > USUAL
    ):  # the clocks differ: the order of launches is all that counts
        draft.doubtful["kernels that begin before their launch, so often that the clocks differ"] += int(
            is_early.sum()
        )
        return np.zeros(len(is_early), dtype=bool)
    return is_early


def late(kernels: Kernels) -> Bools:
    """Return which kernels wait for their turn twice as long as the recording lasts, and others do not."""
    delay = kernels.start - kernels.launch
    known = delay[np.isfinite(delay)]
    if not len(known):
        return np.zeros(len(delay), dtype=bool)
    low, high = np.quantile(kernels.start, (0.1, 0.9))
    is_late: Bools = delay - np.median(known) > 2 * max(float(high - low), CLOCK_US)
    return is_late


def out_of_order(start: Floats, end: Floats) -> Bools:
    """Return which kernels are not in every longest run of non-decreasing starts, of kernels by launch."""
    if (np.diff(start) >= 0).all():
        return np.zeros(len(start), dtype=bool)
    up, down = _run_lengths(start.tolist()), _run_lengths((-start[::-1]).tolist())[::-1]
    longest = up.max()
    member = up + down - 1 == longest
    counts = np.bincount(up[member], minlength=longest + 1)
    return ~(member & (counts[up] == 1))


def _run_lengths(values: list[float]) -> Ints:
    """Return for each value the length of the longest non-decreasing subsequence that ends with it."""
    tails: list[float] = []
    lengths = np.empty(len(values), dtype=np.int64)
    for index, value in enumerate(values):
        low = bisect_right(tails, value)
        if low == len(tails):
            tails.append(value)
        else:
            tails[low] = value
        lengths[index] = low + 1
    return lengths


def outlasting(start: Floats, end: Floats) -> Bools:
    """Return which kernels alone last twice as long as the rest of the recording."""
    if len(start) < 3:
        return np.zeros(len(start), dtype=bool)
    lasts = end - start
    return lasts > 2 * max(float(start[-1] - start[0]), CLOCK_US)


def overlapping(start: Floats, end: Floats) -> Bools:
    """Return the kernels of each overlap, unless overlaps are usual on this stream (programmatic launches).

    One that reaches beyond its successor is itself wrong; else either of the two may be.
    """
    wrong = np.zeros(len(start), dtype=bool)
    over = end[:-1] - start[1:] > CLOCK_US
    # A kernel may reach into its successor where the hardware starts that early, but not beyond its end.
    mild = over & (end[:-1] <= end[1:] + CLOCK_US)
    if len(over) > MANY and mild.mean() > USUAL:
        over &= ~mild
    wrong[:-1] |= over
    is_long = np.zeros(len(over), dtype=bool)
    is_long[:-1] = end[:-2] - start[2:] > CLOCK_US
    wrong[1:] |= over & ~is_long
    return wrong
