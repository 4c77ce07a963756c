"""Permutation traffic: every host sends to one other host and hears from one, the classic test of load balancing."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gradwire.experiment.traffic.base import Flows, Ints, Setting, in_batches, rounds


def permutation(setting: Setting) -> Iterator[Flows]:
    """Flows of a `Permutation` table."""
    return in_batches(_rounds(setting))


def _rounds(setting: Setting) -> Iterator[Flows]:
    table, n = setting.table, len(setting.hosts)
    own = np.arange(n)
    for number, begin in rounds(setting):
        partner = (own + table.shift) % n if table.shift else derangement(n, setting.rng)
        yield Flows(
            setting.hosts, setting.hosts[partner], np.full(n, table.size), np.full(n, begin), np.full(n, number),
            number * n + own,
        )  # fmt: skip


def derangement(n: int, rng: np.random.Generator) -> Ints:
    """A permutation of n >= 2 that leaves nothing in its place, each with the same probability.

    Permutations are drawn until one is such: about one in e (2.7) is, however large n.
    """
    while True:
        drawn = rng.permutation(n)
        if (drawn != np.arange(n)).all():
            return drawn
