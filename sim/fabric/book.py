"""The book of messages: a row of words for every message of which anything is kept, found by its number.

It is reserved for as many messages as there can be, like the engine's array (`gradwire.sim.fabric.regions`): rows never
move, those that are entered take memory, and those that are forgotten give it back.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from typing import Any

import numpy as np

from gradwire.components import layout as at
from gradwire.scenarios.arrays import Ints
from gradwire.scenarios.errors import GradwireError
from gradwire.sim.fabric.memory import Memory
from gradwire.sim.fabric.regions import reserve_block

GIVEN_BACK = 1 << 21
"""Bytes that are given back at a time: a huge page."""


class Book:
    """The book of one fabric.

    Attributes
    ----------
    first : the first message of which anything is kept: all before it have been forgotten.
    count : how many messages there are and were.
    """

    def __init__(self, memory: Memory) -> None:
        """`memory` is told where it lies."""
        self._block = reserve_block(at.BOOK_WORDS * (at.MASK_KEY_NUMBER + 1))
        if hasattr(mmap, "MADV_HUGEPAGE"):
            self._block.madvise(mmap.MADV_HUGEPAGE)
        self._rows = np.frombuffer(self._block, dtype=np.int64).reshape(-1, at.BOOK_WORDS)
        self._memory = memory
        self._gone: dict[int, int] = {}  # stretches of messages that are forgotten behind `first`: first, beyond
        self._given_back = 0  # bytes
        self._number = 0  # of the message of the first row
        self.first = self.count = 0
        memory.M[at.H_BOOK] = self._rows.ctypes.data
        memory.M[at.H_BOOK_FIRST] = 0

    def rows(self, first: int, many: int) -> Ints:
        """What is kept of so many messages from one on, to be read and written: int64[many, BOOK_WORDS]."""
        begin = first - self._number
        return self._rows[begin : begin + many]

    def row(self, number: int, words: Sequence[int]) -> list[Any]:
        """Some words of a message."""
        found: list[Any] = self._rows[number - self._number, words].tolist()
        return found

    def enter(self, many: int) -> int:
        """Enter more messages. Returns the number of the first.

        Raises
        ------
        GradwireError
            There have been more than can be told apart.
        """
        first = self.count
        if first + many > at.MASK_KEY_NUMBER:
            raise GradwireError(f"more than {at.MASK_KEY_NUMBER} messages", "fabric", "fewer or larger messages")
        self.count += many
        self.rows(first, many)[:, [at.B_FLOW, at.B_END]] = -1
        return first

    def forget(self, first: int, many: int) -> None:
        """Keep no more of so many messages from one on, which are delivered and whose records are free."""
        if not many:
            return
        self._gone[first] = first + many
        while self.first in self._gone:
            self.first = self._gone.pop(self.first)
        over = (self.first - self._number) * self._rows.strides[0] // GIVEN_BACK * GIVEN_BACK
        if over > self._given_back:
            self._block.madvise(mmap.MADV_DONTNEED, self._given_back, over - self._given_back)
            self._given_back = over

    def jump(self, messages: int, by: int) -> None:
        """So many messages are over that nothing was entered of: those of which something is kept come behind them, and
        so much later."""
        self._number += messages
        self._memory.M[at.H_BOOK_FIRST] = self._number
        self.first += messages
        self.count += messages
        self._gone = {first + messages: beyond + messages for first, beyond in self._gone.items()}
        ends = self.rows(self.first, self.count - self.first)[:, at.B_END]
        ends[ends >= 0] += by
