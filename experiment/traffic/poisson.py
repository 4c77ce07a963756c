"""Poisson arrivals: the background traffic of most of the field's evaluations.

Every host is a Poisson process of its own: at rate `load` x line rate / mean size, it sends a flow to another host,
each with the same probability, of a size drawn from the distribution. All of them together are one Poisson process in
which the sender is drawn in proportion to the rates; that is how it is done here.

The load counts payload, as the traffic generators of HPCC and pFabric do [recalled]; headers come on top.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gradwire.experiment.traffic.base import BATCH, Flows, Setting
from gradwire.experiment.traffic.cdf import distribution

SOONER = 1 << 8
"""The first batch is small, so that a short run draws little; batches double up to `BATCH`."""


def poisson(setting: Setting) -> Iterator[Flows]:
    """Flows of a `Poisson` table."""
    table, rng, hosts = setting.table, setting.rng, setting.hosts
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
        now, drawn, many = int(start[-1]), drawn + many, min(2 * many, BATCH)
