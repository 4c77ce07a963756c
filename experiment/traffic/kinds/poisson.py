"""Poisson arrivals: the background traffic of most of the field's evaluations.

Every host is a Poisson process of its own: at rate `load` x line rate / mean size, it sends a flow to another host,
each with the same probability, of a size drawn from the distribution. All of them together are one Poisson process in
which the sender is drawn in proportion to the rates; that is how it is done here.

The load counts payload, as the traffic generators of HPCC and pFabric do [recalled]; headers come on top.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field

from gradwire.experiment.traffic.base import BATCH, Flows, Setting
from gradwire.scenarios.schema.base import Count
from gradwire.scenarios.schema.traffic import Traffic
from gradwire.scenarios.units import Ps, UnitError, parse_size

DISTRIBUTIONS = ("web_search", "data_mining", "facebook")
"""Distributions of flow sizes that come with gradwire."""

SOONER = 1 << 8
"""The first batch is small, so that a short run draws little; batches double up to `BATCH`."""


def is_file(sizes: str) -> bool:
    """Whether sizes are those of a file."""
    return "/" in sizes or sizes.endswith(".txt")


def _sizes(value: Any) -> str:
    """The name of a distribution, the path of one, or a size."""
    known = ", ".join(f'"{name}"' for name in DISTRIBUTIONS)
    expected = f'{known}, a file such as "sizes.txt", or one size such as "100kB"'
    if not isinstance(value, str):
        raise UnitError("is no distribution of sizes", expected)
    if value in DISTRIBUTIONS or is_file(value):
        return value
    try:
        if parse_size(value) > 0:
            return value
    except UnitError:
        pass
    raise UnitError("is no distribution of sizes", expected)


Load = Annotated[float, Field(gt=0, le=1, strict=True)]


class Poisson(Traffic):
    """Flows that arrive independently of each other: exponential gaps, random ends, sizes from a distribution."""

    limit = "flows"

    kind: Literal["poisson"]
    load: Load
    """Payload that every host sends, as a share of its link's rate, in the long run."""
    sizes: Annotated[str, BeforeValidator(_sizes), Field(json_schema_extra={"examples": list(DISTRIBUTIONS)})]
    """"web_search", "data_mining" or "facebook"; a file with lines "bytes share"; or one size, such as "100kB"."""
    flows: Count | None = None
    """How many in all; any number up to `stop` if absent."""

    @property
    def endless(self) -> bool:
        return self.flows is None and self.stop is None

    @property
    def path(self) -> str | None:
        return self.sizes if is_file(self.sizes) else None

    def at(self, file: str) -> Self:
        return self.model_copy(update={"sizes": file})

    def largest(self, where: str, hosts: int | None) -> tuple[str, int]:
        from gradwire.experiment.traffic.cdf import distribution

        return "sizes", int(distribution(self.sizes, f"{where}.sizes").size.max())

    def flows_of(self, setting: Setting) -> Iterator[Flows]:
        return poisson(setting, self)


def poisson(setting: Setting, table: Poisson) -> Iterator[Flows]:
    """Flows of a table: every draw of a batch at once."""
    import numpy as np

    from gradwire.experiment.traffic.cdf import distribution

    rng, hosts = setting.rng, setting.hosts
    sizes = distribution(table.sizes, f"{setting.where}.sizes")
    rates = setting.rates / 8e12 * table.load / sizes.mean  # flows per picosecond
    total = float(rates.sum())
    edges = np.cumsum(rates) / total
    now, drawn, many = table.start, 0, SOONER
    while table.flows is None or drawn < table.flows:
        if table.flows is not None:
            many = min(many, table.flows - drawn)
        start = now + np.cumsum(np.rint(rng.exponential(1 / total, many)).astype(np.int64))
        src = np.minimum(np.searchsorted(edges, rng.random(many), side="right"), len(hosts) - 1)
        dst = (src + rng.integers(1, len(hosts), many)) % len(hosts)
        nbytes = sizes.at(rng.random(many))
        kept = many if setting.end_ps is None else int(np.searchsorted(start, setting.end_ps))
        if kept:
            part = slice(0, kept)
            yield Flows(
                hosts[src[part]], hosts[dst[part]], nbytes[part], start[part],
                np.zeros(kept, dtype=np.int64), drawn + np.arange(kept),
            )  # fmt: skip
        if kept < many:
            return
        now, drawn, many = Ps(int(start[-1])), drawn + many, min(2 * many, BATCH)
