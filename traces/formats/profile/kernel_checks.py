"""Checks a profile's kernel records against their launch, their stream and each other, and returns masks of doubtful
ones.

Kernels of a stream are in the order of their launches.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

import numpy as np

from gradwire.scenarios.arrays import AnyArray, Flags, Floats, Ints
from gradwire.traces.formats.draft import Draft

CLOCK_US = 2.0
"""Tolerance between the clocks of CPU and accelerator; old profiles have whole microseconds. Our choice."""
USUAL_SHARE = 0.1
"""Share of kernels above which a doubt is a property of the machine, not of single records. Our choice."""
MAX_LOST_SHARE = 0.25
"""Share of a step's launches without kernels in the file above which the step is left out. Our choice."""
MIN_KERNELS = 20
"""Minimum number of kernels for a share."""


@dataclass
class Kernels:
    """Columns of equal length, one row per kernel; `launch` is NaN if unknown."""

    start: Floats
    end: Floats
    launch: Floats
    correlation: Floats
    row: Ints
    name: Ints
    is_kernel: Flags

    def take(self, which: AnyArray) -> Kernels:
        """Return the kernels at these indices, or where this mask is true."""
        return Kernels(**{key: column[which] for key, column in vars(self).items()})

    def __len__(self) -> int:
        return len(self.start)


def duplicates(kernels: Kernels) -> Flags:
    """Return the kernels recorded more than once, except for their first record."""
    columns = (kernels.start, kernels.end, kernels.correlation, kernels.row)
    order = np.lexsort(columns)
    is_repeated = np.zeros(len(kernels), dtype=bool)
    is_repeated[order[1:]] = np.logical_and.reduce([column[order[1:]] == column[order[:-1]] for column in columns])
    return is_repeated


def on_wrong_stream(kernels: Kernels, main: int, steps: int) -> Flags:
    """Return the kernels on streams other than `main` that have fewer kernels than there are steps. Work on a side
    stream recurs in each step: fewer are kernels of `main` whose stream or process is damaged."""
    counts = np.bincount(kernels.row[kernels.is_kernel], minlength=int(kernels.row.max()) + 1)
    is_moved: Flags = kernels.is_kernel & (kernels.row != main) & (counts[kernels.row] < steps)
    return is_moved


def without_duration(kernels: Kernels) -> Flags:
    """Return the kernels of zero duration whose name has longer ones, unless that is usual (whole microseconds)."""
    duration = kernels.end - kernels.start
    names, inverse = np.unique(kernels.name, return_inverse=True)
    longest = np.zeros(len(names))
    np.maximum.at(longest, inverse, duration)
    is_alone = np.bincount(inverse, minlength=len(names))[inverse] == 1
    zero: Flags = (duration == 0) & kernels.is_kernel & ((longest[inverse] > 1) | is_alone)
    if zero.sum() > MIN_KERNELS and zero.mean() > USUAL_SHARE / 5:
        return np.zeros(len(zero), dtype=bool)
    return zero


def before_launch(kernels: Kernels, draft: Draft) -> Flags:
    """Return the kernels that begin before their launch; none if over a tenth do, as the clocks then differ."""
    is_early = kernels.launch - kernels.start > CLOCK_US
    if (
        len(is_early) > MIN_KERNELS and is_early.mean() > USUAL_SHARE
    ):  # the clocks differ: only the order of launches counts
        draft.doubtful["kernels that begin before their launch, so often that the clocks differ"] += int(is_early.sum())
        return np.zeros(len(is_early), dtype=bool)
    return is_early


def long_after_launch(kernels: Kernels) -> Flags:
    """Return the kernels that start later than others after their launch by twice the length of the recording."""
    delay = kernels.start - kernels.launch
    known = delay[np.isfinite(delay)]
    if not len(known):
        return np.zeros(len(delay), dtype=bool)
    low, high = np.quantile(kernels.start, (0.1, 0.9))
    is_late: Flags = delay - np.median(known) > 2 * max(float(high - low), CLOCK_US)
    return is_late


def out_of_order(start: Floats, end: Floats) -> Flags:
    """Return the kernels, ordered by launch, that are not in every longest non-decreasing run of starts."""
    if (np.diff(start) >= 0).all():
        return np.zeros(len(start), dtype=bool)
    up, down = _run_lengths(start.tolist()), _run_lengths((-start[::-1]).tolist())[::-1]
    longest = up.max()
    member = up + down - 1 == longest
    counts = np.bincount(up[member], minlength=longest + 1)
    return ~(member & (counts[up] == 1))


def _run_lengths(values: list[float]) -> Ints:
    """Return the length of the longest non-decreasing subsequence that ends with each value."""
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


def outlasting(start: Floats, end: Floats) -> Flags:
    """Return the kernels that last twice as long as the rest of the recording."""
    if len(start) < 3:
        return np.zeros(len(start), dtype=bool)
    duration = end - start
    return duration > 2 * max(float(start[-1] - start[0]), CLOCK_US)


def overlapping(start: Floats, end: Floats) -> Flags:
    """Return the kernels of each overlap, unless overlaps are usual on this stream (programmatic launches). A kernel
    that reaches beyond its successor is itself wrong; otherwise either of the two may be."""
    wrong = np.zeros(len(start), dtype=bool)
    overlaps = end[:-1] - start[1:] > CLOCK_US
    # A kernel may reach into its successor where the hardware starts that early, but not beyond its end.
    mild = overlaps & (end[:-1] <= end[1:] + CLOCK_US)
    if len(overlaps) > MIN_KERNELS and mild.mean() > USUAL_SHARE:
        overlaps &= ~mild
    wrong[:-1] |= overlaps
    is_long = np.zeros(len(overlaps), dtype=bool)
    is_long[:-1] = end[:-2] - start[2:] > CLOCK_US
    wrong[1:] |= overlaps & ~is_long
    return wrong
