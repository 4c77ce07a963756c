"""Declares the interface of traffic kinds, which turn a setting into batches of flows, in the order of their starts.

A kind implements `TrafficSetting -> Iterator[Flows]`. The next batch is requested when the previous one has been handed
to the network, so traffic without an end only takes memory for the flows that have started.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gradwire.scenarios.arrays import Ints
from gradwire.scenarios.inner_units import Ps
from gradwire.scenarios.lazily import np

if TYPE_CHECKING:
    from gradwire.scenarios.schema.network.traffic import RepeatedTraffic

BATCH_FLOWS = 1 << 15
"""Flows that are drawn at once. Results do not depend on it, with exceptions described in each kind."""

COLUMNS = ("src", "dst", "nbytes", "start_ps", "round", "flow")
"""Columns that all `Flows` have."""

ABSENT = -2
"""In `TrafficSetting.node_hosts`: a host that does not take part."""


@dataclass(frozen=True, eq=False)
class TrafficSetting:
    """Hosts, times and random numbers of a traffic table.

    where : its path in the scenario, for messages.
    hosts : int64[n], numbers of the participating hosts, in the order of the table.
    rates : int64[n], bit/s of their links, all NICs together.
    index : number by name, of all hosts.
    end_ps : no flow starts at this time or later; None for no limit.
    rng : source of every draw; depends on the scenario's seed and the table's name only.
    node_hosts : int64[nodes] if the topology's file numbers its nodes: the host of each, ABSENT if it does not take
        part, -1 for a switch.
    """

    where: str
    hosts: Ints
    rates: Ints
    index: dict[str, int]
    end_ps: int | None
    rng: np.random.Generator
    node_hosts: Ints | None = None

    def is_over(self, time_ps: int) -> bool:
        """Return True if it is too late to start a flow."""
        return self.end_ps is not None and time_ps >= self.end_ps


def no_edges() -> Ints:
    """Return an empty array of edges."""
    return np.zeros((0, 2), dtype=np.int64)


@dataclass(frozen=True, eq=False)
class Flows:
    """n flows, in an order in which each comes after those that it waits for.

    src, dst : int64[n], numbers of hosts.
    nbytes : int64[n].
    start_ps : int64[n]: when a flow enters its host's NIC; rising over those that wait for nothing.
    round : int64[n]: number of its repetition.
    flow : int64[n]: its number within the traffic, or that of its file.
    edges : int64[m, 2]: flows (before, after); `after` starts one software latency after `before` was delivered.
    settled : int64[k, 2]: the same, where `after` starts one software latency after the end of `before` at its sender,
        which is the same host.
    rail : int64[n] or None: modulo a host's NICs, the number of the NIC that it leaves and enters by; None: the number
        of the flow.
    """

    src: Ints
    dst: Ints
    nbytes: Ints
    start_ps: Ints
    round: Ints
    flow: Ints
    edges: Ints = field(default_factory=no_edges)
    rail: Ints | None = None
    settled: Ints = field(default_factory=no_edges)

    def __len__(self) -> int:
        return len(self.src)

    @property
    def rails(self) -> Ints:
        """Numbers that select NICs (see `gradwire.workload.traffic.flow_part`)."""
        return self.flow if self.rail is None else self.rail


def simultaneous(src: Ints, dst: Ints, nbytes: int, start_ps: int, number: int, flow: Ints, **more: Ints) -> Flows:
    """Return flows of one size that start together in round `number`; `more`: other columns of `Flows`."""
    sizes, starts, rounds_ = (np.full(len(src), value) for value in (nbytes, start_ps, number))
    return Flows(src, dst, sizes, starts, rounds_, flow, **more)


def random_generator(seed: int, name: str) -> np.random.Generator:
    """Return the random number generator of one traffic table."""
    return np.random.default_rng(np.random.SeedSequence((seed, zlib.crc32(b"traffic"), zlib.crc32(name.encode()))))


def rounds(setting: TrafficSetting, table: RepeatedTraffic) -> Iterator[tuple[int, int]]:
    """Yield (round, its start) of repeated traffic."""
    number, begin = 0, table.start
    while not setting.is_over(begin):
        yield number, begin
        number += 1
        if table.period is None or number == table.rounds:
            return
        begin = Ps(begin + table.period)


def in_batches(parts: Iterator[Flows]) -> Iterator[Flows]:
    """Join small parts without edges, whose starts rise, to batches of about `BATCH_FLOWS` flows. Parts that start more
    than a millisecond apart are not joined, to avoid planning far ahead."""
    pending: list[Flows] = []
    count = 0
    for part in parts:
        late = pending and int(part.start_ps[0]) - int(pending[0].start_ps[0]) > 1_000_000_000
        if pending and (count + len(part) > BATCH_FLOWS or late):
            yield _joined(pending)
            pending, count = [], 0
        pending.append(part)
        count += len(part)
    if pending:
        yield _joined(pending)


def flows_since(parts: Iterator[Flows], since_ps: int) -> Iterator[Flows]:
    """Yield the flows that begin at `since_ps` or later, with starts relative to it. Flows that wait for others are
    included if all of those are."""
    for part in parts:
        selected = part.start_ps >= since_ps
        edges = np.concatenate((part.edges, part.settled))
        edges = edges[np.argsort(edges[:, 1], kind="stable")]  # each after those that it waits for
        selected[edges[:, 1]] = True
        for one, other in edges.tolist():
            selected[other] &= selected[one]
        if not selected.any():
            continue
        new_index = np.cumsum(selected) - 1
        edges, settled = (
            new_index[pairs[selected[pairs[:, 1]]]].reshape(-1, 2) for pairs in (part.edges, part.settled)
        )
        columns = {name: getattr(part, name)[selected] for name in COLUMNS}
        columns["start_ps"] = np.maximum(columns["start_ps"] - since_ps, 0)
        yield Flows(**columns, edges=edges, rail=part.rails[selected], settled=settled)


def _joined(parts: list[Flows]) -> Flows:
    columns = {name: np.concatenate([getattr(part, name) for part in parts]) for name in COLUMNS}
    return Flows(**columns, rail=np.concatenate([part.rails for part in parts]))
