"""`Logs` drains the engine threads' logs of deliveries, drops and transmissions into an order independent of the
threads.

Each thread has its own logs. After every call of the engine they are emptied into an order that does not depend on the
threads, and the numbers of flow records, which are arbitrary, are replaced by those of messages.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gradwire.jit.records import constants as at
from gradwire.jit.records import view
from gradwire.jit.records.header import DeliveryEntry, Thread
from gradwire.jit.records.network import DropEntry, TraceEntry
from gradwire.jit.records.packets import kind_of
from gradwire.scenarios.arrays import Ints
from gradwire.sim.engine.memory.engine_memory import EngineMemory
from gradwire.sim.engine.memory.flows import Flows

MAX_PENDING_DROPS = 1 << 15
"""Rows of drops that are collected before they are handed over."""


class Logs:
    """The drops and transmissions of a run so far, as lists of arrays of rows.

    Attributes
    ----------
    taker : function that takes drops, if any; they are then removed here.
    drops : rows of time (ps), directed link | cause << 32, A, B, message.
    packets : rows of start (ps), directed link, A, B, lost, message.
    """

    def __init__(self, memory: EngineMemory, flows: Flows) -> None:
        self.drops: list[Ints] = []
        self.packets: list[Ints] = []
        self.taker: Callable[[Ints], None] | None = None
        self._waiting = 0
        self._memory, self._flows = memory, flows

    def drain(self) -> Ints:
        """Empty the logs of all threads, and return the rows of deliveries and ends of senders."""
        flows = self._flows
        done = self._take(Thread.delivery_count.offset, Thread.deliveries.offset, DeliveryEntry.WORDS)
        drops = self._take(Thread.drop_count.offset, Thread.drops.offset, DropEntry.WORDS)
        traced = self._take(Thread.trace_count.offset, Thread.trace.offset, TraceEntry.WORDS)
        if len(traced):
            traced = traced[np.lexsort((traced[:, 1], traced[:, 0]))]
            self.packets.append(np.column_stack((traced, self._messages_of(traced[:, 3]))))
        drops = drops[kind_of(drops[:, 2]) != at.PAUSE]  # counted by ports only
        if len(drops):
            drops = drops[np.lexsort((drops[:, 3], drops[:, 1], drops[:, 0]))]
            lost = drops[:, 3] & at.MASK_FLOW
            np.add.at(flows.records.dropped, lost, 1)
            self.drops.append(np.column_stack((drops, flows.records.message_of(lost))))
            self._waiting += len(drops)
            if self._waiting >= MAX_PENDING_DROPS:
                self.hand_over()
        return done

    def hand_over(self) -> None:
        """Pass the drops so far to the taker."""
        if self.taker is not None and self.drops:
            self.taker(np.concatenate(self.drops))
            self.drops, self._waiting = [], 0

    def _messages_of(self, second_words: Ints) -> Ints:
        """Return the messages of packets, by their words B; -1 for frames that belong to a link."""
        flow = second_words & at.MASK_FLOW
        known = flow < at.MASK_FLOW
        return np.where(known, self._flows.records.message_of(np.where(known, flow, 0)), -1)

    def _take(self, count: int, base: int, words: int) -> Ints:
        state = self._memory.state
        parts = []
        for thread in self._memory.thread_base:
            n = int(state[thread + count])
            if n:
                start = int(state[thread + base])
                parts.append(state[start : start + n * words].reshape(n, words).copy())
                state[thread + count] = 0
                if count == Thread.delivery_count.offset:
                    view(Thread, state, thread).played = 0
        return concatenate_rows(parts, words)


def concatenate_rows(parts: list[Ints], words: int) -> Ints:
    """Concatenate arrays of rows; an empty list gives no rows of `words` words."""
    return np.concatenate(parts) if parts else np.zeros((0, words), dtype=np.int64)
