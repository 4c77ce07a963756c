"""Flows between hosts that the algorithms of a collective cause, without their steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType

import numpy as np

from gradwire.scenarios.arrays import Ints
from gradwire.workload.collectives.allreduce.double_tree import parents_of_workers, second_parents


@dataclass(frozen=True, eq=False)
class Pattern:
    """Flows of one rail between hosts that carry the same number of bytes each.

    name : its name. src, dst : int64[flows], hosts. hosts : their number.
    """

    name: str
    hosts: int
    src: Ints
    dst: Ints

    @property
    def load(self) -> int:
        """The most flows that leave or enter one host."""
        counts = [np.bincount(ends, minlength=self.hosts).max(initial=0) for ends in (self.src, self.dst)]
        return int(max(counts))


def _ring(hosts: int) -> tuple[Ints, Ints]:
    """Every host sends to the next."""
    host = np.arange(hosts)
    return host, (host + 1) % hosts


def _chain(hosts: int) -> tuple[Ints, Ints]:
    """Every host but the last sends to the next."""
    host = np.arange(hosts - 1)
    return host, host + 1


def _double_tree(hosts: int) -> tuple[Ints, Ints]:
    """Along both trees of NCCL, up and down; each tree has half of the data, so a flow is a half."""
    up = parents_of_workers(hosts)
    edges = [(child, parent) for tree in (up, second_parents(up)) for child, parent in enumerate(tree) if parent >= 0]
    child, parent = np.array(edges, dtype=np.int64).T
    return np.concatenate((child, parent)), np.concatenate((parent, child))


def _all_pairs(hosts: int) -> tuple[Ints, Ints]:
    """Every host sends to all others, the next one first."""
    host, distance = (grid.ravel() for grid in np.meshgrid(np.arange(hosts), np.arange(1, hosts), indexing="ij"))
    return host, (host + distance) % hosts


PATTERNS: Mapping[str, Callable[[int], tuple[Ints, Ints]]] = MappingProxyType(
    {"ring": _ring, "chain": _chain, "double_tree": _double_tree, "all_pairs": _all_pairs}
)
"""Patterns by name: the flows among a number of hosts."""


@cache
def pattern_of(name: str, hosts: int) -> Pattern:
    """Return a pattern among hosts."""
    src, dst = PATTERNS[name](hosts)
    return Pattern(name, hosts, src, dst)
