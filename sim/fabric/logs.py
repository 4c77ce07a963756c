"""What the threads of the engine write down as they go: deliveries, drops, transmissions.

Each thread has logs of its own. They are emptied after every call of the engine, into an order that does not depend on
the threads, and the numbers of flow records, which say nothing, are replaced by those of messages.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gradwire.components import layout as at
from gradwire.scenarios.arrays import Ints
from gradwire.sim.fabric.flows import Flows
from gradwire.sim.fabric.memory import Memory

MOST_DROPS = 1 << 15
"""Rows that wait to be handed over."""


class Logs:
    """The drops and transmissions of a run so far, as lists of arrays of rows.

    Attributes
    ----------
    taker : who takes drops, if anybody does; those that he has are gone here.
    drops : rows of time (ps), directed link | cause << 32, A, B, message.
    packets : rows of start (ps), directed link, A, B, lost, message.
    """

    def __init__(self, memory: Memory, flows: Flows) -> None:
        self.drops: list[Ints] = []
        self.packets: list[Ints] = []
        self.taker: Callable[[Ints], None] | None = None
        self._waiting = 0
        self._memory, self._flows = memory, flows

    def drain(self) -> Ints:
        """Empty the logs of all threads. Returns the rows about messages delivered or whose sender is done."""
        flows = self._flows
        done = self._take(at.T_DONE, at.T_DONE_BASE, at.DONE_WORDS)
        drops = self._take(at.T_DROPS, at.T_DROPS_BASE, at.DROP_WORDS)
        traced = self._take(at.T_TRACE, at.T_TRACE_BASE, at.TRACE_WORDS)
        if len(traced):
            traced = traced[np.lexsort((traced[:, 1], traced[:, 0]))]
            self.packets.append(np.column_stack((traced, self._messages_of(traced[:, 3]))))
        drops = drops[(drops[:, 2] >> at.A_KIND) & 7 != at.PAUSE]  # ports count those
        if len(drops):
            drops = drops[np.lexsort((drops[:, 3], drops[:, 1], drops[:, 0]))]
            lost = drops[:, 3] & at.MASK_FLOW
            np.add.at(flows.records.dropped, lost, 1)
            self.drops.append(np.column_stack((drops, flows.records.message_of(lost))))
            self._waiting += len(drops)
            if self._waiting >= MOST_DROPS:
                self.hand_over()
        return done

    def hand_over(self) -> None:
        """Give the drops so far to whoever takes them."""
        if self.taker is not None and self.drops:
            self.taker(np.concatenate(self.drops))
            self.drops, self._waiting = [], 0

    def _messages_of(self, second_words: Ints) -> Ints:
        """The messages of packets, by their words B; -1 for frames that belong to a link."""
        flow = second_words & at.MASK_FLOW
        known = flow < at.MASK_FLOW
        return np.where(known, self._flows.records.message_of(np.where(known, flow, 0)), -1)

    def _take(self, count: int, base: int, words: int) -> Ints:
        M = self._memory.M
        parts = []
        for thread in self._memory.thread_base:
            n = int(M[thread + count])
            if n:
                start = int(M[thread + base])
                parts.append(M[start : start + n * words].reshape(n, words).copy())
                M[thread + count] = 0
                if count == at.T_DONE:
                    M[thread + at.T_PLAYED] = 0
        return joined(parts, words)


def joined(parts: list[Ints], words: int) -> Ints:
    """The rows of several arrays as one array, of so many words a row if there is none."""
    return np.concatenate(parts) if parts else np.zeros((0, words), dtype=np.int64)
