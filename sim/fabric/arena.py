"""An arena: stretches of the state that come and go with messages, such as bitmaps, lists of followers and counts.

Freed stretches are kept by length and handed out again; a run's messages have few different lengths.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from gradwire.scenarios.arrays import Ints
from gradwire.scenarios.errors import GradwireError
from gradwire.sim.fabric.memory import Memory


class Arena:
    """The allocator of the last region of the state. Stretches are handed out filled with zeros."""

    def __init__(self, memory: Memory) -> None:
        self.M = memory.M
        self._next = memory.bits
        self._end = memory.bits_end
        self._free: dict[int, list[int]] = defaultdict(list)

    def allocate(self, words: int) -> int:
        """The base of a stretch.

        Raises
        ------
        GradwireError
            There is no room left.
        """
        free = self._free[words]
        if free:
            base = free.pop()
            self.M[base : base + words] = 0
            return base
        return self._bump(words)

    def allocate_many(self, words: Ints) -> Ints:
        """The bases of many stretches; 0 where a length is 0."""
        bases = np.zeros(len(words), dtype=np.int64)
        for size in np.unique(words).tolist():
            if not size:
                continue
            where = np.flatnonzero(words == size)
            free = self._free[size]
            again = min(len(free), len(where))
            if again:
                old = np.array(free[len(free) - again :], dtype=np.int64)
                del free[len(free) - again :]
                self.M[old[:, None] + np.arange(size)] = 0
                bases[where[:again]] = old
            fresh = len(where) - again
            if fresh:
                bases[where[again:]] = self._bump(fresh * size) + size * np.arange(fresh)
        return bases

    def free(self, words: int, base: int) -> None:
        """Take one stretch back."""
        self._free[words].append(base)

    def free_many(self, words: Ints, bases: Ints) -> None:
        """Take many stretches back; those of length 0 are none."""
        for size in np.unique(words).tolist():
            if size:
                self._free[size].extend(bases[words == size].tolist())

    def _bump(self, words: int) -> int:
        base = self._next
        if base + words > self._end:
            raise GradwireError("the messages under way have too many packets together", "fabric", "fewer")
        self._next += words
        return base
