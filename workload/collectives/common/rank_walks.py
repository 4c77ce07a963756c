"""Walks of collectives: all-reduces whose first half is a reduce-scatter (or reduction), and all-gathers (or
broadcasts)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

import numpy as np

from gradwire.scenarios.arrays import Ints
from gradwire.workload.collectives.common.transfer_schedule import TransferRows


def ring(ranks: int) -> Iterator[TransferRows]:
    """Ring: 2(N - 1) steps. In step s, rank w sends segment (w - s) mod N to rank w + 1; the first N - 1 steps add."""
    w = np.arange(ranks)
    for s in range(2 * (ranks - 1)):
        yield TransferRows(s, w, (w + 1) % ranks, (w - s) % ranks, 1, s < ranks - 1)


def all_to_all(ranks: int) -> Iterator[TransferRows]:
    """Each rank sends segment v to rank v, which sums and sends the sum to all; every rank begins with its
    successor."""
    rank = np.arange(ranks)
    for distance in range(1, ranks):
        other = (rank + distance) % ranks
        yield TransferRows(0, rank, other, other, 1, True)
        yield TransferRows(1, rank, other, rank, 1, False)


def halving(member: Ints, stage: int = 0) -> Iterator[TransferRows]:
    """Recursive halving and doubling among the ranks `member`, a power of two; stages are counted from `stage`.

    After the first half of the steps the i-th rank has segment i. In every step of it, two ranks, at half the previous
    distance, exchange the half of their remaining segments that contains the other's; the second half is the reverse.
    """
    power = len(member)
    steps = power.bit_length() - 1
    position = np.arange(power)
    for step in range(steps):
        half = power >> (step + 1)
        other = position ^ half
        yield TransferRows(stage + step, member, member[other], other // half * half, half, True)
        yield TransferRows(stage + 2 * steps - 1 - step, member, member[other], position // half * half, half, False)


def binomial(ranks: int) -> Iterator[TransferRows]:
    """Up a binomial tree to rank 0 and down again, with one segment.

    Rank r, whose lowest set bit is 2^k, sends to rank r - 2^k in step k, and receives it in the k-th step from the end.
    """
    depth = (ranks - 1).bit_length()
    for k in range(depth):
        child = np.arange(1 << k, ranks, 2 << k)
        yield TransferRows(k, child, child - (1 << k), 0, 1, True)
        yield TransferRows(2 * depth - 1 - k, child - (1 << k), child, 0, 1, False)


WALKS: Mapping[str, Callable[[int], Iterator[TransferRows]]] = MappingProxyType(
    {"ring": ring, "all_to_all": all_to_all, "halving": lambda ranks: halving(np.arange(ranks))}
)
"""Walks of all-reduces by name."""

TRANSFER_COUNTS: Mapping[str, Callable[[int], int]] = MappingProxyType(
    {
        "ring": lambda ranks: 2 * ranks * (ranks - 1),
        "all_to_all": lambda ranks: 2 * ranks * (ranks - 1),
        "halving": lambda ranks: 2 * ranks * (ranks.bit_length() - 1),
    }
)
"""Transfers of each walk by number of ranks; each half has half of them."""


def scatter(ranks: int) -> Iterator[TransferRows]:
    """Each rank sends its i-th segment to rank i, beginning with its successor; nothing is summed."""
    rank = np.arange(ranks)
    for distance in range(1, ranks):
        other = (rank + distance) % ranks
        yield TransferRows(0, rank, other, other, 1, False)
