"""Allocates memory words shared by Python and compiled code, and a hash table of message records in them."""

from __future__ import annotations

import numpy as np

from gradwire.emu.agent.core.layout import TableEntry
from gradwire.scenarios.arrays import Ints

HASH_MULTIPLIER = 0x9E3779B1
"""Hash multiplier of message numbers: 2**32 by the golden ratio, odd (Knuth, TAOCP 3, 6.4)."""


class WordBlock:
    """`size` words at a fixed address, initially zero, freed with this object.

    words : the words. index : position in the memory of all records; `address` in bytes.
    """

    __slots__ = ("_array", "address", "index", "words")

    def __init__(self, size: int) -> None:
        self._array: Ints = np.zeros(size, dtype=np.int64)
        self.words = self._array.data
        self.address = int(self._array.ctypes.data)
        self.index = self.address >> 3

    def resized(self, size: int) -> WordBlock:
        block = WordBlock(size)
        block._array[: len(self._array)] = self._array
        return block


class WordTable:
    """Open-addressed hash table of message records by number."""

    def __init__(self, length: int = 64) -> None:
        """`length`: number of entries, a power of two."""
        self._block, self._count = WordBlock(length * TableEntry.WORDS), 0
        self.mask = length - 1

    @property
    def index(self) -> int:
        return self._block.index

    def put(self, number: int, index: int) -> bool:
        """Enter a message, or finish it (index 0); return True if the table has moved, as new messages may cause."""
        entry = self._entry_of(number)
        is_new = entry.key == 0
        moved = is_new and 2 * self._count > self.mask
        if moved:
            self._grow()
            entry = self._entry_of(number)
        self._count += is_new
        entry.key, entry.index = number + 1, index
        return moved

    def get(self, number: int) -> int:
        """Return the index of a message; 0 if missing."""
        return self._entry_of(number).index

    def _entry(self, slot: int) -> TableEntry:
        return TableEntry(self._block.words, slot * TableEntry.WORDS)

    def _entry_of(self, number: int) -> TableEntry:
        """Return the entry of a message, or the unused one in its place."""
        slot = number * HASH_MULTIPLIER >> 7 & self.mask
        entry = self._entry(slot)
        while entry.key and entry.key != number + 1:
            slot = slot + 1 & self.mask
            entry = self._entry(slot)
        return entry

    def _grow(self) -> None:
        entries = [self._entry(slot) for slot in range(self.mask + 1)]
        self._block = WordBlock(2 * len(self._block.words))
        self.mask = 2 * self.mask + 1
        for entry in entries:
            if entry.key:
                new_entry = self._entry_of(entry.key - 1)
                new_entry.key, new_entry.index = entry.key, entry.index
