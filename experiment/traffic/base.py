"""What a kind of traffic is given, and what it answers: batches of flows, in the order in which they start.

A kind makes `Setting -> Iterator[Flows]`. It is asked for the next batch when the one before has been handed to the
network, so that traffic without an end costs no more memory than what has been started.

NumPy is imported where it is used, because kinds stand beside the tables of a scenario.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gradwire.scenarios.inner_units import Ps

if TYPE_CHECKING:
    from numpy.random import Generator

    from gradwire.experiment.program import Ints
    from gradwire.scenarios.schema.traffic import Repeated

BATCH = 1 << 15
"""Flows that are drawn at once. Results do not depend on it where ends of batches leave no trace: see each kind."""

ABSENT = -2
"""In `Setting.node_hosts`: a host that does not take part."""


@dataclass(frozen=True, eq=False)
class Setting:
    """Where and when.

    Attributes
    ----------
    where : its place in the scenario, for messages.
    hosts : int64[n], numbers of the hosts that take part, in the order in which the table names them.
    rates : int64[n], bit/s of their links, all network cards together.
    index : number by name, of all hosts.
    end_ps : no flow starts at this time or later; None if there is no such time.
    rng : source of every draw; depends on the scenario's seed and the table's name only.
    node_hosts : int64[nodes] or None
        Where the topology's file numbers its nodes: the host of each, ABSENT if it does not take part, and -1 for a
        switch.
    """

    where: str
    hosts: Ints
    rates: Ints
    index: dict[str, int]
    end_ps: int | None
    rng: Generator
    node_hosts: Ints | None = None

    def over(self, time_ps: int) -> bool:
        """Whether it is too late to start a flow."""
        return self.end_ps is not None and time_ps >= self.end_ps


def no_edges() -> Ints:
    """Nothing waits for anything."""
    import numpy as np

    return np.zeros((0, 2), dtype=np.int64)


@dataclass(frozen=True, eq=False)
class Flows:
    """n flows, in an order in which each comes after those that it waits for.

    Attributes
    ----------
    src, dst : int64[n], numbers of hosts.
    nbytes : int64[n].
    start_ps : int64[n]: when a flow enters its host's interface; rising over those that wait for nothing.
    round : int64[n]: which repetition it belongs to.
    flow : int64[n]: its number within the traffic, or the one that its file gives it.
    edges : int64[m, 2]: flows (before, after); `after` starts one software latency after `before` was delivered.
    settled : int64[k, 2]: the same, where `after` starts one software latency after the sender of `before`, which is
        the same host, is done.
    rail : int64[n] or None: where hosts have several network cards, its number modulo theirs is the card that it leaves
        and enters by; None: the number of the flow.
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
        """The numbers that choose network cards (see `gradwire.experiment.traffic.rails`)."""
        return self.flow if self.rail is None else self.rail


def generator(seed: int, name: str) -> Generator:
    """The random numbers of one traffic."""
    import numpy as np

    return np.random.default_rng(
        np.random.SeedSequence((seed, zlib.crc32(b"traffic"), zlib.crc32(name.encode())))
    )


def rounds(setting: Setting, table: Repeated) -> Iterator[tuple[int, int]]:
    """(round, its start) of traffic that is repeated."""
    number, begin = 0, table.start
    while not setting.over(begin):
        yield number, begin
        number += 1
        if table.period is None or number == table.rounds:
            return
        begin = Ps(begin + table.period)


def in_batches(parts: Iterator[Flows]) -> Iterator[Flows]:
    """Join small parts without edges, whose starts rise, to batches of about `BATCH` flows that start close together.

    Parts that start more than a millisecond apart stay apart, so that waiting for the end of a batch does not mean
    planning far ahead.
    """
    held: list[Flows] = []
    count = 0
    for part in parts:
        late = held and int(part.start_ps[0]) - int(held[0].start_ps[0]) > 1_000_000_000
        if held and (count + len(part) > BATCH or late):
            yield _joined(held)
            held, count = [], 0
        held.append(part)
        count += len(part)
    if held:
        yield _joined(held)


def from_then_on(parts: Iterator[Flows], since_ps: int) -> Iterator[Flows]:
    """The flows that begin at a time or later, which count from then. Of those that wait for others, the ones that wait
    for none that began before."""
    import numpy as np

    for part in parts:
        kept = part.start_ps >= since_ps
        edges = np.concatenate((part.edges, part.settled))
        edges = edges[np.argsort(edges[:, 1], kind="stable")]  # each comes after those that it waits for
        kept[edges[:, 1]] = True
        for one, other in edges.tolist():
            kept[other] &= kept[one]
        if not kept.any():
            continue
        place = np.cumsum(kept) - 1
        edges, settled = (place[each[kept[each[:, 1]]]].reshape(-1, 2) for each in (part.edges, part.settled))
        columns = {name: getattr(part, name)[kept] for name in ("src", "dst", "nbytes", "start_ps", "round", "flow")}
        columns["start_ps"] = np.maximum(columns["start_ps"] - since_ps, 0)
        yield Flows(**columns, edges=edges, rail=part.rails[kept], settled=settled)


def _joined(parts: list[Flows]) -> Flows:
    import numpy as np

    names = ("src", "dst", "nbytes", "start_ps", "round", "flow")
    columns = {name: np.concatenate([getattr(part, name) for part in parts]) for name in names}
    return Flows(**columns, rail=np.concatenate([part.rails for part in parts]))
