"""Messages that were submitted and have no flow record yet, and what they wait for.

Records are taken in the order of the program, as far as there is room, long before a message starts; the engine then
starts it by itself (`_follow` in `core.host`). Where a delivery concerns a message that has no record yet, the engine
stops in time, and the record is made here: late opening costs speed, never exactness.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from gradwire.scenarios.loss import allowed_losses
from gradwire.sim.fabric import layout as at
from gradwire.sim.fabric.flows import BYTES, DST, END, FLOW, PACKETS, SRC, STATE, TRANSPORT, Flows, Records
from gradwire.sim.fabric.sends import Joined, Sends

MOST_OPEN = 1 << 16  # messages of programs that may have records at once
BATCH = 1 << 12  # they are opened when there is room for so many, or for all that are left

Post = Callable[[int, int, int], None]
"""(host, time, sender's record): put its start on the host's heap"""


class Program:
    """One submitted `Sends`, and how far it has come."""

    def __init__(self, sends: Sends, first: int, flows: Flows, now: int) -> None:
        n = len(sends)
        self.sends, self.first, self.flows = sends, first, flows
        self.opened = np.zeros(n, dtype=np.bool_)
        self.position = 0  # no message before it is unopened
        self.closed = 0
        self.waiting = np.array(np.broadcast_to(sends.gates, n), dtype=np.int64)  # of the unopened only
        self.earliest = np.maximum(np.broadcast_to(sends.start_ps, n), now)  # of the unopened only
        before, after = sends.edges.T
        np.add.at(self.waiting, after, 1)
        self.order = np.argsort(before, kind="stable")
        self.after = after[self.order]  # edges by their first message ...
        self.place = np.concatenate(([0], np.cumsum(np.bincount(before, minlength=n))))  # ... begin here
        self.back = np.argsort(self.after, kind="stable")  # the same edges by their second message ...
        self.back_place = np.concatenate(([0], np.cumsum(np.bincount(after, minlength=n))))  # ... begin here
        self.before = before[self.order]
        roots = np.where(self.waiting == 0, self.earliest, at.FOREVER)
        self.soonest = np.minimum.accumulate(roots[::-1])[::-1]  # first start of any root from a message on
        packets = np.maximum(1, -(-sends.nbytes // self._payload()))
        if packets.max() > at.MAX_PACKETS:
            raise ValueError(f"a message of {packets.max()} packets")
        book = flows.book[first : first + n]
        book[:] = 0
        for column, values in (
            (SRC, sends.src), (DST, sends.dst), (BYTES, sends.nbytes), (PACKETS, packets),
            (TRANSPORT, sends.transport), (FLOW, -1), (END, -1),
        ):  # fmt: skip
            book[:, column] = values
        kinds = np.array([
            kind.important if sends.important is None else sends.important for kind in flows.transports
        ])  # fmt: skip
        self.tags = kinds[book[:, TRANSPORT]].astype(np.int64)
        self.wanted = self.tags * packets
        self.patterns: list[tuple[int, int]] = []  # words, base
        if sends.pattern is not None and len(sends.patterns):
            self._lay_out_patterns(sends.pattern, packets)
        self.join_left = np.zeros(0, dtype=np.int64)
        self.join_base = 0
        if len(sends.join):
            self.join_left = np.bincount(sends.join[sends.join >= 0])
            self.join_base = flows.words.take(len(self.join_left))
            flows.memory.M[self.join_base : self.join_base + len(self.join_left)] = self.join_left

    def _payload(self) -> NDArray[np.int64]:
        payloads = np.array([kind.payload for kind in self.flows.transports])
        return np.asarray(payloads[np.broadcast_to(self.sends.transport, len(self.sends))])

    def _lay_out_patterns(self, pattern: NDArray[np.int64], packets: NDArray[np.int64]) -> None:
        bases, counts = [], []
        for flags in self.sends.patterns:
            base, wanted = self.flows.tags(flags, len(flags))
            self.patterns.append((-(-len(flags) // 32), base))
            bases.append(base)
            counts.append(wanted)
        lengths = np.array([len(flags) for flags in self.sends.patterns])
        chosen = pattern >= 0
        if (lengths[pattern[chosen]] != packets[chosen]).any():
            raise ValueError("a pattern of importance does not have one flag per packet")
        self.tags[chosen] = np.array(bases)[pattern[chosen]]
        self.wanted[chosen] = np.array(counts)[pattern[chosen]]

    @property
    def unopened(self) -> bool:
        return self.position < len(self.opened)

    def open(self, those: NDArray[np.int64], post: Post) -> None:
        """Give messages their records, and start those that wait for nothing any more."""
        flows, sends, book = self.flows, self.sends, self.flows.book
        M = flows.memory.M
        n = len(sends)
        self.opened[those] = True
        followers = self.place[those + 1] - self.place[those]
        follow = flows.words.take_many(np.where(followers > 0, 1 + followers, 0))
        M[follow[followers > 0]] = followers[followers > 0]
        join = np.zeros(len(those), dtype=np.int64)
        if len(sends.join):
            join = np.where(sends.join[those] >= 0, self.join_base + sends.join[those], 0)
        rows = book[self.first + those]
        bound = np.broadcast_to(sends.bound, n)[those]
        priority = np.broadcast_to(sends.priority, n)[those]
        senders = np.zeros(len(those), dtype=np.int64)
        for kind in np.unique(rows[:, TRANSPORT]).tolist():
            part = np.flatnonzero(rows[:, TRANSPORT] == kind)
            row, which = rows[part], those[part]
            begin = Records(
                number=self.first + which, src=row[:, SRC], dst=row[:, DST], nbytes=row[:, BYTES],
                packets=row[:, PACKETS], priority=priority[part],
                allowed=allowed_losses(row[:, BYTES], bound[part]), tags=self.tags[which],
                wanted=self.wanted[which], wait=self.waiting[which], earliest=self.earliest[which], tell=0,
                follow=follow[part], join=join[part], logged=int(sends.logged),
            )  # fmt: skip
            senders[part] = flows.open_many(begin, kind)
        self._enlist(those, senders)
        for i in np.flatnonzero(self.waiting[those] == 0).tolist():
            post(int(rows[i, SRC]), int(self.earliest[those[i]]), int(senders[i]))

    def _enlist(self, those: NDArray[np.int64], senders: NDArray[np.int64]) -> None:
        """Enter the new records into the lists of the messages they wait for."""
        edges, owner = _ranges(self.back_place, those)
        edges = self.back[edges]
        before = self.first + self.before[edges]
        book = self.flows.book[before]
        due = (book[:, STATE] & 1) == 0  # the others have been delivered: nothing waits for them
        edges, before, owner = edges[due], before[due], owner[due]
        M = self.flows.memory.M
        lists = M[self.flows.receiver(book[due][:, FLOW]) + at.R_FOLLOW]
        M[lists + 1 + edges - self.place[before - self.first]] = senders[owner]

    def delivered(
        self, those: NDArray[np.int64], times: NDArray[np.int64], latency: int
    ) -> NDArray[np.int64]:
        """Note deliveries. Returns the messages without a record that may start now."""
        edges, owner = _ranges(self.place, those)
        after = self.after[edges]
        unopened = ~self.opened[after]
        after, owner = after[unopened], owner[unopened]
        if not len(after):
            return after
        np.subtract.at(self.waiting, after, 1)
        np.maximum.at(self.earliest, after, times[owner] + latency)
        after = np.unique(after)
        return after[self.waiting[after] == 0]

    def joined(self, number: int, those: NDArray[np.int64], times: NDArray[np.int64]) -> list[Joined]:
        """The joins that these deliveries, in order of time, complete."""
        if not len(self.join_left):
            return []
        done = []
        joins = self.sends.join[those]
        for i in np.flatnonzero(joins >= 0).tolist():
            join = int(joins[i])
            self.join_left[join] -= 1
            if not self.join_left[join]:
                done.append(Joined(number, join, self.first + int(those[i]), int(times[i])))
        return done

    def release(self, those: NDArray[np.int64], time: int, post: Post) -> NDArray[np.int64]:
        """One release more of messages, whose hosts can start them from `time` on. Returns those without a record that
        may start now."""
        M, flows = self.flows.memory.M, self.flows
        opened = self.opened[those]
        late = those[~opened]
        self.waiting[late] -= 1
        self.earliest[late] = np.maximum(self.earliest[late], time)
        rows = flows.book[self.first + those[opened]]
        f = flows.sender(rows[:, FLOW])
        M[f + at.S_EARLIEST] = np.maximum(M[f + at.S_EARLIEST], time)
        M[f + at.S_WAIT] -= 1
        for i in np.flatnonzero(M[f + at.S_WAIT] == 0).tolist():
            post(int(rows[i, SRC]), int(M[f[i] + at.S_EARLIEST]), int(f[i]))
        return late[self.waiting[late] == 0]

    def free(self) -> None:
        """Give back what the messages shared; no record is left."""
        for words, base in self.patterns:
            self.flows.words.give(words, base)
        if self.join_base:
            self.flows.words.give(len(self.join_left), self.join_base)


def _ranges(
    place: NDArray[np.int64], those: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The entries place[i] to place[i + 1] of every i in `those`, one after the other, and whose (index) each is."""
    counts = place[those + 1] - place[those]
    owner = np.repeat(np.arange(len(those)), counts)
    inside = np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)
    return place[those][owner] + inside, owner


class Programs:
    """The programs of one fabric."""

    def __init__(self, flows: Flows, latency: int, post: Post) -> None:
        self.flows, self.latency, self.post = flows, latency, post
        self.submitted = 0
        self._live: dict[int, Program] = {}
        self._first: list[int] = []  # of the live ones, rising
        self._numbers: list[int] = []
        self._open = 0

    def submit(self, sends: Sends, now: int) -> int:
        """Enter messages. Returns the number of the program; the messages follow each other from its `first`."""
        number = self.submitted
        first = self.flows.enter(len(sends))
        self._live[number] = Program(sends, first, self.flows, now)
        self.submitted += 1
        self._first.append(first)
        self._numbers.append(number)
        return number

    def release(self, number: int, those: NDArray[np.int64], time: int) -> None:
        """Open a gate of messages of a program."""
        program = self._live[number]
        self._force(program, program.release(those, time, self.post))

    def fill(self, now: int) -> None:
        """Open what there is room for, and what starts now."""
        for program in self._live.values():
            room = MOST_OPEN - self._open
            while program.unopened and program.soonest[program.position] <= now:
                self._next(program, BATCH)
            left = len(program.opened) - program.position
            if left and room >= min(left, BATCH):
                self._next(program, min(left, room))

    def _next(self, program: Program, many: int) -> None:
        end = min(program.position + many, len(program.opened))
        those = program.position + np.flatnonzero(~program.opened[program.position : end])
        if len(those):
            program.open(those, self.post)
        self._open += len(those)
        program.position = end

    def _force(self, program: Program, those: NDArray[np.int64]) -> None:
        if len(those):
            program.open(those, self.post)
            self._open += len(those)

    def soonest(self) -> int:
        """When a message without a record would start; FOREVER if only others' deliveries and releases can tell."""
        return min(
            (int(p.soonest[p.position]) for p in self._live.values() if p.unopened), default=at.FOREVER
        )

    def delivered(self, numbers: NDArray[np.int64], times: NDArray[np.int64]) -> list[Joined]:
        """Note deliveries of any messages, in order of time. Returns the joins that are complete."""
        if not self._live:
            return []
        joined: list[Joined] = []
        for number, those, when in self._by_program(numbers, times):
            program = self._live[number]
            joined += program.joined(number, those, when)
            self._force(program, program.delivered(those, when, self.latency))
        return joined

    def closed(self, numbers: NDArray[np.int64]) -> None:
        """Note that records are free again."""
        for number, those, _ in self._by_program(numbers, numbers):
            program = self._live[number]
            program.closed += len(those)
            self._open -= len(those)
            if program.closed == len(program.opened):
                program.free()
                del self._live[number]
                at_ = self._numbers.index(number)
                del self._numbers[at_], self._first[at_]

    def _by_program(
        self, numbers: NDArray[np.int64], times: NDArray[np.int64]
    ) -> list[tuple[int, NDArray[np.int64], NDArray[np.int64]]]:
        """(program, its messages counted from its first, times) for each live program that has any."""
        if not self._first:
            return []
        place = np.searchsorted(self._first, numbers, side="right") - 1
        found = []
        for index in np.unique(place).tolist():
            if index < 0:
                continue
            number = self._numbers[index]
            program = self._live[number]
            those = numbers - program.first
            mine = (place == index) & (those < len(program.opened))
            if mine.any():
                found.append((number, those[mine], times[mine]))
        return found
