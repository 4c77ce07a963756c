"""Distributions of flow sizes: files with points of the piecewise linear cumulative distribution.

A file has one point per line, `bytes share`, both rising; the last share is 1 (or 100: then all shares are percentages,
as in HPCC's files). `#` begins a comment. A first share above 0 is the probability of exactly that size. Sizes are
whole bytes, rounded, at least 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gradwire.scenarios.units import parse_decimal, parse_size
from gradwire.workload.traffic.poisson import DISTRIBUTIONS, is_file
from gradwire.workload.traffic.text_reader import TextReader


@dataclass(frozen=True, eq=False)
class SizeDistribution:
    """Points of a cumulative distribution.

    size : float64[points], bytes, rising.
    share : float64[points], rising to 1: share of the flows of at most that size.
    """

    size: NDArray[np.float64]
    share: NDArray[np.float64]

    @property
    def mean(self) -> float:
        """Average bytes of a flow, before rounding to whole bytes."""
        middle = (self.size[1:] + self.size[:-1]) / 2
        return float(self.share[0] * self.size[0] + np.sum(np.diff(self.share) * middle))

    def at(self, share: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return the sizes at these shares (0 <= share < 1), whole bytes, at least 1."""
        sizes = np.rint(np.interp(share, self.share, self.size)).astype(np.int64)
        return np.maximum(sizes, 1)


def distribution(sizes: str, where: str = "sizes") -> SizeDistribution:
    """Return the distribution of a name, of a file, or of one size such as "100kB".

    Raises ScenarioError if the file is missing or not a distribution; the message names the lines.
    """
    if sizes in DISTRIBUTIONS:
        return read_distribution(
            Path(str(resources.files("gradwire.workload.traffic") / "sizes" / f"{sizes}.txt")), where
        )
    if is_file(sizes):
        return read_distribution(Path(sizes), where)
    size = float(parse_size(sizes))
    return SizeDistribution(np.array([size]), np.array([1.0]))


def read_distribution(path: Path, where: str) -> SizeDistribution:
    """Return a distribution from a file, or raise ScenarioError."""
    reader = TextReader(path, where)
    points: list[tuple[float, float]] = []
    for line, words in reader.lines():
        values = [number for word in words if (number := parse_decimal(word)) is not None]
        if len(words) != 2 or len(values) != 2:
            reader.wrong(line, "is not a point of a distribution", " ".join(words), "bytes share")
            continue
        size, share = map(float, values)
        if not (0 <= size < 2**53 and 0 <= share <= 100):
            reader.wrong(line, "is out of range", " ".join(words), "bytes from 0, and a share from 0 to 1")
        elif points and (size < points[-1][0] or share < points[-1][1]):
            reader.wrong(line, "is below the previous point", " ".join(words), "sizes and shares that rise")
        else:
            points.append((size, share))
    if not reader.mistakes:
        if not points or points[-1][1] not in (1.0, 100.0):
            last = points[-1][1] if points else None
            reader.wrong(None, "does not end with a share of 1", last, "1, or 100 for percentages")
        elif points[-1][0] < 0.5:
            reader.wrong(None, "has no flow of a byte or more", points[-1][0], "sizes above 0")
    reader.finish("a distribution of flow sizes")
    size, share = np.array(points, dtype=np.float64).T
    return SizeDistribution(size, share / share[-1])
