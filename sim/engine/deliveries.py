"""`Deliveries` empties the threads' delivery logs into events for Python, and collects the packets missing from
delivered messages."""

from __future__ import annotations

import numpy as np

from gradwire.jit.records import constants as at
from gradwire.jit.records import view
from gradwire.jit.records.flows import Receiver
from gradwire.result_store.missing_packets import COLUMNS, by_message, missing_columns
from gradwire.scenarios.arrays import Columns, Flags, Ints
from gradwire.scenarios.inner_units import Bytes, Ps
from gradwire.sim.engine.events import Delivery, Event, Settled
from gradwire.sim.engine.logs import Logs, concatenate_rows
from gradwire.sim.engine.memory.engine_memory import EngineMemory
from gradwire.sim.engine.memory.flows import Flows


class Deliveries:
    """The deliveries of one run, from the logs of all threads.

    Attributes
    ----------
    expected : undelivered messages whose delivery Python needs to know of.
    """

    def __init__(self, memory: EngineMemory, flows: Flows, logs: Logs, missing: bool) -> None:
        """`missing`: record the packets that messages are delivered without."""
        self._memory, self._flows, self._logs = memory, flows, logs
        self._missing: list[Ints] | None = [] if missing else None
        self.expected = 0

    def harvest(self, events: list[Event]) -> None:
        """Empty the logs of all threads, and append the events that Python needs to know of. The engine itself has
        already entered everything into the message log."""
        done = self._logs.drain()
        if not len(done):
            return
        arrived, finished = (done[done[:, 2] == kind] for kind in (at.DELIVERED, at.FINISHED))
        receivers = self._flows.records.receiver(arrived[:, 1])
        receiver_records = view(Receiver, self._memory.state, receivers)
        nbytes = receiver_records.nbytes
        self._flows.delivered_bytes += int(nbytes.sum())
        relevant = receiver_records.notify & at.TELL_DELIVERED > 0
        if self._missing is not None:
            relevant |= arrived[:, 3] < nbytes
        if relevant.any():
            arrived = arrived[relevant]
            numbers = self._flows.records.message_of(arrived[:, 1])
            order = np.lexsort((numbers, arrived[:, 0]))
            self._delivered(arrived[order], numbers[order], events)
        finished = finished[self._is_reported(finished[:, 1], at.TELL_FINISHED)]
        numbers = self._flows.records.message_of(finished[:, 1])
        for number, time in zip(numbers.tolist(), finished[:, 0].tolist(), strict=True):
            events.append(Settled(number, Ps(time)))

    def missing(self) -> Columns:
        """Return the columns of the Result's table `missing`."""
        return missing_columns(self._missing or [])

    def take_missing(self) -> Ints:
        """Return and forget the missing packets since the last call, int64[runs, COLUMNS] by message."""
        runs, self._missing = self._missing or [], []
        return by_message(runs)

    def missing_of(self, first: int, many: int) -> Ints:
        """Return and forget the missing packets of `many` messages from `first` on."""
        rows = concatenate_rows(self._missing or [], len(COLUMNS))
        selected = (rows[:, 0] >= first) & (rows[:, 0] < first + many)
        if self._missing:
            self._missing = [rows[~selected]]
        return rows[selected]

    def jump(self, messages: int) -> None:
        """Raise the numbers of messages with known missing packets."""
        for rows in self._missing or []:
            rows[:, 0] += messages

    def _delivered(self, rows: Ints, numbers: Ints, events: list[Event]) -> None:
        """Append the events of deliveries: rows of the log by time and message, and their messages."""
        nbytes = view(Receiver, self._memory.state, self._flows.records.receiver(rows[:, 1])).nbytes
        if self._missing is not None:
            self._missing += [self._flows.missing(number) for number in numbers[rows[:, 3] < nbytes].tolist()]
        tell = self._is_reported(rows[:, 1], at.TELL_DELIVERED)
        self.expected -= int(tell.sum())
        for i in np.flatnonzero(tell).tolist():
            number, received = int(numbers[i]), int(rows[i, 3])
            lost = int(nbytes[i]) - received
            events.append(Delivery(number, Ps(int(rows[i, 0])), Bytes(received), Bytes(lost)))

    def _is_reported(self, records: Ints, flag: int) -> Flags:
        """Return True for records of which Python needs to know."""
        is_relevant: Flags = view(Receiver, self._memory.state, self._flows.records.receiver(records)).notify & flag > 0
        return is_relevant
