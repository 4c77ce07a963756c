"""Memory words shared with compiled code, and tables of messages in them (`gradwire.emu.agent.core.layout`)."""

from __future__ import annotations

import numpy as np

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
        """Return a block of that size that begins with the same words."""
        block = WordBlock(size)
        block._array[: len(self._array)] = self._array
        return block


class WordTable:
    """Open-addressed hash table of message records by number: entries (number + 1, index), or 0 if never used. The
    index of a finished message is 0."""

    def __init__(self, room: int = 64) -> None:
        self._block, self._count = WordBlock(2 * room), 0
        self.mask = room - 1

    @property
    def address(self) -> int:
        """Return its current address."""
        return self._block.address

    def put(self, number: int, index: int) -> bool:
        """Enter a message, or finish it (index 0); return True if the table has moved, as new messages may cause."""
        position = self._slot_of(number)
        fresh = self._block.words[position] == 0
        moved = fresh and 2 * self._count > self.mask
        if moved:
            self._grow()
            position = self._slot_of(number)
        words = self._block.words
        self._count += fresh
        words[position], words[position + 1] = number + 1, index
        return moved

    def get(self, number: int) -> int:
        """Return the index of a message; 0 if missing."""
        return self._block.words[self._slot_of(number) + 1]

    def _slot_of(self, number: int) -> int:
        words, position = self._block.words, number * HASH_MULTIPLIER >> 7 & self.mask
        while words[2 * position] and words[2 * position] != number + 1:
            position = position + 1 & self.mask
        return 2 * position

    def _grow(self) -> None:
        old_words = self._block.words
        self._block = WordBlock(2 * len(old_words))
        self.mask = 2 * self.mask + 1
        words = self._block.words
        for i in range(0, len(old_words), 2):
            if old_words[i]:
                position = self._slot_of(old_words[i] - 1)
                words[position], words[position + 1] = old_words[i], old_words[i + 1]
