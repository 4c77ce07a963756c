"""`MessageLog` reserves, reads and forgets the rows of the message log, one per message, indexed by its number.

Memory is reserved for as many messages as there can be, like the engine's array (`gradwire.sim.engine.memory.regions`):
rows never move, new ones take memory, and forgotten ones release it.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from typing import Any

import numpy as np

from gradwire.jit.records import constants as at
from gradwire.jit.records.header import State
from gradwire.jit.records.programs import LogRow
from gradwire.scenarios.arrays import Ints
from gradwire.scenarios.errors import GradwireError
from gradwire.sim.engine.memory.engine_memory import EngineMemory
from gradwire.sim.engine.memory.regions import reserve_block

RELEASE_BYTES = 1 << 21
"""Unit of releasing memory in bytes: a huge page."""


class MessageLog:
    """The message log of one fabric.

    Attributes
    ----------
    first : the first message that is not forgotten, after all contiguously forgotten ones.
    count : number of messages so far.
    """

    def __init__(self, memory: EngineMemory) -> None:
        """Reserve the log, and write its address into the header of `memory`."""
        self._block = reserve_block(LogRow.WORDS * (at.MASK_KEY_NUMBER + 1))
        if hasattr(mmap, "MADV_HUGEPAGE"):
            self._block.madvise(mmap.MADV_HUGEPAGE)
        self._rows = np.frombuffer(self._block, dtype=np.int64).reshape(-1, LogRow.WORDS)
        self._memory = memory
        self._forgotten: dict[int, int] = {}  # ranges of forgotten messages after `first`: first, beyond
        self._released_bytes = 0
        self._number = 0  # message number of the first row
        self.first = self.count = 0
        memory.state[State.message_log.offset] = self._rows.ctypes.data
        memory.state[State.log_first.offset] = 0

    def rows(self, first: int, many: int) -> Ints:
        """Return the rows of `many` messages from `first` on, to be read and written: int64[many, BOOK_WORDS]."""
        begin = first - self._number
        return self._rows[begin : begin + many]

    def row(self, number: int, words: Sequence[int]) -> list[Any]:
        """Return some words of a message."""
        values: list[Any] = self._rows[number - self._number, words].tolist()
        return values

    def enter(self, many: int) -> int:
        """Enter more messages, and return the number of the first. Raises GradwireError if there have been more
        messages than numbers."""
        first = self.count
        if first + many > at.MASK_KEY_NUMBER:
            raise GradwireError(f"more than {at.MASK_KEY_NUMBER} messages", "fabric", "fewer or larger messages")
        self.count += many
        self.rows(first, many)[:, [LogRow.flow.offset, LogRow.end.offset]] = -1
        return first

    def forget(self, first: int, many: int) -> None:
        """Forget `many` messages from `first` on, which are delivered and have no records."""
        if not many:
            return
        self._forgotten[first] = first + many
        while self.first in self._forgotten:
            self.first = self._forgotten.pop(self.first)
        released = (self.first - self._number) * self._rows.strides[0] // RELEASE_BYTES * RELEASE_BYTES
        if released > self._released_bytes:
            self._block.madvise(mmap.MADV_DONTNEED, self._released_bytes, released - self._released_bytes)
            self._released_bytes = released

    def jump(self, messages: int, by: int) -> None:
        """Account for skipped messages that were not entered: later ones get higher numbers and times."""
        self._number += messages
        self._memory.state[State.log_first.offset] = self._number
        self.first += messages
        self.count += messages
        self._forgotten = {first + messages: beyond + messages for first, beyond in self._forgotten.items()}
        ends = self.rows(self.first, self.count - self.first)[:, LogRow.end.offset]
        ends[ends >= 0] += by
