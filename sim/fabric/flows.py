"""Messages and their flow records: which record a message has, and when it is free again.

A record may be used again only when no packet of its last message is left anywhere, late ones included; the counters
of sender and receiver and the drops that were logged say so exactly. Which record a message gets must not show in any
result, because it depends on how often the engine was stopped: equal times are ordered by message, not by record.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradwire.components import layout as at
from gradwire.components.draws import entropy_of
from gradwire.scenarios.errors import GradwireError
from gradwire.scenarios.loss import Allowance, allowed_loss
from gradwire.scenarios.missing import missing_runs
from gradwire.sim.fabric import streams
from gradwire.sim.fabric.memory import Memory
from gradwire.sim.fabric.pairs import Pairs
from gradwire.sim.fabric.parameters import Bound, ParameterSets
from gradwire.sim.fabric.room import SMALLEST_FRAME
from gradwire.sim.fabric.streams import Streams
from gradwire.sim.fabric.words import Words

# columns of the book of messages
SRC, DST, BYTES, PACKETS, TRANSPORT, FLOW, STATE, END, GOT, SENT, AGAIN, TAGS, MARKED, TRIMMED, TIMEOUTS = range(15)
BOOK_WORDS = 15
DELIVERED, FINISHED = 1, 2  # bits of STATE


@dataclass(frozen=True, slots=True)
class Records:
    """What the records of one message, or of many, begin with. Every field is a number or int64[messages].

    `allowed`, `most`, `pool`: see S_ALLOWED, R_MOST and R_POOL. `tags`: where the importance bits are, 0 none, 1 all;
    `wanted`: how many are set; `logged`: 1 if its packets are noted; `tell`, `home`, `event`, `left`: see the layout.
    `stream`: number of the records of its stream, -1 = none.
    """

    number: Any
    src: Any
    dst: Any
    nbytes: Any
    packets: Any
    priority: Any
    allowed: Any
    tags: Any
    wanted: Any
    most: Any = 0
    pool: Any = 0
    turn: Any = 0
    tell: Any = at.TELL_DELIVERED
    home: Any = 0
    event: Any = 0
    left: Any = 0
    logged: int = 1
    stream: Any = -1
    pair: Any = (0, 0, 0, 0)
    """bases of what the pair shares at the sender, of the group's record, of what it and its host share at the
    receiver"""
    entropy: Any = None
    """of its stream; None: one of its own"""


class Flows:
    """The messages of one fabric and their flow records.

    Attributes
    ----------
    book : int64 [messages and room for more, BOOK_WORDS]: what is kept of every message of the run, by number.
    count : how many messages there are.
    message_of : int64 per record: the message that has it, or had it last.
    dropped : int64 per record: packets of its message that were lost.
    """

    def __init__(
        self,
        memory: Memory,
        transports: Sequence[Bound],
        sets: ParameterSets,
        line: NDArray[np.int64],
        seed: int,
    ) -> None:
        """`line` : int64[hosts], picoseconds per byte << 16 of every host's port."""
        self.memory = memory
        self.words = Words(memory)
        self.transports = transports
        self.seed = seed
        self.book = np.zeros((1024, BOOK_WORDS), dtype=np.int64)
        self.count = 0
        self.message_of = np.full(1024, -1, dtype=np.int64)
        self.dropped = np.zeros(1024, dtype=np.int64)
        self._sets = sets
        self._line = line
        self._records = 0
        self._free: list[int] = []
        self._closing = np.zeros(0, dtype=np.int64)
        self._active = np.zeros(len(line), dtype=np.int64)
        owners = [bound.owner for bound in transports]
        self._sender_bitmaps = np.array([owner.sender_bitmaps for owner in owners])
        self._receiver_bitmaps = np.array([owner.receiver_bitmaps for owner in owners])
        self._late = np.array([bound.late for bound in transports])
        self._streams = Streams(self)
        self._pairs = Pairs(self)

    def sender(self, flow: Any) -> Any:
        """Base of a sender's record."""
        return self.memory.senders + flow * at.SENDER_WORDS

    def receiver(self, flow: Any) -> Any:
        """Base of a receiver's record."""
        return self.memory.receivers + flow * at.RECEIVER_WORDS

    # --- opening ------------------------------------------------------------------------------------------------

    def enter(self, many: int) -> int:
        """Make room in the book for more messages. Returns the number of the first."""
        first = self.count
        self.count += many
        if self.count > at.MASK_KEY_NUMBER:
            raise GradwireError(
                f"more than {at.MASK_KEY_NUMBER} messages", "fabric", "fewer or larger messages"
            )
        if self.count > len(self.book):
            room = max(self.count, 2 * len(self.book))
            self.book = np.concatenate(
                (self.book, np.zeros((room - len(self.book), BOOK_WORDS), dtype=np.int64))
            )
        self.book[first : self.count] = 0
        self.book[first : self.count, [FLOW, END]] = -1
        return first

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
        important: NDArray[Any] | bool | None,
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
        shared: dict[str, Any] = {}
        if kind.pairs:
            ends = (np.array([each]) for each in (src, dst, priority))
            shared = {"pair": [int(bases[0]) for bases in self._pairs.of(transport, *ends)]}
        if kind.persistent:
            found = self._streams.join(transport, *(np.array([each]) for each in (src, dst, priority, packets)))
            shared = {"stream": int(found[0][0]), "entropy": int(found[1][0])}
        else:
            bits = self.words.take(words * kind.owner.sender_bitmaps)
            peer = self.words.take(words * kind.owner.receiver_bitmaps)
        number = self.enter(1) if number is None else number
        flow = self._take(1)[0]
        self.book[number] = (
            src, dst, nbytes, packets, transport, flow, 0, -1, 0, 0, 0, tags if tags > 1 else 0, 0, 0, 0,
        )  # fmt: skip
        self.message_of[flow] = number
        f, r = self.sender(flow), self.receiver(flow)
        begin = Records(
            number, src, dst, nbytes, packets, priority, allowed_loss(nbytes, loss.share), tags, wanted,
            most=allowed_loss(nbytes, loss.bound), pool=loss.pool, turn=number if turn is None else turn,
            logged=int(logged),
            tell=at.TELL_DELIVERED | at.TELL_FINISHED if settled else at.TELL_DELIVERED, **shared,
        )  # fmt: skip
        chosen = self._sets.of_pair(transport, src, dst)
        slots = int(self._sets.slots(chosen, packets))
        stamps = self.words.take(slots * at.SLOT_WORDS) if slots else 0
        sender, receiver = self._layout(begin, transport, chosen, words, bits, peer, slots, stamps)
        M[f : f + at.SENDER_WORDS] = 0
        for word, value in sender:
            M[f + word] = value
        M[r : r + at.RECEIVER_WORDS] = 0
        for word, value in receiver:
            M[r + word] = value
        self._expect_timers(src)
        if kind.late:
            self._expect_timers(dst)
        return int(f)

    def open_many(self, begin: Records, transport: int) -> NDArray[np.int64]:
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
        bits = self.words.take_many(own * kind.owner.sender_bitmaps)
        peer = self.words.take_many(own * kind.owner.receiver_bitmaps)
        chosen = self._sets.of(transport, begin.src, begin.dst)
        slots = self._sets.slots(chosen, begin.packets)
        stamps = self.words.take_many(slots * at.SLOT_WORDS)
        flows = np.array(self._take(len(begin.number)), dtype=np.int64)
        self.book[begin.number, FLOW] = flows
        self.message_of[flows] = begin.number
        sender, receiver = self._layout(begin, transport, chosen, words, bits, peer, slots, stamps)
        for base, size, pairs in (
            (self.memory.senders, at.SENDER_WORDS, sender),
            (self.memory.receivers, at.RECEIVER_WORDS, receiver),
        ):
            block = np.zeros((len(flows), size), dtype=np.int64)
            for word, value in pairs:
                block[:, word] = value
            M[base : base + at.MAX_FLOWS * size].reshape(-1, size)[flows] = block
        ends = np.concatenate((begin.src, begin.dst)) if kind.late else begin.src
        for host, count in zip(*(each.tolist() for each in np.unique(ends, return_counts=True)), strict=True):
            self._expect_timers(host, count)
        return np.asarray(self.sender(flows))

    def _layout(
        self,
        begin: Records,
        transport: int,
        chosen: Any,
        words: Any,
        bits: Any,
        peer: Any,
        slots: Any,
        stamps: Any,
    ) -> Any:
        """The words of sender and receiver that do not begin at zero, as pairs of word and value."""
        kind = self.transports[transport]
        overhead = kind.owner.data_overhead
        if begin.entropy is None:
            entropy = entropy_of(self.seed, begin.number) << at.A_ENTROPY
        else:
            entropy = begin.entropy << at.A_ENTROPY
        shared = begin.stream >= 0
        full = (kind.payload + overhead) << at.A_SIZE
        last = begin.nbytes - (begin.packets - 1) * kind.payload + overhead
        last = max(last, SMALLEST_FRAME) if isinstance(last, int) else np.maximum(last, SMALLEST_FRAME)
        control = kind.owner.control_bytes << at.A_SIZE | kind.control_priority << at.A_PRIORITY
        control |= kind.control_important << at.A_IMPORTANT
        entropy |= begin.logged << at.A_LOGGED
        sender = (
            (at.S_DATA, begin.dst | full | begin.priority << at.A_PRIORITY | entropy),
            (at.S_PACKETS, begin.packets),
            (at.S_LAST, last),
            (at.S_BITS, bits),
            (at.S_WORDS, words),
            (at.S_KIND, transport | chosen << at.SET_SHIFT),
            (at.S_ORDER, (begin.number & at.MASK_KEY_NUMBER) << at.KEY_ORDER),
            (at.S_NEXT, -1),
            (at.S_PEER, peer),
            (at.S_LINE, self._line[begin.src]),
            (at.S_TAGS, begin.tags),
            (at.S_HOME, begin.home),
            (at.S_ALLOWED, begin.allowed),
            (at.S_TURN, begin.turn),
            (at.S_PAIR, begin.pair[0]),
            (at.S_GROUP, begin.pair[1]),
            (at.S_STAMPS, stamps),
            (at.S_SLOTS, slots - 1),
            (at.S_STREAM, shared * self.sender(begin.stream)),
        )
        receiver = (
            (at.R_CONTROL, begin.src | control | entropy),
            (at.R_PACKETS, begin.packets),
            (at.R_BYTES, begin.nbytes),
            (at.R_PAYLOAD, kind.payload),
            (at.R_BITS, peer),
            (at.R_WORDS, words),
            (at.R_KIND, transport | chosen << at.SET_SHIFT),
            (at.R_FRAME, np.where(begin.packets > 1, kind.payload + overhead, last)),
            (at.R_TAGS, begin.tags),
            (at.R_ALLOWED, begin.allowed),
            (at.R_MOST, begin.most),
            (at.R_POOL, begin.pool),
            (at.R_IMPORTANT, begin.wanted),
            (at.R_TELL, begin.tell),
            (at.R_EVENT, begin.event),
            (at.R_LEFT, begin.left),
            (at.R_STREAM, shared * self.receiver(begin.stream)),
            (at.R_PAIR, begin.pair[2]),
            (at.R_HOST, begin.pair[3]),
        )
        return sender, receiver

    def new_record(self, src: int, dst: int) -> int:
        """The number of a pair of records, all zeros, that no message has: for a stream, for good."""
        M, flow = self.memory.M, self._take(1)[0]
        self.message_of[flow] = -1
        for base, size in ((self.sender(flow), at.SENDER_WORDS), (self.receiver(flow), at.RECEIVER_WORDS)):
            M[base : base + size] = 0
        self._expect_timers(src)
        self._expect_timers(dst)
        return flow

    def stream_words(
        self, transport: int, src: int, dst: int, priority: int, entropy: int, flow: int
    ) -> Iterator[tuple[int, Any]]:
        """What the records of a stream begin with: base, and pairs of word and value, of the sender's and the
        receiver's."""
        begin = Records(0, src, dst, at.FOREVER, 0, priority, 0, 0, 0, stream=flow, entropy=entropy)
        chosen = self._sets.of_pair(transport, src, dst)
        sender, receiver = self._layout(begin, transport, chosen, 0, 0, 0, 0, 0)
        first = streams.FIRST_PACKET
        yield self.sender(flow), (*sender, (at.S_FIRST, first), (at.S_TOTAL, first))
        yield self.receiver(flow), (*receiver, (at.R_FIRST, first))

    def tags(self, important: NDArray[Any] | bool, packets: int) -> tuple[int, int]:
        """Where the importance bits of a message are (0 none, 1 all), and how many are set."""
        if isinstance(important, (bool, np.bool_)):
            return int(important), packets * int(important)
        flags = np.asarray(important, dtype=bool)
        if flags.shape != (packets,):
            raise ValueError(f"importance for {flags.shape} packets where the message has {packets}")
        words = -(-packets // 32)
        base = self.words.take(words)
        packed = np.zeros(4 * words, dtype=np.uint8)
        bits = np.packbits(flags, bitorder="little")
        packed[: len(bits)] = bits
        self.memory.M[base : base + words] = packed.view("<u4")
        return base, int(flags.sum())

    def _take(self, many: int) -> list[int]:
        again = self._free[len(self._free) - min(many, len(self._free)) :]
        del self._free[len(self._free) - len(again) :]
        fresh = many - len(again)
        if fresh:
            if self._records + fresh > at.MAX_FLOWS:
                raise GradwireError(f"more than {at.MAX_FLOWS} messages under way at once", "fabric", "fewer")
            again += range(self._records, self._records + fresh)
            self._records += fresh
            while self._records > len(self.message_of):
                self.message_of = np.concatenate((self.message_of, np.full_like(self.message_of, -1)))
                self.dropped = np.concatenate((self.dropped, np.zeros_like(self.dropped)))
        return again

    def _expect_timers(self, host: int, flows: int = 1) -> None:
        """A host gets more flows: three entries of its heap for each of them all, and some to spare."""
        self._active[host] += flows
        M = self.memory.M
        node = int(self.memory.node_base[host])
        base = int(M[node + at.N_HEAP])
        need = 3 * int(self._active[host]) + 8
        if need <= M[base - 1]:
            return
        size = 2 * need
        fresh = self.memory.heap_free + 8
        if fresh + 2 * size > self.memory.heap_end:
            raise GradwireError("too many messages under way at one host", "fabric", "fewer")
        self.memory.heap_free = fresh + 2 * size
        count = 2 * int(M[node + at.N_HEAP_COUNT])
        M[fresh : fresh + count] = M[base : base + count]
        M[fresh - 1] = size
        M[node + at.N_HEAP] = fresh

    # --- what happens to them -----------------------------------------------------------------------------------

    def note(self, flows: NDArray[np.int64], state: int) -> NDArray[np.int64]:
        """Flows whose message was delivered, or whose sender has nothing more to send. Returns their messages."""
        numbers = self.message_of[flows]
        now = self.book[numbers, STATE] | state
        self.book[numbers, STATE] = now
        if state == FINISHED:
            np.subtract.at(self._active, self.book[numbers, SRC], 1)
            late = numbers[self._late[self.book[numbers, TRANSPORT]]]
            np.subtract.at(self._active, self.book[late, DST], 1)
        done = flows[now == DELIVERED | FINISHED]
        if len(done):
            self._closing = np.concatenate((self._closing, done))
        return numbers

    def missing(self, number: int) -> NDArray[np.int64]:
        """The packets that have not arrived of a message whose records are not free yet; see `missing_runs`."""
        M = self.memory.M
        packets, nbytes, kind = self.book[number, [PACKETS, BYTES, TRANSPORT]].tolist()
        base = int(M[self.receiver(int(self.book[number, FLOW])) + at.R_BITS])
        words = M[base : base + -(-packets // 32)].astype("<u4")
        arrived = np.unpackbits(words.view(np.uint8), bitorder="little")[:packets]
        return missing_runs(number, arrived == 0, nbytes, self.transports[kind].payload)

    def received(self) -> int:
        """Payload bytes that all records have received."""
        got = self.receiver(np.arange(self._records)) + at.R_GOT
        return int(self.memory.M[got].sum())

    def settled(self, first: int, beyond: int) -> int:
        """Payload bytes of those messages that were delivered, and those that have arrived of the others."""
        book = self.book[first:beyond]
        delivered = book[:, END] >= 0
        live = book[~delivered & (book[:, FLOW] >= 0), FLOW]
        return int(book[delivered, BYTES].sum() + self.memory.M[self.receiver(live) + at.R_GOT].sum())

    def sent(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Per message: packets sent (data and probes), and data packets that had been sent before."""
        numbers = np.flatnonzero(self.book[: self.count, FLOW] >= 0)
        self._count(numbers)
        return self.book[: self.count, SENT], self.book[: self.count, AGAIN]

    def _count(self, numbers: NDArray[np.int64]) -> None:
        """Copy the counters of messages from their records into the book."""
        M = self.memory.M
        kinds = self.book[numbers, TRANSPORT]
        for kind in np.unique(kinds).tolist():
            owner = self.transports[kind].owner
            those = numbers[kinds == kind]
            f = self.sender(self.book[those, FLOW])
            sent = M[f + at.S_SENT]
            probes = M[f + owner.probe_word] if owner.probe_word else 0
            fresh = M[f + (at.S_FRESH if self.transports[kind].persistent else owner.fresh_word)]
            self.book[those, SENT] = sent
            self.book[those, AGAIN] = sent - probes - fresh
            self.book[those, TIMEOUTS] = M[f + at.S_TIMEOUTS]
            r = self.receiver(self.book[those, FLOW])
            self.book[those, MARKED] = M[r + at.R_MARKED]
            self.book[those, TRIMMED] = M[r + at.R_TRIMMED]

    def close(self, at_least: int = 1) -> NDArray[np.int64]:
        """Free the records of flows of which no packet is left anywhere, if that many are waiting for it. Returns the
        messages whose records are free now."""
        flows = self._closing
        if len(flows) < at_least:
            return flows[:0]
        M = self.memory.M
        f, r = self.sender(flows), self.receiver(flows)
        sent = M[f + at.S_SENT] + M[r + at.R_SENT]
        gone = M[f + at.S_HEARD] + M[r + at.R_ARRIVED] + self.dropped[flows]
        free = (sent == gone) & (M[f + at.S_LISTED] == 0) & (M[r + at.R_PULL_LISTED] == 0)
        self._closing = flows[~free]
        flows, f, r = flows[free], f[free], r[free]
        if not len(flows):
            return flows
        numbers = self.message_of[flows]
        self._count(numbers)
        book = self.book[numbers]
        self.book[numbers, FLOW] = -1
        words = M[f + at.S_WORDS]
        stream = M[f + at.S_STREAM]
        own = np.where(stream == 0, words, 0)
        self.words.give_many(own * self._sender_bitmaps[book[:, TRANSPORT]], M[f + at.S_BITS])
        self.words.give_many(own * self._receiver_bitmaps[book[:, TRANSPORT]], M[r + at.R_BITS])
        if stream.any():
            self._streams.leave(stream[stream > 0], book[stream > 0, PACKETS])
        self.words.give_many(np.where(book[:, TAGS] > 0, words, 0), book[:, TAGS])
        stamps = M[f + at.S_STAMPS]
        self.words.give_many(np.where(stamps > 0, (M[f + at.S_SLOTS] + 1) * at.SLOT_WORDS, 0), stamps)
        self.dropped[flows] = 0
        self._free.extend(flows.tolist())
        return numbers
