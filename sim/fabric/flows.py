"""Flow records: which are taken, by which message, and when they are free again.

A record may be used again only when no packet of its last message is left anywhere, late ones included; the counters
of sender and receiver and the drops that were logged say so exactly. Which record a message gets must not show in any
result, because it depends on how often the engine was stopped: equal times are ordered by message, not by record.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scenarios.errors import GradwireError
from sim.fabric import layout as at
from sim.fabric.draws import MASK, key_of
from sim.fabric.memory import SMALLEST_FRAME, Memory

FLOW_ENTROPY = 3  # kind of the draws that give each message its path entropy


@dataclass(frozen=True)
class Bound:
    """One transport of a run: its class and the numbers that a message needs."""

    owner: Any
    payload: int
    control_priority: int
    important: bool

    @classmethod
    def to(cls, owner: Any, table: Any) -> Bound:
        """A transport class and its table of the scenario."""
        settings = table.model_dump()
        return cls(owner, table.payload, settings.get("control_priority", 0), bool(owner.important(settings)))


@dataclass(slots=True)
class Message:
    """What is kept of a message for the whole run."""

    src: int
    dst: int
    nbytes: int
    packets: int
    flow: int
    transport: int
    delivered: bool = False
    finished: bool = False
    sent: int = 0
    again: int = 0


class Flows:
    """The flow records of one fabric.

    Attributes
    ----------
    messages : every message of the run, by number.
    message_of : int64 per record: the message that has it.
    """

    def __init__(self, memory: Memory, transports: Sequence[Bound], up_link: NDArray[Any], seed: int) -> None:
        self.memory = memory
        self.transports = transports
        self.up_link = up_link
        self.seed = seed
        self.messages: list[Message] = []
        self.message_of = np.full(1024, -1, dtype=np.int64)
        self.count = 0
        self.dropped: dict[int, int] = defaultdict(int)
        self._free: list[int] = []
        self._closing: list[int] = []
        self._active = np.zeros(len(up_link), dtype=np.int64)
        self._bits_next = memory.bits
        self._free_bits: dict[int, list[int]] = defaultdict(list)

    def sender(self, flow: int) -> int:
        """Base of a sender's record."""
        return self.memory.senders + flow * at.SENDER_WORDS

    def receiver(self, flow: int) -> int:
        """Base of a receiver's record."""
        return self.memory.receivers + flow * at.RECEIVER_WORDS

    def open(
        self,
        src: int,
        dst: int,
        nbytes: int,
        packets: int,
        *,
        transport: int,
        priority: int,
        bound: float,
        important: NDArray[Any] | bool | None,
    ) -> int:
        """Fill both records of a new message. Returns the base of the sender's."""
        memory, M = self.memory, self.memory.M
        kind = self.transports[transport]
        words = -(-packets // 32)
        tags, wanted = self._tags(important if important is not None else kind.important, packets, words)
        sender_bits = self._take_bits(words * kind.owner.sender_bitmaps)
        receiver_bits = self._take_bits(words * kind.owner.receiver_bitmaps)
        number = len(self.messages)
        flow = self._take(number)
        f, r = self.sender(flow), self.receiver(flow)
        overhead = kind.owner.data_overhead
        last = max(nbytes - (packets - 1) * kind.payload + overhead, SMALLEST_FRAME)
        entropy = (key_of(self.seed, FLOW_ENTROPY, number & MASK) & 0xFFFF) << at.A_ENTROPY
        line = M[memory.port_base[self.up_link[src]] + at.P_SPEED]
        M[f : f + at.SENDER_WORDS] = 0
        M[f + at.S_DATA] = dst | (kind.payload + overhead) << at.A_SIZE | priority << at.A_PRIORITY | entropy
        M[f + at.S_PACKETS] = packets
        M[f + at.S_LAST] = last
        M[f + at.S_BITS] = sender_bits
        M[f + at.S_WORDS] = words
        M[f + at.S_KIND] = transport
        M[f + at.S_ORDER] = (number & at.MASK_KEY_NUMBER) << at.KEY_ORDER
        M[f + at.S_NEXT] = -1
        M[f + at.S_PEER] = receiver_bits
        M[f + at.S_LINE] = line
        M[f + at.S_TAGS] = tags
        M[r : r + at.RECEIVER_WORDS] = 0
        M[r + at.R_CONTROL] = (
            src
            | kind.owner.control_bytes << at.A_SIZE
            | kind.control_priority << at.A_PRIORITY
            | 1 << at.A_IMPORTANT
            | entropy
        )
        M[r + at.R_PACKETS] = packets
        M[r + at.R_BYTES] = nbytes
        M[r + at.R_PAYLOAD] = kind.payload
        M[r + at.R_BITS] = receiver_bits
        M[r + at.R_WORDS] = words
        M[r + at.R_KIND] = transport
        M[r + at.R_TAGS] = tags
        M[r + at.R_ALLOWED] = int(bound * nbytes)
        M[r + at.R_IMPORTANT] = wanted
        self._room_for_timers(src)
        self._active[src] += 1
        self.messages.append(Message(src, dst, nbytes, packets, flow, transport))
        return f

    def delivered(self, flow: int) -> tuple[int, Message]:
        """Note the delivery of a flow's message; its number and the message."""
        number = int(self.message_of[flow])
        message = self.messages[number]
        message.delivered = True
        if message.finished:
            self._closing.append(flow)
        return number, message

    def finished(self, flow: int) -> None:
        """Note that a flow's sender has nothing more to send."""
        message = self.messages[int(self.message_of[flow])]
        message.finished = True
        self._active[message.src] -= 1
        if message.delivered:
            self._closing.append(flow)

    def missing(self, message: Message) -> NDArray[np.bool_]:
        """True for the packets of a message that have not arrived."""
        M = self.memory.M
        base = int(M[self.receiver(message.flow) + at.R_BITS])
        words = M[base : base + -(-message.packets // 32)].astype("<u4")
        return np.unpackbits(words.view(np.uint8), bitorder="little")[: message.packets] == 0

    def received(self) -> int:
        """Payload bytes that all records have received."""
        got = self.memory.receivers + at.RECEIVER_WORDS * np.arange(self.count) + at.R_GOT
        return int(self.memory.M[got].sum())

    def counts(self, message: Message) -> tuple[int, int]:
        """Packets a message has sent (data and probes), and data packets that had been sent before."""
        if message.flow < 0:
            return message.sent, message.again
        M, f = self.memory.M, self.sender(message.flow)
        owner = self.transports[message.transport].owner
        sent = int(M[f + at.S_SENT])
        probes = int(M[f + owner.probe_word]) if owner.probe_word else 0
        return sent, sent - probes - int(M[f + owner.fresh_word])

    def close(self, at_least: int = 1) -> None:
        """Free the records of flows of which no packet is left anywhere, if that many are waiting for it."""
        if len(self._closing) < at_least:
            return
        M = self.memory.M
        kept = []
        for flow in self._closing:
            f, r = self.sender(flow), self.receiver(flow)
            sent = M[f + at.S_SENT] + M[r + at.R_SENT]
            gone = M[f + at.S_HEARD] + M[r + at.R_ARRIVED] + self.dropped.get(flow, 0)
            if sent != gone or M[f + at.S_LISTED]:
                kept.append(flow)
                continue
            message = self.messages[int(self.message_of[flow])]
            message.sent, message.again = self.counts(message)
            message.flow = -1
            owner = self.transports[message.transport].owner
            words = int(M[f + at.S_WORDS])
            self._free_bits[words * owner.sender_bitmaps].append(int(M[f + at.S_BITS]))
            self._free_bits[words * owner.receiver_bitmaps].append(int(M[r + at.R_BITS]))
            if M[f + at.S_TAGS] > 1:
                self._free_bits[words].append(int(M[f + at.S_TAGS]))
            self.dropped.pop(flow, None)
            self._free.append(flow)
        self._closing = kept

    def _tags(self, important: NDArray[Any] | bool, packets: int, words: int) -> tuple[int, int]:
        """Where the importance bits of a message are (0 none, 1 all), and how many are set."""
        if isinstance(important, (bool, np.bool_)):
            return int(important), packets * int(important)
        flags = np.asarray(important, dtype=bool)
        if flags.shape != (packets,):
            raise ValueError(f"importance for {flags.shape} packets where the message has {packets}")
        base = self._take_bits(words)
        packed = np.zeros(4 * words, dtype=np.uint8)
        bits = np.packbits(flags, bitorder="little")
        packed[: len(bits)] = bits
        self.memory.M[base : base + words] = packed.view("<u4")
        return base, int(flags.sum())

    def _take(self, number: int) -> int:
        if self._free:
            flow = self._free.pop()
        else:
            flow = self.count
            if flow >= at.MAX_FLOWS:
                raise GradwireError(f"more than {at.MAX_FLOWS} messages under way at once", "fabric", "fewer")
            self.count += 1
            if flow >= len(self.message_of):
                self.message_of = np.concatenate((self.message_of, np.full(flow, -1, dtype=np.int64)))
        self.message_of[flow] = number
        return flow

    def _take_bits(self, words: int) -> int:
        free = self._free_bits[words]
        if free:
            base = free.pop()
            self.memory.M[base : base + words] = 0
            return base
        base = self._bits_next
        if base + words > self.memory.bits_end:
            raise GradwireError("the messages under way have too many packets together", "fabric", "fewer")
        self._bits_next += words
        return base

    def _room_for_timers(self, host: int) -> None:
        """Three entries of the host's heap for each of its flows, and some to spare."""
        M = self.memory.M
        node = int(self.memory.node_base[host])
        base = int(M[node + at.N_HEAP])
        need = 3 * (int(self._active[host]) + 1) + 8
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
