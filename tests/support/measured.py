"""Runs whose packets are looked at afterwards: every transmission as columns, and means with their standard errors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import networkx
import numpy as np
from numpy.typing import NDArray

from gradwire.jit.records import constants as at
from gradwire.jit.records.packets import is_marked, kind_of, size_of
from gradwire.scenarios.schema.network.network import Switch
from gradwire.sim.engine.fabric import Fabric
from gradwire.topology import LinkSpec, Network, from_networkx
from gradwire.topology.routing import build_routing

US = 10**6  # picoseconds
MS = 10**9
GBPS = 10**9
BATCHES = 40


@dataclass(frozen=True)
class Seen:
    """Transmissions by time: start (ps), directed link, bytes, message, whether it is data, and marked."""

    network: Network
    start: NDArray[np.int64]
    link: NDArray[np.int64]
    size: NDArray[np.int64]
    message: NDArray[np.int64]
    data: NDArray[np.bool_]
    marked: NDArray[np.bool_]
    lost: int
    """packets dropped anywhere"""

    def of(self, which: NDArray[np.bool_]) -> Seen:
        """Some of them."""
        columns = (self.start, self.link, self.size, self.message, self.data, self.marked)
        return Seen(self.network, *(column[which] for column in columns), self.lost)

    def leaving(self) -> Seen:
        """Data packets on the cables of the hosts that send them."""
        return self.of(self.data & (self.network.link_src[self.link] < self.network.host_count))

    def arriving(self) -> Seen:
        """Data packets on the cables of the hosts that they are for."""
        return self.of(self.data & (self.network.link_dst[self.link] < self.network.host_count))

    def between(self, begin: int, end: int) -> Seen:
        """Those that started in [begin, end)."""
        return self.of((self.start >= begin) & (self.start < end))

    def ends(self) -> NDArray[np.int64]:
        """When the last bit of each has come to the far end of its link."""
        network = self.network
        duration = -(-self.size * 8 * 10**12 // network.link_rate[self.link])
        return self.start + duration + network.link_latency[self.link]


def watch(
    network: Network, send: Callable[[Fabric], Any], until: int | None, transport: Any, seed: int = 1, **switch: Any
) -> Seen:
    """Let `send` hand its messages to a network, run it until a time or until all is delivered, and see every packet."""
    fabric = Fabric(
        network,
        build_routing(network),
        switch=Switch.model_validate({"queues": 1, "buffer": "100MB", **switch}),
        transports=[transport],
        packet_log=True,
        seed=seed,
    )
    send(fabric)
    while (fabric.undelivered or not fabric.idle) if until is None else fabric.now < until:
        fabric.run(fabric.now + 1000 * MS if until is None else until)
    fabric.close()
    start, link, a, _, _, message = fabric.packet_log().T
    kind, size = kind_of(a), size_of(a)
    marked = is_marked(a) == 1
    return Seen(network, start, link, size, message, kind == at.DATA, marked, len(fabric.drop_log()))


def network_of(cables: list[tuple[str, str, int, int]]) -> Network:
    """Cables as (end, end, bit/s, ps); nodes whose names begin with h are hosts."""
    graph = networkx.Graph()
    for a, b, rate, latency in cables:
        graph.add_edge(a, b, rate=rate, latency=latency)
        for name in (a, b):
            graph.nodes[name]["kind"] = "host" if name.startswith("h") else "switch"
    return from_networkx(graph, LinkSpec(GBPS, 1))


def mean_and_error(values: Any) -> tuple[float, float]:
    """Mean and its standard error, from the means of consecutive batches: values near each other are not independent,
    but batches that are much longer than the memory of the system nearly are."""
    means = [batch.mean() for batch in np.array_split(np.asarray(values, float), BATCHES)]
    return float(np.mean(values)), float(np.std(means, ddof=1) / BATCHES**0.5)
