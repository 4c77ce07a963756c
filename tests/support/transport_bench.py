"""For tests of transports: messages through the compiled fabric, who finished when, and what it cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gradwire.jit.records.constants import DATA, PROBE
from gradwire.jit.records.packets import kind_of, sequence_of
from gradwire.scenarios.schema.network.network import Switch
from gradwire.scenarios.schema.network.transport_base import Transport
from gradwire.sim.engine.fabric import Fabric
from gradwire.topology import LinkSpec, Network, Override, star
from gradwire.topology.routing import build_routing

US, MS = 10**6, 10**9
GBPS = 10**9
SECOND = 1000 * MS


@dataclass(frozen=True)
class Flow:
    """One message: it starts at `at` ps; `droppable` is the share of its packets tagged droppable, drawn at random."""

    src: int
    dst: int
    nbytes: int
    at: int = 0
    bound: float = 0.0
    droppable: float = 0.0
    priority: int = 0


@dataclass(frozen=True)
class Outcome:
    """What happened. Per message: delivery (ps), bytes lost, packets sent and sent again; the rest over all."""

    ends: list[int]
    lost: list[int]
    sent: list[int]
    again: list[int]
    drops: dict[str, int]
    marks: int
    redundant: int
    probes: int
    finished_ps: int


def play(
    network: Network,
    flows: Sequence[Flow],
    table: Transport,
    *,
    balancing: str = "ecmp",
    buffer: int = 100_000,
    threshold: int | None = None,
    selective: bool = False,
    seed: int = 1,
    limit_ps: int = 100 * SECOND,
    log: bool = False,
    **more: Any,
) -> Outcome:
    """Run until nothing moves any more; with `log`, find out which packets were sent although they were already
    there or still on their way. `more`: further keys of the switch table.

    Raises
    ------
    AssertionError
        Something still moves at `limit_ps`, or a message was not delivered.
    """
    switch = Switch(
        buffer=f"{buffer}B",
        ecn_threshold=None if threshold is None else f"{threshold}B",
        selective_drop=selective,
        **more,
    )  # type: ignore[arg-type]  # sizes are text with a unit
    fabric = Fabric(
        network, build_routing(network), switch=switch, transports=[table], balancing=balancing, seed=seed,
        packet_log=log,
    )  # fmt: skip
    rng = np.random.default_rng(seed)
    for flow in sorted(flows, key=lambda flow: flow.at):
        tags: Any = None
        if flow.droppable:
            tags = rng.random(-(-flow.nbytes // table.payload)) >= flow.droppable
        fabric.send(
            flow.at, flow.src, flow.dst, flow.nbytes,
            priority=flow.priority, bound=flow.bound, important=tags,
        )  # fmt: skip
    ends, lost = [0] * len(flows), [0] * len(flows)
    while not fabric.idle and fabric.now < limit_ps:
        for delivery in fabric.run(min(fabric.now + 10 * MS, limit_ps)):
            ends[delivery.message] = delivery.time_ps
            lost[delivery.message] = delivery.lost_bytes
    assert fabric.idle, f"still something on its way at {fabric.now} ps"
    assert all(ends), "undelivered messages"
    tables = fabric.finish()
    drops = {"tail": 0, "selective": 0, "link_loss": 0}
    for cause in tables.drops["cause"]:
        drops[cause] = drops.get(cause, 0) + 1
    redundant, probes = _redundant(fabric, network) if log else (-1, -1)
    finished = fabric.now
    fabric.close()
    return Outcome(
        ends, lost, tables.sent_packets, tables.retransmitted, drops, int(tables.ports["marks"].sum()), redundant,
        probes, finished,
    )  # fmt: skip


def _redundant(fabric: Fabric, network: Network) -> tuple[int, int]:
    """From the packet log: data packets sent again although a copy sent before was not lost; and probes."""
    log, drops = fabric.packet_log(), fabric.drop_log()
    hosts = network.host_count
    first = log[np.isin(log[:, 1], [link for link in range(len(network.link_src)) if network.link_src[link] < hosts])]
    kinds = kind_of(first[:, 2])
    data = first[kinds == DATA]
    lost: dict[tuple[int, int], int] = {}
    for row in drops[kind_of(drops[:, 2]) == DATA]:
        key = (int(row[4]), sequence_of(int(row[3])))
        lost[key] = lost.get(key, 0) + 1
    sent: dict[tuple[int, int], int] = {}
    for row in data:
        key = (int(row[5]), sequence_of(int(row[3])))
        sent[key] = sent.get(key, 0) + 1
    # of n copies, l were lost: the l lost ones had to be replaced, and one must arrive or may be given up
    redundant = sum(max(0, n - 1 - lost.get(key, 0)) for key, n in sent.items())
    return redundant, int((kinds == PROBE).sum())


def incast(senders: int, nbytes: int, **fields: Any) -> list[Flow]:
    """Hosts 1 to `senders` send to host 0 at once."""
    return [Flow(source, 0, nbytes, **fields) for source in range(1, senders + 1)]


def star_of(hosts: int, rate: int = 100 * GBPS, loss: float = 0.0) -> Network:
    """A star with 1 us links; `loss` on the cable of host 0, both ways."""
    overrides = [Override(("h0", "s0"), loss=loss)] if loss else []
    return star(hosts, LinkSpec(rate, US), overrides)
