"""Words of memory that compiled code works on, and tables of messages in them (`gradwire.emu.agent.core.layout`)."""

from __future__ import annotations

import numpy as np

from gradwire.scenarios.arrays import Ints

SPREAD = 0x9E3779B1
"""Spreads numbers of messages over a table: 2**32 by the golden ratio, odd (Knuth, TAOCP 3, 6.4)."""


class Block:
    """`size` words at a fixed place, zero at first; they go with this object. `words` : they themselves. `index` :
    where they are in the memory of all records; `address` in bytes."""

    __slots__ = ("_array", "address", "index", "words")

    def __init__(self, size: int) -> None:
        self._array: Ints = np.zeros(size, dtype=np.int64)
        self.words = self._array.data
        self.address = int(self._array.ctypes.data)
        self.index = self.address >> 3

    def longer(self, size: int) -> Block:
        """Another one of that size that begins with the same words."""
        made = Block(size)
        made._array[: len(self._array)] = self._array
        return made


class Table:
    """Where the records of messages are, by number: an open-addressed table of (number + 1, index), 0 where nothing has
    ever been; of a message that is under way no more the index is 0."""

    def __init__(self, room: int = 64) -> None:
        self._block, self._count = Block(2 * room), 0
        self.mask = room - 1

    @property
    def address(self) -> int:
        """Where it is now."""
        return self._block.address

    def put(self, number: int, index: int) -> bool:
        """Enter a message, or say that it is under way no more (0). Whether the table has moved, as it may where the
        message is new."""
        place = self._place(number)
        fresh = self._block.words[place] == 0
        moved = fresh and 2 * self._count > self.mask
        if moved:
            self._grow()
            place = self._place(number)
        words = self._block.words
        self._count += fresh
        words[place], words[place + 1] = number + 1, index
        return moved

    def get(self, number: int) -> int:
        """The index of a message, 0: it is not there."""
        return self._block.words[self._place(number) + 1]

    def _place(self, number: int) -> int:
        words, place = self._block.words, number * SPREAD >> 7 & self.mask
        while words[2 * place] and words[2 * place] != number + 1:
            place = place + 1 & self.mask
        return 2 * place

    def _grow(self) -> None:
        before = self._block.words
        self._block = Block(2 * len(before))
        self.mask = 2 * self.mask + 1
        words = self._block.words
        for i in range(0, len(before), 2):
            if before[i]:
                place = self._place(before[i] - 1)
                words[place], words[place + 1] = before[i], before[i + 1]
