"""Messages and their flow records: which record a message has, and when it is free again.

A record may be used again only when no packet of its last message is left anywhere, late ones included; the counters
of sender and receiver and the drops that were logged say so exactly. Which record a message gets must not show in any
result, because it depends on how often the engine was stopped: equal times are ordered by message, not by record.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from gradwire.components import layout as at
from gradwire.scenarios.arrays import Flags, Ints
from gradwire.scenarios.errors import GradwireError
from gradwire.scenarios.loss import Allowance, allowed_loss
from gradwire.scenarios.missing import missing_runs
from gradwire.sim.fabric.counts import Counts
from gradwire.sim.fabric.memory import Memory
from gradwire.sim.fabric.pairs import Pairs
from gradwire.sim.fabric.parameters import Bound, ParameterSets
from gradwire.sim.fabric.records import FlowRecords, Records
from gradwire.sim.fabric.streams import Streams

# columns of the book of messages
SRC, DST, BYTES, PACKETS, TRANSPORT, FLOW, STATE, END, GOT, SENT = range(10)
RETRANSMITTED, TAGS, MARKED, TRIMMED, TIMEOUTS = range(10, 15)
BOOK_WORDS = 15
DELIVERED, FINISHED = 1, 2  # bits of STATE


class Flows:
    """The messages of one fabric and their flow records.

    Attributes
    ----------
    book : int64 [messages and room for more, BOOK_WORDS]: what is kept of every message from `first` on, by number.
    first : the first message of which anything is kept: all before it have been forgotten.
    count : how many messages there are and were.
    records : the records of messages, streams and groups.
    """

    def __init__(
        self,
        memory: Memory,
        transports: Sequence[Bound],
        sets: ParameterSets,
        line: Ints,
        seed: int,
    ) -> None:
        """`line` : int64[hosts], picoseconds per byte << 16 of every host's port."""
        self.memory = memory
        self.records = FlowRecords(memory, transports, sets, line, seed)
        self.arena = self.records.arena
        self.transports = transports
        self.book = np.zeros((1024, BOOK_WORDS), dtype=np.int64)
        self.first = self.count = 0
        self._gone: dict[int, int] = {}  # stretches of messages that are forgotten behind `first`: first, beyond
        self._gone_bytes = 0
        self._sets = sets
        self._closing = np.zeros(0, dtype=np.int64)
        owners = [bound.owner for bound in transports]
        self._sender_bitmaps = np.array([owner.sender_bitmaps for owner in owners])
        self._receiver_bitmaps = np.array([owner.receiver_bitmaps for owner in owners])
        self._late = np.array([bound.ack_delay for bound in transports])
        self._streams = Streams(self.records)
        self._pairs = Pairs(self.records)

    # --- opening ------------------------------------------------------------------------------------------------

    def enter(self, many: int) -> int:
        """Make room in the book for more messages. Returns the number of the first."""
        first = self.count
        self.count += many
        if self.count > at.MASK_KEY_NUMBER:
            raise GradwireError(
                f"more than {at.MASK_KEY_NUMBER} messages", "fabric", "fewer or larger messages"
            )
        beyond = self.count - self.first
        if beyond > len(self.book):
            room = max(beyond, 2 * len(self.book))
            self.book = np.concatenate(
                (self.book, np.zeros((room - len(self.book), BOOK_WORDS), dtype=np.int64))
            )
        self.book[first - self.first : beyond] = 0
        self.book[first - self.first : beyond, [FLOW, END]] = -1
        return first

    def forget(self, first: int, many: int) -> None:
        """Keep no more of so many messages from `first` on, which are delivered and whose records are free."""
        if not many:
            return
        place = first - self.first
        self._gone_bytes += int(self.book[place : place + many, BYTES].sum())
        self.book[place : place + many, BYTES] = 0
        self._gone[first] = first + many
        keep = self.first
        while keep in self._gone:
            keep = self._gone.pop(keep)
        if keep > self.first:
            self.book[: self.count - keep] = self.book[keep - self.first : self.count - self.first].copy()
            self.first = keep

    def open(
        self,
        src: int,
        dst: int,
        nbytes: int,
        packets: int,
        *,
        transport: int,
        priority: int,
        loss: Allowance,
        important: Flags | bool | None,
        settled: bool = False,
        logged: bool = True,
        number: int | None = None,
        turn: int | None = None,
    ) -> int:
        """A new message with both its records. Returns the base of the sender's. `turn`: its number, unless given."""
        M = self.memory.M
        kind = self.transports[transport]
        words = -(-packets // 32)
        tags, wanted = self.tags(kind.important if important is None else important, packets)
        bits = peer = 0
        pair: Sequence[int] = (0, 0, 0, 0)
        stream, entropy = -1, None
        if kind.pairs:
            ends = (np.array([each]) for each in (src, dst, priority))
            pair = [int(bases[0]) for bases in self._pairs.of(transport, *ends)]
        if kind.persistent:
            found = self._streams.join(transport, *(np.array([each]) for each in (src, dst, priority, packets)))
            stream, entropy = int(found[0][0]), int(found[1][0])
        else:
            bits = self.arena.allocate(words * kind.owner.sender_bitmaps)
            peer = self.arena.allocate(words * kind.owner.receiver_bitmaps)
        number = self.enter(1) if number is None else number
        flow = self.records.allocate(1)[0]
        self.book[number - self.first] = (
            src, dst, nbytes, packets, transport, flow, 0, -1, 0, 0, 0, tags if tags > 1 else 0, 0, 0, 0,
        )  # fmt: skip
        self.records.message_of[flow] = number
        f, r = self.records.sender(flow), self.records.receiver(flow)
        begin: Records[int] = Records(
            number, src, dst, nbytes, packets, priority, allowed_loss(nbytes, loss.share), tags, wanted,
            most=allowed_loss(nbytes, loss.bound), pool=loss.pool, turn=number if turn is None else turn,
            logged=int(logged), tell=at.TELL_DELIVERED | at.TELL_FINISHED if settled else at.TELL_DELIVERED,
            pair=pair, stream=stream, entropy=entropy,
        )  # fmt: skip
        chosen = self._sets.of_pair(transport, src, dst)
        slots = int(self._sets.slots(np.array([chosen]), np.array([packets]))[0])
        stamps = self.arena.allocate(slots * at.SLOT_WORDS) if slots else 0
        sender, receiver = self.records.begin(begin, transport, chosen, words, bits, peer, slots, stamps)
        M[f : f + at.SENDER_WORDS] = 0
        for word, value in sender:
            M[f + word] = value
        M[r : r + at.RECEIVER_WORDS] = 0
        for word, value in receiver:
            M[r + word] = value
        self.records.expect_timers(src)
        if kind.ack_delay:
            self.records.expect_timers(dst)
        return int(f)

    def open_many(self, begin: Records[Ints], transport: int) -> Ints:
        """Records for messages of one transport that are in the book. Returns the bases of the senders'."""
        M = self.memory.M
        kind = self.transports[transport]
        words = -(-begin.packets // 32)
        own = words
        if kind.persistent:
            priority = np.broadcast_to(begin.priority, len(begin.number))
            stream, entropy = self._streams.join(transport, begin.src, begin.dst, priority, begin.packets)
            begin = replace(begin, stream=stream, entropy=entropy)
            own = np.zeros_like(words)
        if kind.pairs:
            priority = np.broadcast_to(begin.priority, len(begin.number))
            begin = replace(begin, pair=self._pairs.of(transport, begin.src, begin.dst, priority))
        bits = self.arena.allocate_many(own * kind.owner.sender_bitmaps)
        peer = self.arena.allocate_many(own * kind.owner.receiver_bitmaps)
        chosen = self._sets.of(transport, begin.src, begin.dst)
        slots = self._sets.slots(chosen, begin.packets)
        stamps = self.arena.allocate_many(slots * at.SLOT_WORDS)
        flows = np.array(self.records.allocate(len(begin.number)), dtype=np.int64)
        self.book[begin.number - self.first, FLOW] = flows
        self.records.message_of[flows] = begin.number
        sender, receiver = self.records.begin(begin, transport, chosen, words, bits, peer, slots, stamps)
        for base, size, pairs in (
            (self.memory.senders, at.SENDER_WORDS, sender),
            (self.memory.receivers, at.RECEIVER_WORDS, receiver),
        ):
            block = np.zeros((len(flows), size), dtype=np.int64)
            for word, value in pairs:
                block[:, word] = value
            M[base : base + at.MAX_FLOWS * size].reshape(-1, size)[flows] = block
        ends = np.concatenate((begin.src, begin.dst)) if kind.ack_delay else begin.src
        for host, count in zip(*(each.tolist() for each in np.unique(ends, return_counts=True)), strict=True):
            self.records.expect_timers(host, count)
        return np.asarray(self.records.sender(flows))

    def tags(self, important: Flags | bool, packets: int) -> tuple[int, int]:
        """Where the importance bits of a message are (0 none, 1 all), and how many are set."""
        if isinstance(important, (bool, np.bool_)):
            return int(important), packets * int(important)
        flags = np.asarray(important, dtype=bool)
        if flags.shape != (packets,):
            raise ValueError(f"importance for {flags.shape} packets where the message has {packets}")
        words = -(-packets // 32)
        base = self.arena.allocate(words)
        packed = np.zeros(4 * words, dtype=np.uint8)
        bits = np.packbits(flags, bitorder="little")
        packed[: len(bits)] = bits
        self.memory.M[base : base + words] = packed.view("<u4")
        return base, int(flags.sum())

    # --- what happens to them -----------------------------------------------------------------------------------

    def note(self, flows: Ints, state: int) -> Ints:
        """Flows whose message was delivered, or whose sender has nothing more to send. Returns their messages."""
        numbers = self.records.message_of[flows]
        rows = numbers - self.first
        now = self.book[rows, STATE] | state
        self.book[rows, STATE] = now
        if state == FINISHED:
            np.subtract.at(self.records.active, self.book[rows, SRC], 1)
            late = rows[self._late[self.book[rows, TRANSPORT]]]
            np.subtract.at(self.records.active, self.book[late, DST], 1)
        done = flows[now == DELIVERED | FINISHED]
        if len(done):
            self._closing = np.concatenate((self._closing, done))
        return numbers

    def missing(self, number: int) -> Ints:
        """The packets that have not arrived of a message whose records are not free yet; see `missing_runs`."""
        M = self.memory.M
        packets, nbytes, kind, flow = self.book[number - self.first, [PACKETS, BYTES, TRANSPORT, FLOW]].tolist()
        base = int(M[self.records.receiver(flow) + at.R_BITS])
        words = M[base : base + -(-packets // 32)].astype("<u4")
        arrived = np.unpackbits(words.view(np.uint8), bitorder="little")[:packets]
        return missing_runs(number, arrived == 0, nbytes, self.transports[kind].payload)

    def received(self) -> int:
        """Payload bytes that all records have received."""
        got = self.records.receiver(np.arange(self.records.used)) + at.R_GOT
        return int(self.memory.M[got].sum())

    def settled(self, first: int, beyond: int) -> int:
        """Payload bytes of those messages that were delivered, and those that have arrived of the others; none of them
        may be forgotten."""
        book = self.book[first - self.first : beyond - self.first]
        delivered = book[:, END] >= 0
        live = book[~delivered & (book[:, FLOW] >= 0), FLOW]
        return int(book[delivered, BYTES].sum() + self.memory.M[self.records.receiver(live) + at.R_GOT].sum())

    def settled_in_all(self) -> int:
        """The same of all messages that there are and were."""
        return self._gone_bytes + self.settled(self.first, self.count)

    def counts(self, first: int, many: int) -> Counts:
        """What has been counted so far of so many messages from one on."""
        book = self.book[first - self.first : first - self.first + many]
        self._count(first + np.flatnonzero(book[:, FLOW] >= 0))
        sent, again, marked, trimmed, timeouts, end, got = (
            book[:, column].copy() for column in (SENT, RETRANSMITTED, MARKED, TRIMMED, TIMEOUTS, END, GOT)
        )
        return Counts(
            sent_packets=sent, retransmitted=again, marked=marked, trimmed=trimmed, timeouts=timeouts, end_ps=end,
            received_bytes=got, first=first,
        )  # fmt: skip

    def _count(self, numbers: Ints) -> None:
        """Copy the counters of messages from their records into the book."""
        M, numbers = self.memory.M, numbers - self.first
        kinds = self.book[numbers, TRANSPORT]
        for kind in np.unique(kinds).tolist():
            owner = self.transports[kind].owner
            those = numbers[kinds == kind]
            f = self.records.sender(self.book[those, FLOW])
            sent = M[f + at.S_SENT]
            probes = M[f + owner.probe_word] if owner.probe_word else 0
            fresh = M[f + (at.S_FRESH if self.transports[kind].persistent else owner.fresh_word)]
            self.book[those, SENT] = sent
            self.book[those, RETRANSMITTED] = sent - probes - fresh
            self.book[those, TIMEOUTS] = M[f + at.S_TIMEOUTS]
            r = self.records.receiver(self.book[those, FLOW])
            self.book[those, MARKED] = M[r + at.R_MARKED]
            self.book[those, TRIMMED] = M[r + at.R_TRIMMED]
        open_ = numbers[self.book[numbers, END] < 0]  # what comes after the delivery does not count
        self.book[open_, GOT] = M[self.records.receiver(self.book[open_, FLOW]) + at.R_GOT]

    def close(self, at_least: int = 1) -> Ints:
        """Free the records of flows of which no packet is left anywhere, if that many are waiting for it. Returns the
        messages whose records are free now."""
        flows = self._closing
        if len(flows) < at_least:
            return flows[:0]
        M = self.memory.M
        f, r = self.records.sender(flows), self.records.receiver(flows)
        sent = M[f + at.S_SENT] + M[r + at.R_SENT]
        gone = M[f + at.S_HEARD] + M[r + at.R_ARRIVED] + self.records.dropped[flows]
        free = (sent == gone) & (M[f + at.S_LISTED] == 0) & (M[r + at.R_PULL_LISTED] == 0)
        self._closing = flows[~free]
        flows, f, r = flows[free], f[free], r[free]
        if not len(flows):
            return flows
        numbers = self.records.message_of[flows]
        self._count(numbers)
        book = self.book[numbers - self.first]
        self.book[numbers - self.first, FLOW] = -1
        words = M[f + at.S_WORDS]
        stream = M[f + at.S_STREAM]
        own = np.where(stream == 0, words, 0)
        self.arena.free_many(own * self._sender_bitmaps[book[:, TRANSPORT]], M[f + at.S_BITS])
        self.arena.free_many(own * self._receiver_bitmaps[book[:, TRANSPORT]], M[r + at.R_BITS])
        if stream.any():
            self._streams.leave(stream[stream > 0], book[stream > 0, PACKETS])
        self.arena.free_many(np.where(book[:, TAGS] > 0, words, 0), book[:, TAGS])
        stamps = M[f + at.S_STAMPS]
        self.arena.free_many(np.where(stamps > 0, (M[f + at.S_SLOTS] + 1) * at.SLOT_WORDS, 0), stamps)
        self.records.free(flows)
        return numbers
