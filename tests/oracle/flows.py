"""Flow records: the words of the engine's state that a transport reads and writes, in a Python list.

A transport's functions know offsets from `sim.fabric.layout`, nothing else, so the same functions work here. Only the
words that transports may read are filled in; what the engine keeps in the other words, the oracle keeps in attributes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sim.fabric import layout as at
from sim.fabric.layout import PARAM_WORDS, RECEIVER_WORDS, SENDER_WORDS

from .uncompiled import uncompiled

SENDER_SIDE = ("start", "pull", "on_control", "on_timer")
RECEIVER_SIDE = ("on_data", "on_probe")
ALL_IMPORTANT, NONE_IMPORTANT = 1, 0


class Words(list[int]):
    """Memory: a list of integers that fit a machine word, from which stretches are handed out."""

    def take(self, count: int) -> int:
        """The index of the first of `count` fresh zeros."""
        base = len(self)
        self.extend([0] * count)
        return base

    def __setitem__(self, index: Any, value: Any) -> None:
        assert type(value) in (int, bool) and -(1 << 63) <= value < 1 << 63, f"no machine word: {value!r}"
        super().__setitem__(index, int(value))


class Protocol:
    """One transport of a run: its class, its parameters, its functions uncompiled."""

    def __init__(self, memory: Words, number: int, owner: Any, table: Any, parameters: Sequence[int]) -> None:
        settings = table.model_dump()
        self.number = number
        self.payload = int(table.payload)
        self.control_priority = int(settings.get("control_priority", 0))
        self.important = bool(owner.important(settings))
        self.control_bytes = int(owner.control_bytes)
        self.overhead = int(owner.data_overhead)
        self.sender_bitmaps = int(owner.sender_bitmaps)
        self.receiver_bitmaps = int(owner.receiver_bitmaps)
        self.memory = memory
        self.parameters = memory.take(PARAM_WORDS)
        for offset, value in enumerate(parameters):
            memory[self.parameters + offset] = value
        self._functions = {name: uncompiled(getattr(owner, name)) for name in SENDER_SIDE + RECEIVER_SIDE}

    def call(self, name: str, record: int, *arguments: int) -> Any:
        """Call one of the transport's functions on a sender or receiver record."""
        return self._functions[name](self.memory, self.parameters, record, *arguments)


class Flow:
    """Both ends of one message: two records in memory, and what hosts remember about them."""

    def __init__(
        self,
        memory: Words,
        protocol: Protocol,
        *,
        number: int,
        src: int,
        dst: int,
        nbytes: int,
        priority: int,
        bound: float,
        important: Sequence[bool] | bool | None,
        entropy: int,
        line_speed: int,
    ) -> None:
        self.memory, self.protocol = memory, protocol
        self.number, self.src, self.dst, self.nbytes = number, src, dst, nbytes
        self.entropy = entropy
        self.packets = -(-nbytes // protocol.payload)
        flags = protocol.important if important is None else important
        self.tags = [flags] * self.packets if isinstance(flags, bool) else [bool(flag) for flag in flags]
        words = -(-self.packets // 32)
        self.sender = memory.take(SENDER_WORDS)
        self.receiver = memory.take(RECEIVER_WORDS)
        sender_bits = memory.take(words * protocol.sender_bitmaps)
        self.receiver_bits = memory.take(words * protocol.receiver_bitmaps)
        if isinstance(flags, bool):
            tags = ALL_IMPORTANT if flags else NONE_IMPORTANT
        else:
            tags = memory.take(words)
            for packet, flag in enumerate(self.tags):
                memory[tags + packet // 32] += flag << packet % 32
        for offset, value in {
            at.S_DATA: priority << at.A_PRIORITY,
            at.S_PACKETS: self.packets,
            at.S_BITS: sender_bits,
            at.S_WORDS: words,
            at.S_KIND: protocol.number,
            at.S_PEER: self.receiver_bits,
            at.S_LINE: line_speed,
            at.S_TAGS: tags,
        }.items():
            memory[self.sender + offset] = value
        for offset, value in {
            at.R_PACKETS: self.packets,
            at.R_BYTES: nbytes,
            at.R_PAYLOAD: protocol.payload,
            at.R_BITS: self.receiver_bits,
            at.R_WORDS: words,
            at.R_KIND: protocol.number,
            at.R_TAGS: tags,
            at.R_ALLOWED: int(bound * nbytes),
            at.R_IMPORTANT: sum(self.tags),
        }.items():
            memory[self.receiver + offset] = value
        # what its host knows
        self.ready = False  # it waits for its turn at the NIC
        self.resting = False  # it waits for the time in `not_before`
        self.not_before = 0
        self.sequences_sent: list[int] = []

    def payload_of(self, sequence: int) -> int:
        """Payload bytes of one packet: the last one carries the rest."""
        if sequence < self.packets - 1:
            return self.protocol.payload
        return self.nbytes - (self.packets - 1) * self.protocol.payload

    def wire_bytes(self, sequence: int) -> int:
        """Bytes on the wire of one data packet; no frame is shorter than 60."""
        return max(self.payload_of(sequence) + self.protocol.overhead, 60)

    def on_sender(self, name: str, *arguments: int) -> Any:
        """Call a function of the sending side."""
        return self.protocol.call(name, self.sender, *arguments)

    def on_receiver(self, name: str, *arguments: int) -> Any:
        """Call a function of the receiving side."""
        return self.protocol.call(name, self.receiver, *arguments)

    @property
    def priority(self) -> int:
        """The priority of the next packet; a transport may change it as it sends."""
        return self.memory[self.sender + at.S_DATA] >> at.A_PRIORITY & 7

    @property
    def gap(self) -> int:
        """Pacing: picoseconds per byte << 16, 0 for none."""
        return self.memory[self.sender + at.S_GAP]

    @property
    def sent(self) -> int:
        """Packets put on the wire, data and probes; transports may look at it."""
        return self.memory[self.sender + at.S_SENT]

    @sent.setter
    def sent(self, count: int) -> None:
        self.memory[self.sender + at.S_SENT] = count

    @property
    def timer(self) -> int:
        """When the transport wants to be called, 0 for never."""
        return self.memory[self.sender + at.S_TIMER]

    @timer.setter
    def timer(self, time: int) -> None:
        self.memory[self.sender + at.S_TIMER] = time

    @property
    def finished(self) -> bool:
        """The sender has nothing more to send, ever."""
        return bool(self.memory[self.sender + at.S_DONE])

    @property
    def delivered(self) -> bool:
        """The receiver has the message, as far as it is going to."""
        return bool(self.memory[self.receiver + at.R_DONE])

    @property
    def received(self) -> int:
        """Payload bytes that have arrived, each counted once."""
        return self.memory[self.receiver + at.R_GOT]

    def missing(self) -> tuple[int, ...]:
        """The packets that have not arrived."""
        return tuple(
            packet
            for packet in range(self.packets)
            if not self.memory[self.receiver_bits + packet // 32] >> packet % 32 & 1
        )
