"""`Flow` holds both ends of an oracle's message, in words that a transport's uncompiled functions read and write.

A transport's functions only know offsets from `gradwire.jit.records.constants`, so the same functions work here. Only the words
that transports may read are filled in; the oracle keeps the rest of the engine's state in attributes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from gradwire.jit.records import constants as at
from gradwire.jit.records.flows import Pair, Parameters, Receiver, Sender, Stamp, Stamps
from gradwire.jit.records.packets import priority_of, with_entropy, with_priority
from gradwire.protocols.transports.base import NoOpTransport, control_important, rides
from gradwire.scenarios.arrays import Ints
from gradwire.scenarios.loss import LossAllowance, allowed_loss
from gradwire.scenarios.schema.network.transport_base import Transport
from gradwire.sim.engine.guarded_rules import check_returned
from gradwire.testing.oracle.aggregation import AggregationGroup
from gradwire.testing.oracle.packets import Packet
from gradwire.testing.oracle.rules import rule

SENDER_SIDE = ("start", "pull", "on_control", "on_timer", "at_nic", "resume")
RECEIVER_SIDE = ("on_data", "on_probe", "on_trimmed", "on_late")
ALL_IMPORTANT, NONE_IMPORTANT = 1, 0


class Memory(list[int]):
    """Memory: a list of integers that fit a machine word, from which blocks are allocated."""

    def take(self, count: int) -> int:
        """Return the index of the first of `count` fresh zeros."""
        base = len(self)
        self.extend([0] * count)
        return base

    def __setitem__(self, index: Any, value: Any) -> None:
        assert type(value) in (int, bool) and -(1 << 63) <= value < 1 << 63, f"not a machine word: {value!r}"
        super().__setitem__(index, int(value))


class Protocol:
    """One transport of a run for flows of one kind: its class, its parameters, its functions uncompiled."""

    def __init__(
        self,
        memory: Memory,
        number: int,
        owner: type[Transport],
        table: Transport,
        parameters: Sequence[int],
        slots: int = 0,
    ) -> None:
        settings = table.model_dump()
        self.number, self.owner = number, owner
        self.payload = int(table.payload)
        self.control_priority = int(settings.get("control_priority", 0))
        self.important = bool(owner.important(settings))
        self.control_important = control_important(owner, settings)
        self.control_bytes = int(owner.control_bytes)
        self.overhead = int(owner.data_overhead)
        self.sender_bitmaps = int(owner.sender_bitmaps)
        self.receiver_bitmaps = int(owner.receiver_bitmaps)
        self.memory = memory
        self.parameters = memory.take(Parameters.WORDS)
        for offset, value in enumerate(parameters):
            memory[self.parameters + offset] = value
        self._functions = {
            name: rule(owner if hasattr(owner, name) else NoOpTransport, name) for name in SENDER_SIDE + RECEIVER_SIDE
        }
        self.slots = int(slots)
        self.rides = rides(owner, table)

    def call(self, name: str, record: int, *arguments: int) -> Any:
        """Call one of the transport's functions on a sender or receiver record."""
        return self._functions[name](self.memory, self.parameters, record, *arguments)


class Flow:
    """Both ends of one message: two records in memory, and the hosts' state of it."""

    def __init__(
        self,
        memory: Memory,
        protocol: Protocol,
        *,
        number: int,
        src: int,
        dst: int,
        nbytes: int,
        priority: int,
        loss: LossAllowance,
        turn: int,
        important: Sequence[bool] | bool | None,
        entropy: int,
        line_speed: int,
        stream: Stream | None = None,
        group: PairGroup | None = None,
        shared: tuple[int, int, int] = (0, 0, 0),
    ) -> None:
        """`shared`: the words of its pair at the sender and at the receiver, and of its receiver's host."""
        self.group = group
        """the messages that share its turn at the NIC; None: it has its own turn"""
        self.stream = stream
        """the connection that carries it and others; None: it has its own connection"""
        self.first = 0
        """number of its first packet on that connection, once it has started"""
        self.fan: AggregationGroup | None = None
        """its aggregation group, and its index there"""
        self.place = 0
        self.carries: Callable[[int], Ints] | None = None
        """callback for the values of a packet that is sent, if it has values"""
        self.brought: dict[int, Ints] = {}
        """received values, by packet; those of an aggregation group are at its one host"""
        self.memory, self.protocol = memory, protocol
        self.number, self.src, self.dst, self.nbytes = number, src, dst, nbytes
        self.entropy = entropy
        self.packets = -(-nbytes // protocol.payload)
        flags = protocol.important if important is None else important
        self.tags = [flags] * self.packets if isinstance(flags, bool) else [bool(flag) for flag in flags]
        words = -(-self.packets // 32)
        self.sender = Sender(memory, memory.take(Sender.WORDS))
        self.receiver = Receiver(memory, memory.take(Receiver.WORDS))
        sender_bits = memory.take(words * protocol.sender_bitmaps)
        self.receiver_bits = memory.take(words * protocol.receiver_bitmaps)
        if isinstance(flags, bool):
            tags = ALL_IMPORTANT if flags else NONE_IMPORTANT
        else:
            tags = memory.take(words)
            for packet, flag in enumerate(self.tags):
                memory[tags + packet // 32] += flag << packet % 32
        slots = 8
        while slots < 2 * self.packets:
            slots *= 2
        self.slots = min(slots, protocol.slots)
        self.stamps = memory.take(self.slots * Stamps.WORDS)
        self.sender.data_header = with_entropy(with_priority(0, priority), entropy)
        self.sender.order = number << at.KEY_ORDER
        self.sender.stamps = self.stamps if self.slots else 0
        self.sender.stamp_mask = self.slots - 1
        self.sender.packets = self.packets
        self.sender.bitmaps_base = sender_bits
        self.sender.bitmap_words = words
        self.sender.kind = protocol.number
        self.sender.peer_bitmaps_base = self.receiver_bits
        self.sender.ps_per_byte = line_speed
        self.sender.tags = tags
        self.sender.allowed_loss = allowed_loss(nbytes, loss.share)
        self.sender.turn = turn
        self.sender.pair = shared[0]
        self.receiver.packets = self.packets
        self.receiver.nbytes = nbytes
        self.receiver.payload = protocol.payload
        self.receiver.bitmaps_base = self.receiver_bits
        self.receiver.bitmap_words = words
        self.receiver.kind = protocol.number
        self.receiver.tags = tags
        self.receiver.allowed_loss = allowed_loss(nbytes, loss.share)
        self.receiver.max_loss = allowed_loss(nbytes, loss.bound)
        self.receiver.pool = loss.pool
        self.receiver.important_packets = sum(self.tags)
        self.receiver.pair = shared[1]
        self.receiver.host = shared[2]
        # state of its host
        self.ready = False  # it waits for its turn at the NIC
        self.resting = False  # it waits for the time in `not_before`
        self.not_before = 0
        self.sequences_sent: list[int] = []

    def payload_of(self, sequence: int) -> int:
        """Return the payload bytes of one packet: the last one carries the rest."""
        if sequence < self.packets - 1:
            return self.protocol.payload
        return self.nbytes - (self.packets - 1) * self.protocol.payload

    def wire_bytes(self, sequence: int) -> int:
        """Return the bytes on the wire of one data packet; no frame is shorter than 60."""
        return max(self.payload_of(sequence) + self.protocol.overhead, 60)

    def on_sender(self, name: str, *arguments: int) -> Any:
        """Call a function of the sending side."""
        result = self.protocol.call(name, self.sender.base, *arguments)
        if name == "pull":
            check_returned(self.protocol.owner, "pull", result, self.sender.packets)
        return result

    def on_receiver(self, name: str, *arguments: int) -> Any:
        """Call a function of the receiving side."""
        return self.protocol.call(name, self.receiver.base, *arguments)

    @property
    def priority(self) -> int:
        """The priority of the next packet; a transport may change it as it sends."""
        return priority_of(self.sender.data_header)

    @property
    def piggyback(self) -> int:
        """The piggyback value of the transport's next packet."""
        return self.sender.piggyback

    def clear_stamps(self, piggyback: int) -> None:
        if self.slots:
            self._slot(piggyback).hops = 0

    def stamp(self, piggyback: int, *values: int) -> None:
        """Write a switch's stamp into a packet's slot: port, queued bytes, bytes sent before, time, speed."""
        if not self.slots or self._slot(piggyback).hops == at.STAMP_MOST:
            return
        slot = self._slot(piggyback)
        for offset, value in enumerate(values):
            slot.stamps[slot.hops * Stamp.WORDS + offset] = value
        slot.hops += 1

    def _slot(self, piggyback: int) -> Stamps:
        return Stamps(self.memory, self.stamps + piggyback % self.slots * Stamps.WORDS)

    def on_wire(self, reply: int) -> int:
        """Return a receiver's answer as it is sent."""
        return reply

    @property
    def finished(self) -> bool:
        """True if the sender has nothing more to send, ever."""
        return bool(self.sender.is_done)

    def arrive(self, sequence: int, size: int, ce: int, now: int) -> tuple[int, list[Flow]]:
        """Receive a packet; return the receiver's answer, and the messages that it completes."""
        before = self.receiver.is_done
        reply = self.on_receiver("on_data", sequence, size, ce, now)
        return reply, [self] if self.receiver.is_done and not before else []

    def control_packet(self, kind: int, **fields: Any) -> Packet:
        """Return a control packet from the receiver to the sender."""
        protocol = self.protocol
        size, priority, important = protocol.control_bytes, protocol.control_priority, protocol.control_important
        return replace(Packet(self.number, kind, self.src, size, priority, important, self.entropy), **fields)

    def missing(self) -> tuple[int, ...]:
        """Return the packets that have not arrived."""
        return tuple(
            packet
            for packet in range(self.packets)
            if not self.memory[self.receiver_bits + packet // 32] >> packet % 32 & 1
        )


class PairGroup:
    """The messages of a pair in one class, at the sender's NIC: they share a turn, at the pair's pace."""

    piggyback = 0
    finished = False

    def __init__(self, memory: Memory, pair: int, priority: int) -> None:
        self.memory, self.pair, self.priority = memory, Pair(memory, pair), priority
        self.members: list[Flow] = []
        """those that may have something to send, oldest first"""
        self.ready = False
        self.resting = False

    @property
    def not_before(self) -> int:
        """No packet of the pair may start before this time."""
        return self.pair.next_start

    def sent(self, now: int, nbytes: int) -> None:
        gap = self.pair.gap
        if gap:
            self.pair.next_start = now + -(-nbytes * gap // 65536)

    def add(self, flow: Flow) -> None:
        """Add a message that may have something to send."""
        if flow not in self.members:
            self.members.append(flow)
            self.members.sort(key=lambda member: member.number)


class Stream(Flow):
    """A connection that carries consecutive messages: to its transport an endless flow.

    Its bitmaps have a bit for every packet that will ever exist, and packet numbers are truncated only on the wire,
    where the cumulative point has 22 bits. A packet on the wire belongs to its message.
    """

    def __init__(self, *arguments: Any, packets: int, first: int, **more: Any) -> None:
        super().__init__(*arguments, nbytes=packets * arguments[1].payload, **more)
        self.base = first
        """number of its first packet on the wire"""
        self.sender.packets = 0
        self.sender.stream = self.sender
        self.receiver.nbytes = -1  # never delivered
        self.sending: list[Flow] = []
        self.arriving: list[Flow] = []

    def hand_over(self, message: Flow, now: int) -> None:
        """Start a message: its packets come after those of all earlier ones."""
        total = self.sender.packets
        if not self.sending:
            self.number = message.number
            self.sender.order = message.number << at.KEY_ORDER
            self.on_sender("start", now)
        elif total == self.sender.una:
            self.on_sender("resume", now)
        message.first = total
        self.sender.packets = total + message.packets
        self.sending.append(message)
        self.arriving.append(message)

    def leave(self, position: int, now: int) -> tuple[Flow, int]:
        """Send a packet; return its message, and its number in it."""
        self.sender.last_sent_at = now
        (message,) = (item for item in self.sending if item.first <= position < item.first + item.packets)
        message.sender.sent += 1
        return message, position - message.first

    def acknowledged(self, argument: int) -> int:
        """Return the cumulative point of an acknowledgement: the one nearest to the known one."""
        una, wrap = self.sender.una, at.MASK_SEQUENCE + 1
        return min(
            ((argument - self.base) % wrap + turn * wrap for turn in range(3)), key=lambda point: abs(point - una)
        )

    def on_wire(self, reply: int) -> int:
        """Truncate the cumulative point to 22 bits."""
        cumulative = (reply >> 40) + self.base & at.MASK_SEQUENCE
        return (reply & (1 << 40) - 1 | cumulative << 40) if reply else 0

    def deliver(self) -> list[Flow]:
        """Return the messages that are complete now, with all before them."""
        done = [item for item in self.arriving if item.first + item.packets <= self.receiver.cumulative]
        self.arriving = self.arriving[len(done) :]
        return done


class StreamMessage(Flow):
    """A message on a connection that carries others, too."""

    def arrive(self, sequence: int, size: int, ce: int, now: int) -> tuple[int, list[Flow]]:
        assert self.stream is not None
        before = self.stream.receiver.received_bytes
        reply = self.stream.on_receiver("on_data", self.first + sequence, size, ce, now)
        self.receiver.received_bytes += self.stream.receiver.received_bytes - before
        return self.stream.on_wire(reply), self.stream.deliver()

    def missing(self) -> tuple[int, ...]:
        """Return no packets: delivered messages are complete."""
        return ()
