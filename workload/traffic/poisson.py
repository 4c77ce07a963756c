"""Poisson arrivals: the background traffic of most of the field's evaluations.

Every host is an independent Poisson process: at rate `load` x line rate / mean size, it sends a flow to a uniformly
random other host, of a size drawn from the distribution. Together they are one Poisson process whose sender is drawn in
proportion to the rates, which is how they are generated here.

The load counts payload, as in the traffic generators of HPCC and pFabric [recalled]; headers come on top.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field

from gradwire.scenarios.schema.base import Count
from gradwire.scenarios.schema.network.traffic import TrafficTable
from gradwire.scenarios.units import Ps, UnitError, parse_size
from gradwire.workload.traffic.base import BATCH_FLOWS, Flows, TrafficSetting

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
        from gradwire.workload.traffic.size_distribution import distribution

        return "sizes", int(distribution(self.sizes, f"{where}.sizes").size.max())

    def flows_of(self, setting: TrafficSetting) -> Iterator[Flows]:
        return poisson(setting, self)


def poisson(setting: TrafficSetting, table: Poisson) -> Iterator[Flows]:
    """Yield the flows of a table: all draws of a batch at once."""
    import numpy as np

    from gradwire.workload.traffic.size_distribution import distribution

    rng, hosts = setting.rng, setting.hosts
    sizes = distribution(table.sizes, f"{setting.where}.sizes")
    rates = setting.rates / 8e12 * table.load / sizes.mean  # flows per picosecond
    total = float(rates.sum())
    edges = np.cumsum(rates) / total
    now, drawn, size = table.start, 0, FIRST_BATCH
    while table.flows is None or drawn < table.flows:
        if table.flows is not None:
            size = min(size, table.flows - drawn)
        start = now + np.cumsum(np.rint(rng.exponential(1 / total, size)).astype(np.int64))
        src = np.minimum(np.searchsorted(edges, rng.random(size), side="right"), len(hosts) - 1)
        dst = (src + rng.integers(1, len(hosts), size)) % len(hosts)
        nbytes = sizes.at(rng.random(size))
        count = size if setting.end_ps is None else int(np.searchsorted(start, setting.end_ps))
        if count:
            part = slice(0, count)
            yield Flows(
                hosts[src[part]],
                hosts[dst[part]],
                nbytes[part],
                start[part],
                np.zeros(count, dtype=np.int64),
                drawn + np.arange(count),
            )
        if count < size:
            return
        now, drawn, size = Ps(int(start[-1])), drawn + size, min(2 * size, BATCH_FLOWS)
