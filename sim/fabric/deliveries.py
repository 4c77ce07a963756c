"""What a network tells of messages: their deliveries and the ends of their senders, as events in an order that does not
depend on the threads.
"""

from __future__ import annotations

import numpy as np

from gradwire.components import layout as at
from gradwire.scenarios.arrays import Columns, Flags, Ints
from gradwire.scenarios.inner_units import Bytes, Ps
from gradwire.scenarios.missing import COLUMNS, by_message, missing_columns
from gradwire.sim.fabric.events import Delivery, Event, Settled
from gradwire.sim.fabric.flows import Flows
from gradwire.sim.fabric.logs import Logs, joined
from gradwire.sim.fabric.memory import Memory


class Deliveries:
    """The deliveries of one run, out of the logs of all threads.

    Attributes
    ----------
    expected : messages whose delivery Python has to hear of, and has not yet.
    """

    def __init__(self, memory: Memory, flows: Flows, logs: Logs, missing: bool) -> None:
        """`missing`: note which packets messages are delivered without."""
        self._memory, self._flows, self._logs = memory, flows, logs
        self._missing: list[Ints] | None = [] if missing else None
        self.expected = 0

    def harvest(self, events: list[Event]) -> None:
        """Empty the logs of all threads. The engine has entered all of it into the book itself; this is about what
        somebody has to hear of, and what is missing."""
        done = self._logs.drain()
        if not len(done):
            return
        arrived, finished = (done[done[:, 2] == what] for what in (at.DELIVERED, at.FINISHED))
        receivers = self._flows.records.receiver(arrived[:, 1])
        nbytes = self._memory.M[receivers + at.R_BYTES]
        self._flows.delivered_bytes += int(nbytes.sum())
        wanted = self._memory.M[receivers + at.R_TELL] & at.TELL_DELIVERED > 0
        if self._missing is not None:
            wanted |= arrived[:, 3] < nbytes
        if wanted.any():
            arrived = arrived[wanted]
            numbers = self._flows.records.message_of(arrived[:, 1])
            order = np.lexsort((numbers, arrived[:, 0]))
            self._delivered(arrived[order], numbers[order], events)
        finished = finished[self._tells(finished[:, 1], at.TELL_FINISHED)]
        numbers = self._flows.records.message_of(finished[:, 1])
        for number, time in zip(numbers.tolist(), finished[:, 0].tolist(), strict=True):
            events.append(Settled(number, Ps(time)))

    def missing(self) -> Columns:
        """The columns of the Result's table `missing`."""
        return missing_columns(self._missing or [])

    def take_missing(self) -> Ints:
        """What `missing` has been told since the last time, int64[runs, COLUMNS] by message; it is told no more
        then."""
        found, self._missing = self._missing or [], []
        return by_message(found)

    def missing_of(self, first: int, many: int) -> Ints:
        """The same rows of so many messages from one on; of those it is told no more."""
        rows = joined(self._missing or [], len(COLUMNS))
        mine = (rows[:, 0] >= first) & (rows[:, 0] < first + many)
        if self._missing:
            self._missing = [rows[~mine]]
        return rows[mine]

    def jump(self, messages: int) -> None:
        """Messages of which something is known have numbers so much higher."""
        for rows in self._missing or []:
            rows[:, 0] += messages

    def _delivered(self, rows: Ints, numbers: Ints, events: list[Event]) -> None:
        """Deliveries by time and message, as rows of the log, and their messages."""
        nbytes = self._memory.M[self._flows.records.receiver(rows[:, 1]) + at.R_BYTES]
        if self._missing is not None:
            self._missing += [self._flows.missing(number) for number in numbers[rows[:, 3] < nbytes].tolist()]
        tell = self._tells(rows[:, 1], at.TELL_DELIVERED)
        self.expected -= int(tell.sum())
        for i in np.flatnonzero(tell).tolist():
            number, got = int(numbers[i]), int(rows[i, 3])
            lost = int(nbytes[i]) - got
            events.append(Delivery(number, Ps(int(rows[i, 0])), Bytes(got), Bytes(lost)))

    def _tells(self, records: Ints, what: int) -> Flags:
        """Whether Python has to hear of it."""
        told: Flags = self._memory.M[self._flows.records.receiver(records) + at.R_TELL] & what > 0
        return told
