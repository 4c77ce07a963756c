"""Declares the traffic `poisson`, and generates flows with random arrival times, hosts and sizes. It is the background
traffic of most of the field's evaluations.

Every host is an independent Poisson process: at rate `load` x line rate / mean size, it sends a flow to a uniformly
random other host, of a size drawn from the distribution. Together they are one Poisson process whose sender is drawn in
proportion to the rates, which is how they are generated here.

The load counts payload, as in the traffic generators of HPCC and pFabric [recalled]; headers come on top.

Sizes are drawn from a piecewise linear cumulative distribution. Its file has one point per line, `bytes share`, both
rising; the last share is 1 (or 100: then all shares are percentages, as in HPCC's files). `#` begins a comment. A first
share above 0 is the probability of exactly that size. Sizes are whole bytes, rounded, at least 1.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field

from gradwire.scenarios.arrays import Floats, Ints
from gradwire.scenarios.lazily import np
from gradwire.scenarios.schema.base import Count
from gradwire.scenarios.schema.network.traffic import TrafficTable
from gradwire.scenarios.units import Ps, UnitError, parse_decimal, parse_size
from gradwire.workload.traffic.base import BATCH_FLOWS, Flows, TrafficSetting
from gradwire.workload.traffic.text_reader import TextReader

DISTRIBUTIONS = ("web_search", "data_mining", "facebook")
"""Distributions of flow sizes that come with gradwire."""

FIRST_BATCH = 1 << 8
"""Size of the first batch, so that a short run draws little; batches double up to `BATCH_FLOWS`."""


def is_file(sizes: str) -> bool:
    """Return True if sizes are the path of a file."""
    return "/" in sizes or sizes.endswith(".txt")


def _sizes(value: Any) -> str:
    """Validate the name of a distribution, the path of one, or a size."""
    known = ", ".join(f'"{name}"' for name in DISTRIBUTIONS)
    expected = f'{known}, a file such as "sizes.txt", or one size such as "100kB"'
    if not isinstance(value, str):
        raise UnitError("is not a distribution of sizes", expected)
    if value in DISTRIBUTIONS or is_file(value):
        return value
    try:
        if parse_size(value) > 0:
            return value
    except UnitError:
        pass
    raise UnitError("is not a distribution of sizes", expected)


Load = Annotated[float, Field(gt=0, le=1, strict=True)]


class Poisson(TrafficTable):
    """Flows that arrive independently of each other: exponential gaps, random ends, sizes from a distribution."""

    limit = "flows"

    kind: Literal["poisson"]
    load: Load
    """Payload that every host sends, as a share of its link's rate, in the long run."""
    sizes: Annotated[str, BeforeValidator(_sizes), Field(json_schema_extra={"examples": list(DISTRIBUTIONS)})]
    """"web_search", "data_mining" or "facebook"; a file with lines "bytes share"; or one size, such as "100kB"."""
    flows: Count | None = None
    """Number of flows in all; unlimited up to `stop` if absent."""

    @property
    def endless(self) -> bool:
        return self.flows is None and self.stop is None

    @property
    def path(self) -> str | None:
        return self.sizes if is_file(self.sizes) else None

    def at(self, file: str) -> Self:
        return self.model_copy(update={"sizes": file})

    def largest(self, where: str, hosts: int | None) -> tuple[str, int]:
        return "sizes", int(distribution(self.sizes, f"{where}.sizes").size.max())

    def flows_of(self, setting: TrafficSetting) -> Iterator[Flows]:
        """Yield flows, with all draws of a batch at once."""
        rng, hosts = setting.rng, setting.hosts
        sizes = distribution(self.sizes, f"{setting.where}.sizes")
        rates = setting.rates / 8e12 * self.load / sizes.mean  # flows per picosecond
        total = float(rates.sum())
        edges = np.cumsum(rates) / total
        now, drawn, size = self.start, 0, FIRST_BATCH
        while self.flows is None or drawn < self.flows:
            if self.flows is not None:
                size = min(size, self.flows - drawn)
            start = now + np.cumsum(np.rint(rng.exponential(1 / total, size)).astype(np.int64))
            src = np.minimum(np.searchsorted(edges, rng.random(size), side="right"), len(hosts) - 1)
            dst = (src + rng.integers(1, len(hosts), size)) % len(hosts)
            nbytes = sizes.at(rng.random(size))
            count = size if setting.end_ps is None else int(np.searchsorted(start, setting.end_ps))
            if count:
                ends, none = (hosts[src[:count]], hosts[dst[:count]]), np.zeros(count, dtype=np.int64)
                yield Flows(*ends, nbytes[:count], start[:count], none, drawn + np.arange(count))
            if count < size:
                return
            now, drawn, size = Ps(int(start[-1])), drawn + size, min(2 * size, BATCH_FLOWS)


@dataclass(frozen=True, eq=False)
class SizeDistribution:
    """Points of a cumulative distribution.

    size : float64[points], bytes, rising.
    share : float64[points], rising to 1: share of the flows of at most that size.
    """

    size: Floats
    share: Floats

    @property
    def mean(self) -> float:
        """Average bytes of a flow, before rounding to whole bytes."""
        middle = (self.size[1:] + self.size[:-1]) / 2
        return float(self.share[0] * self.size[0] + np.sum(np.diff(self.share) * middle))

    def at(self, share: Floats) -> Ints:
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
