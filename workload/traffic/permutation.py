"""Declares the traffic `permutation`, and generates flows by which every host sends to one host and receives from one.
It is the classic test of load balancing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from gradwire.scenarios.arrays import Ints
from gradwire.scenarios.errors import Mistake
from gradwire.scenarios.lazily import np
from gradwire.scenarios.schema.base import Count
from gradwire.scenarios.schema.network.traffic import RepeatedTraffic
from gradwire.workload.traffic.base import Flows, TrafficSetting, in_batches, rounds, simultaneous


class Permutation(RepeatedTraffic):
    """Every host sends one flow and receives one, all at the same time."""

    kind: Literal["permutation"]
    shift: Count | None = None
    """Host i sends to host i + shift, modulo the number of hosts; if absent, a new random permutation every round."""

    def misfits(self, hosts: int) -> Iterator[Mistake]:
        yield from super().misfits(hosts)
        if self.shift and not self.shift % hosts:
            yield Mistake("shift", f"makes every one of {hosts} hosts send to itself", self.shift, f"1 to {hosts - 1}")

    def flows_of(self, setting: TrafficSetting) -> Iterator[Flows]:
        return in_batches(_rounds(setting, self))


def _rounds(setting: TrafficSetting, table: Permutation) -> Iterator[Flows]:
    n = len(setting.hosts)
    index = np.arange(n)
    for number, begin in rounds(setting, table):
        partner = (index + table.shift) % n if table.shift else derangement(n, setting.rng)
        yield simultaneous(setting.hosts, setting.hosts[partner], table.size, begin, number, number * n + index)


def derangement(n: int, rng: np.random.Generator) -> Ints:
    """Return a uniformly random permutation of n >= 2 without fixed points.

    Permutations are drawn until one qualifies, which about one in e (2.7) does for any n.
    """
    while True:
        drawn = rng.permutation(n)
        if (drawn != np.arange(n)).all():
            return drawn
