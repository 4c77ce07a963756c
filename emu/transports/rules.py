"""The adapter: gives the simulator's transports their records, and makes of their decisions what sockets can do.

A transport's rules are written once, as the functions of `gradwire.components.transports`, and sockets run what they
are compiled to (`gradwire.emu.agent.machine`). In the simulator they work on the records of all flows in one array;
here each end of a message has words of its own (`gradwire.emu.agent.words`), laid out the same way, whose places are
counted from address zero. `SendingEnd` and `ReceivingEnd` are the two ends without any socket, so that tests can drive
them beside the simulator's.

What the rules decide is read from the words by which they tell the engine (`gradwire.components.transports.base`): a
packet number or a probe to send, when to be called again, how far apart packets start, that there is nothing more to
send, that the message is delivered, and a receiver's answer in one word.

Rules see the time of the schedule, which on the wall clock may be a little ahead of when an answer comes in; so they
may be told of an answer to a packet before its time, and take no round trip to be less than a picosecond.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from gradwire.components import layout as at
from gradwire.components.find import parameters_of, resolve
from gradwire.components.transports.base import Context
from gradwire.emu.agent import machine
from gradwire.emu.agent.base import MessageRow
from gradwire.emu.agent.core.layout import (
    BROKEN_RULES,
    E_FILL,
    E_MARKED,
    E_NBYTES,
    E_NUMBER,
    E_PACKETS,
    E_PARAMETERS,
    E_PAYLOAD,
    E_RULES,
    F_PACKETS,
    F_PARAMETERS,
    F_RULES,
    RECEIVER_BEYOND,
    RECEIVER_RECORD,
    RULES,
    SENDER_BEYOND,
    SENDER_RECORD,
)
from gradwire.emu.agent.loop import WHY
from gradwire.emu.agent.nic import TIMER, Flow
from gradwire.emu.agent.words import Block
from gradwire.emu.switches.base import TestbedError
from gradwire.emu.transports.pairs import Pairs
from gradwire.emu.wire.header import ECHO
from gradwire.scenarios.arrays import Flags
from gradwire.scenarios.json_data import JsonView
from gradwire.scenarios.loss import allowed_loss
from gradwire.scenarios.wire import MIN_FRAME, UDP_OVERHEAD

if TYPE_CHECKING:
    from gradwire.scenarios.schema.transport_base import Transport

MUST = 1 << 30
"""Added to a packet's number: never droppable."""
PULL_PROBE = at.PULL_PROBE
MOST_FILL = 16
"""Bytes between header and payload that the widest header of the simulator is wider than ours, at most."""
KIND_MASK, ECHO_BIT, SIZE_AT, SIZE_MASK, COUNT_AT, COUNT_MASK = 7, 8, 4, 0x3FFF, 18, 0xFFF
"""Where a receiver's answer has what: `gradwire.components.transports.base.reply`."""
ORIGIN = 0
"""The address that the places of all words are counted from."""


@cache
def transport_class(kind: str, folder: str | None = None) -> type[Transport]:
    """The class of a transport, by its name or as "module:Class" of a file in `folder`.

    Raises
    ------
    ScenarioError
        There is none, or it is not what it is named for.
    """
    return resolve("transport", kind, Path(folder) if folder else None)


@dataclass(frozen=True)
class Answer:
    """A receiver's answer without its argument: what goes into a header's flags, how many bytes of zeros follow the
    header to make it as large as it is, and how many packets it is."""

    kind: int
    flags: int
    fill: int
    count: int


class Rules:
    """A transport with its parameters, for flows of one base round trip and slowest link."""

    def __init__(self, owner: type[Transport], settings: JsonView, context: Context) -> None:
        self.owner, self.context = owner, context
        self.parameters = Block(at.PARAM_WORDS)
        for place, value in enumerate(parameters_of(owner, settings, context)):
            self.parameters.words[place] = value
        self.functions = machine.rules(owner)
        self.table = Block(len(RULES))
        """the addresses of its functions, for compiled code"""
        for place, name in enumerate(RULES):
            self.table.words[place] = self.functions[name].address
        self.fill = max(int(owner.data_overhead) - UDP_OVERHEAD, 0)
        """zeros before the payload of a data packet, so that it is as long on a link as it is simulated"""

    def call(self, name: str, record: int, *arguments: int) -> int:
        """One of its functions, of the record at an index. TestbedError if it raises an exception."""
        try:
            return self.functions[name](ORIGIN, self.parameters.index, record, *arguments)
        except RuntimeError:
            what = WHY[BROKEN_RULES].format(name=name)
            raise TestbedError(what, "transport", "another", usage=False) from None

    def answer(self, word: int) -> Answer:
        """What a receiver's answer says, but for its argument."""
        size = (word >> SIZE_AT & SIZE_MASK) or int(self.owner.control_bytes)
        echo = ECHO if word & ECHO_BIT else 0
        kind, count = word & KIND_MASK, word >> COUNT_AT & COUNT_MASK
        return Answer(kind, kind | echo, max(size, MIN_FRAME) - UDP_OVERHEAD, count)


def tag_words(row: MessageRow, packets: int) -> list[int]:
    """Which packets are important, as a bitmap; none where one answer holds for all."""
    return [] if isinstance(row.important, bool) else words_of(np.asarray(row.important[:packets], dtype=bool))


def words_of(flags: Flags) -> list[int]:
    """A bitmap, 32 packets to a word."""
    packed = np.packbits(flags, bitorder="little").tobytes()
    return np.frombuffer(packed + bytes(-len(packed) % 4), dtype="<u4").tolist()


class SendingEnd(Flow):
    """The sending end of one message.

    now : when it begins, in picoseconds; None: `start` says so later.
    entropy : its path entropy, of which rules may make draws (`gradwire.components.draws.entropy_of`).
    pairs : what messages of its transport share at this host, if they share anything.
    """

    __slots__ = ("packets", "rules", "words")

    def __init__(
        self, rules: Rules, row: MessageRow, now: int | None, entropy: int = 0, pairs: Pairs | None = None
    ) -> None:
        payload, owner = rules.context.payload, rules.owner
        self.rules = rules
        self.packets = max(1, -(-row.nbytes // payload))
        self.words = words = -(-self.packets // 32)
        tags = tag_words(row, self.packets)
        peer = SENDER_BEYOND + owner.sender_bitmaps * words
        tagged = peer + (owner.receiver_bitmaps * words if owner.probe_word else 0)
        group = pairs.group(row) if pairs is not None else None
        super().__init__(row.number, row.priority, group, tagged + len(tags) - SENDER_BEYOND)
        index, mine = self.index, self.block.words
        mine[F_RULES], mine[F_PARAMETERS], mine[F_PACKETS] = rules.table.index, rules.parameters.index, self.packets
        record = mine[SENDER_RECORD:]
        record[at.S_DATA] = row.priority << at.A_PRIORITY | entropy << at.A_ENTROPY
        record[at.S_PACKETS] = self.packets
        record[at.S_LAST] = row.nbytes - payload * (self.packets - 1) + owner.data_overhead
        record[at.S_BITS], record[at.S_WORDS], record[at.S_PEER] = index + SENDER_BEYOND, words, index + peer
        record[at.S_LINE] = rules.context.speed
        record[at.S_TAGS] = index + tagged if tags else int(bool(row.important))
        record[at.S_ALLOWED] = allowed_loss(row.nbytes, row.bound if row.share is None else row.share)
        record[at.S_TURN] = row.turn
        record[at.S_PAIR] = group.pair.index if group is not None else 0
        for place, word in enumerate(tags, tagged):
            mine[place] = word
        if now is not None:
            self.start(now)

    def start(self, now: int) -> None:
        """The message begins."""
        self._call("start", now)

    def _call(self, name: str, *arguments: int) -> int:
        return self.rules.call(name, self.index + SENDER_RECORD, *arguments)

    def pull(self, now: int) -> int:
        """What the rules want to send now."""
        return self._call("pull", now)

    def on_timer(self, now: int) -> None:
        """The time that the rules asked for has come."""
        self.block.words[TIMER] = 0
        self._call("on_timer", now)

    def take(self, kind: int, sequence: int, argument: int, echo: int, now: int) -> None:
        """A control packet has come."""
        self._call("on_control", kind, sequence, argument, echo, now)

    def told(self, bitmap: int, first: int, words: list[int]) -> None:
        """Words of one of the receiver's bitmaps, from word `first` on, as a packet has brought them."""
        begin = self.word(at.S_PEER) - self.index + bitmap * self.words + first
        for place, word in enumerate(words, begin):
            self.block.words[place] = word

    def bitmap(self, number: int) -> list[int]:
        """One of its bitmaps."""
        begin = SENDER_BEYOND + number * self.words
        return self.block.words[begin : begin + self.words].tolist()

    @property
    def new(self) -> int:
        """Packets that have been sent at least once."""
        return self.word(self.rules.owner.fresh_word)

    @property
    def probes(self) -> int:
        """Probes sent, with repetitions."""
        return self.word(self.rules.owner.probe_word) if self.rules.owner.probe_word else 0


class ReceivingEnd:
    """The receiving end of one message. Sizes in bytes; `pairs` as at the sending end."""

    __slots__ = ("block", "nbytes", "packets", "payload", "place", "row", "rules", "words")

    def __init__(self, rules: Rules, row: MessageRow, pairs: Pairs | None = None) -> None:
        payload, owner = rules.context.payload, rules.owner
        self.rules, self.row, self.payload, self.nbytes = rules, row, payload, row.nbytes
        self.packets = max(1, -(-row.nbytes // payload))
        self.words = words = -(-self.packets // 32)
        tags = tag_words(row, self.packets)
        tagged = RECEIVER_BEYOND + owner.receiver_bitmaps * words
        self.block = Block(tagged + len(tags))
        index, mine = self.index, self.block.words
        mine[E_NUMBER], mine[E_RULES], mine[E_PARAMETERS] = row.number, rules.table.index, rules.parameters.index
        mine[E_PACKETS], mine[E_PAYLOAD], mine[E_NBYTES], mine[E_FILL] = self.packets, payload, row.nbytes, rules.fill
        record = mine[RECEIVER_RECORD:]
        record[at.R_PACKETS], record[at.R_BYTES], record[at.R_PAYLOAD] = self.packets, row.nbytes, payload
        record[at.R_BITS], record[at.R_WORDS] = index + RECEIVER_BEYOND, words
        record[at.R_TAGS] = index + tagged if tags else int(bool(row.important))
        record[at.R_ALLOWED] = allowed_loss(row.nbytes, row.bound if row.share is None else row.share)
        record[at.R_MOST], record[at.R_POOL] = allowed_loss(row.nbytes, row.bound), row.pool
        record[at.R_IMPORTANT] = sum(each.bit_count() for each in tags) if tags else self.packets * record[at.R_TAGS]
        if pairs is not None:
            record[at.R_PAIR], record[at.R_HOST] = pairs.peer(row).index, pairs.host.index
        for place, word in enumerate(tags, tagged):
            mine[place] = word
        self.place = memoryview(b"")
        """where its bytes go; empty before and after"""

    @property
    def index(self) -> int:
        """Where its words are."""
        return self.block.index

    @property
    def done(self) -> bool:
        """Whether the message is delivered."""
        return self.word(at.R_DONE) != 0

    @property
    def got(self) -> int:
        """Bytes that have arrived."""
        return self.word(at.R_GOT)

    @property
    def marked(self) -> int:
        """Data packets that came with a mark."""
        return self.block.words[E_MARKED]

    def size(self, sequence: int) -> int:
        """Payload bytes of a packet."""
        return min(self.payload, self.nbytes - sequence * self.payload)

    def arrived(self) -> Flags | None:
        """Which packets are here, bool[packets]; None if all are."""
        if self.got == self.nbytes:
            return None
        bits = np.array(self.bitmap(0, 0, self.words), dtype="<u4").view(np.uint8)
        return np.unpackbits(bits, bitorder="little")[: self.packets].astype(bool)

    def bitmap(self, number: int, first: int, count: int) -> list[int]:
        """Words of one of its bitmaps."""
        begin = RECEIVER_BEYOND + number * self.words + first
        end = RECEIVER_BEYOND + (number + 1) * self.words
        return self.block.words[begin : min(begin + count, end)].tolist()

    def _call(self, name: str, *arguments: int) -> int:
        return self.rules.call(name, self.index + RECEIVER_RECORD, *arguments)

    def take(self, sequence: int, size: int, ce: int, now: int) -> int:
        """A data packet has come: the rules' answer, 0 for none."""
        return self._call("on_data", sequence, size, ce, now)

    def on_probe(self, argument: int, now: int) -> int:
        """A probe has come: the rules' answer, 0 for none."""
        return self._call("on_probe", argument, now)

    def word(self, offset: int) -> int:
        """A word of the record."""
        return self.block.words[RECEIVER_RECORD + offset]
