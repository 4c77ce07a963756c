"""Permutation traffic: every host sends to one other host and hears from one, the classic test of load balancing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

from gradwire.experiment.traffic.base import Flows, Setting, in_batches, rounds
from gradwire.scenarios.errors import Mistake
from gradwire.scenarios.schema.base import Count
from gradwire.scenarios.schema.traffic import Repeated

if TYPE_CHECKING:
    from numpy.random import Generator

    from gradwire.experiment.traffic.base import Ints


class Permutation(Repeated):
    """Every host sends one flow and receives one, all at the same time."""

    kind: Literal["permutation"]
    shift: Count | None = None
    """Host i sends to host i + shift, counted in a circle; absent: a random permutation, a new one every round."""

    def misfits(self, hosts: int) -> Iterator[Mistake]:
        yield from super().misfits(hosts)
        if self.shift and not self.shift % hosts:
            yield Mistake(
                "shift", f"makes every one of {hosts} hosts send to itself", self.shift, f"1 to {hosts - 1}"
            )

    def flows_of(self, setting: Setting) -> Iterator[Flows]:
        return in_batches(_rounds(setting, self))


def _rounds(setting: Setting, table: Permutation) -> Iterator[Flows]:
    import numpy as np

    n = len(setting.hosts)
    own = np.arange(n)
    for number, begin in rounds(setting, table):
        partner = (own + table.shift) % n if table.shift else derangement(n, setting.rng)
        yield Flows(
            setting.hosts, setting.hosts[partner], np.full(n, table.size), np.full(n, begin), np.full(n, number),
            number * n + own,
        )  # fmt: skip


def derangement(n: int, rng: Generator) -> Ints:
    """A permutation of n >= 2 that leaves nothing in its place, each with the same probability.

    Permutations are drawn until one is such: about one in e (2.7) is, however large n.
    """
    import numpy as np

    while True:
        drawn = rng.permutation(n)
        if (drawn != np.arange(n)).all():
            return drawn
