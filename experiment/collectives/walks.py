"""The walks that collectives are made of: all-reduces, whose first half is a reduce-scatter (or a reduction) and whose
second half an all-gather (or a broadcast)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

import numpy as np

from gradwire.experiment.collectives.schedule import Rows
from gradwire.scenarios.arrays import Ints


def ring(ranks: int) -> Iterator[Rows]:
    """In step s of 2(N - 1) rank w sends segment (w - s) mod N to rank w + 1, added up in the first half of them."""
    w = np.arange(ranks)
    for s in range(2 * (ranks - 1)):
        yield Rows(s, w, (w + 1) % ranks, (w - s) % ranks, 1, s < ranks - 1)


def all_to_all(ranks: int) -> Iterator[Rows]:
    """Everybody sends segment v to rank v, who adds up, and sends it to everybody: each to the next rank first, then to
    the one behind it, and so on."""
    rank = np.arange(ranks)
    for distance in range(1, ranks):
        other = (rank + distance) % ranks
        yield Rows(0, rank, other, other, 1, True)
        yield Rows(1, rank, other, rank, 1, False)


def halving(member: Ints, stage: int = 0) -> Iterator[Rows]:
    """Among ranks `member`, a power of two of them, the i-th has segment i in between. In every step of the first half
    each exchanges with another one, at half the distance, the half of what it still has that holds the other's segment;
    the second half is the way back. Stages are counted from `stage`."""
    power = len(member)
    steps = power.bit_length() - 1
    place = np.arange(power)
    for step in range(steps):
        half = power >> (step + 1)
        other = place ^ half
        yield Rows(stage + step, member, member[other], other // half * half, half, True)
        yield Rows(stage + 2 * steps - 1 - step, member, member[other], place // half * half, half, False)


def binomial(ranks: int) -> Iterator[Rows]:
    """Up a binomial tree to rank 0 and down again, with one segment: rank r, whose lowest set bit is 2^k, sends to rank
    r - 2^k in step k, and gets it back in the k-th step from the end."""
    depth = (ranks - 1).bit_length()
    for k in range(depth):
        child = np.arange(1 << k, ranks, 2 << k)
        yield Rows(k, child, child - (1 << k), 0, 1, True)
        yield Rows(2 * depth - 1 - k, child - (1 << k), child, 0, 1, False)


WALKS: Mapping[str, Callable[[int], Iterator[Rows]]] = MappingProxyType(
    {"ring": ring, "all_to_all": all_to_all, "halving": lambda ranks: halving(np.arange(ranks))}
)
"""By the names by which halves of them are chosen."""

SENT: Mapping[str, Callable[[int], int]] = MappingProxyType({
    "ring": lambda ranks: 2 * ranks * (ranks - 1),
    "all_to_all": lambda ranks: 2 * ranks * (ranks - 1),
    "halving": lambda ranks: 2 * ranks * (ranks.bit_length() - 1),
})  # fmt: skip
"""How many transfers each has among so many ranks; each half has half of them."""


def scattered(ranks: int) -> Iterator[Rows]:
    """Everybody sends the i-th of its segments to rank i, to the next rank first; nothing is added up."""
    rank = np.arange(ranks)
    for distance in range(1, ranks):
        other = (rank + distance) % ranks
        yield Rows(0, rank, other, other, 1, False)


def half(walk: str, ranks: int, adds: bool) -> list[Rows]:
    """The reduce-scatter or the all-gather of one."""
    return [row for row in WALKS[walk](ranks) if row.adds == adds]
