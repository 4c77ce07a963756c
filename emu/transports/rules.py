"""The adapter: gives the simulator's transports their records, and makes of their decisions what sockets can do.

A transport's rules are written once, as the functions of `gradwire.components.transports`. In the simulator they work
on the records of all flows in one array; here each end of a message has a list of its own, laid out the same way, and
the functions have been rewritten for it (`gradwire.emu.transports.plain`). `SendingEnd` and `ReceivingEnd` are the
two ends without any socket, so that tests can drive them beside the simulator's.

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
from types import SimpleNamespace
from typing import TYPE_CHECKING

import numpy as np

from gradwire.components import layout as at
from gradwire.components.find import RECEIVER_SIDE, SENDER_SIDE, parameters_of, resolve
from gradwire.components.transports.base import Context, Deaf
from gradwire.emu.agent.base import MessageRow
from gradwire.emu.agent.nic import RECORD, TIMER, Flow, State
from gradwire.emu.transports.pairs import Pairs
from gradwire.emu.transports.plain import Plain
from gradwire.emu.wire.header import ECHO
from gradwire.scenarios.arrays import Flags
from gradwire.scenarios.json_data import JsonView
from gradwire.scenarios.loss import allowed_loss
from gradwire.scenarios.wire import MIN_FRAME, UDP_OVERHEAD

if TYPE_CHECKING:
    from gradwire.scenarios.schema.transport_base import Transport

BASE = RECORD
"""Where a flow's record begins, behind its parameters."""
BEYOND_SENDER, BEYOND_RECEIVER = BASE + at.SENDER_WORDS, BASE + at.RECEIVER_WORDS
MUST = 1 << 30
"""Added to a packet's number: never droppable."""
PULL_PROBE = at.PULL_PROBE
R_GOT, R_DONE, R_BITS = BASE + at.R_GOT, BASE + at.R_DONE, BEYOND_RECEIVER
MOST_FILL = 16
"""Bytes between header and payload that the widest header of the simulator is wider than ours, at most."""
KIND_MASK, ECHO_BIT, SIZE_AT, SIZE_MASK, COUNT_AT, COUNT_MASK = 7, 8, 4, 0x3FFF, 18, 0xFFF
ARGUMENT_AT, BELOW_ARGUMENT = 40, (1 << 40) - 1
"""Where a receiver's answer has what: `gradwire.components.transports.base.reply`."""


@cache
def transport_class(kind: str, folder: str | None = None) -> type[Transport]:
    """The class of a transport, by its name or as "module:Class" of a file in `folder`.

    Raises
    ------
    ScenarioError
        There is none, or it is not what it is named for.
    """
    return resolve("transport", kind, Path(folder) if folder else None)


@cache
def functions_of(owner: type[Transport]) -> SimpleNamespace:
    """A transport's functions as plain Python, without the places of parameters and record; what it has not got does
    nothing."""
    plain = Plain()
    named = {name: (getattr(owner, name, None) or getattr(Deaf, name), "f") for name in SENDER_SIDE}
    named |= {name: (getattr(owner, name, None) or getattr(Deaf, name), "r") for name in RECEIVER_SIDE}
    return SimpleNamespace(
        **{name: plain.function(function, k=0, **{record: BASE}) for name, (function, record) in named.items()}
    )


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
        values = parameters_of(owner, settings, context)
        self.parameters = [*values, *[0] * (at.PARAM_WORDS - len(values))]
        self.functions = functions_of(owner)
        self.fill = max(int(owner.data_overhead) - UDP_OVERHEAD, 0)
        """zeros before the payload of a data packet, so that it is as long on a link as it is simulated"""
        self.answers: dict[int, Answer] = {}
        """those that there have been, by what a receiver's answer is without its argument"""

    def answer(self, word: int) -> Answer:
        """What a receiver's answer says, but for its argument."""
        low = word & BELOW_ARGUMENT
        known = self.answers.get(low)
        if known is None:
            size = (low >> SIZE_AT & SIZE_MASK) or int(self.owner.control_bytes)
            echo = ECHO if low & ECHO_BIT else 0
            kind, count = low & KIND_MASK, low >> COUNT_AT & COUNT_MASK
            known = self.answers[low] = Answer(kind, kind | echo, max(size, MIN_FRAME) - UDP_OVERHEAD, count)
        return known


def tag_words(row: MessageRow, packets: int) -> list[int]:
    """Which packets are important, as a bitmap; none where one answer holds for all."""
    return [] if isinstance(row.important, bool) else words_of(np.asarray(row.important[:packets], dtype=bool))


def words_of(flags: Flags) -> list[int]:
    """A bitmap, 32 packets to a word."""
    packed = np.packbits(flags, bitorder="little").tobytes()
    return np.frombuffer(packed + bytes(-len(packed) % 4), dtype="<u4").tolist()


class SendingEnd(Flow):
    """The sending end of one message. `state`: its words, parameters first.

    entropy : its path entropy, of which rules may make draws (`gradwire.components.draws.entropy_of`).
    pairs : what messages of its transport share at this host, if they share anything.
    """

    __slots__ = ("_on_timer", "_pull", "packets", "rules", "take", "words")

    def __init__(
        self, rules: Rules, row: MessageRow, now: int, entropy: int = 0, pairs: Pairs | None = None
    ) -> None:
        payload, owner = rules.context.payload, rules.owner
        self.rules = rules
        self.packets = max(1, -(-row.nbytes // payload))
        self.words = words = -(-self.packets // 32)
        tags = tag_words(row, self.packets)
        peer = BEYOND_SENDER + owner.sender_bitmaps * words
        tagged = peer + (owner.receiver_bitmaps * words if owner.probe_word else 0)
        record: State = [0] * at.SENDER_WORDS
        record[at.S_DATA] = row.priority << at.A_PRIORITY | entropy << at.A_ENTROPY
        record[at.S_PACKETS] = self.packets
        record[at.S_LAST] = row.nbytes - payload * (self.packets - 1) + owner.data_overhead
        record[at.S_BITS], record[at.S_WORDS], record[at.S_PEER] = BEYOND_SENDER, words, peer
        record[at.S_LINE] = rules.context.speed
        record[at.S_TAGS] = tagged if tags else int(bool(row.important))
        record[at.S_ALLOWED] = allowed_loss(row.nbytes, row.bound if row.share is None else row.share)
        record[at.S_TURN] = row.turn
        group = None
        if pairs is not None:
            group = pairs.group(row)
            record[at.S_PAIR] = group.words
        everything = [*rules.parameters, *record, *[0] * (tagged - BEYOND_SENDER), *tags]
        super().__init__(row.number, row.priority, everything, group)
        functions = rules.functions
        self._pull, self._on_timer = functions.pull, functions.on_timer
        self.take = functions.on_control
        """takes a control packet: (state, kind, sequence, argument, echo, now)"""
        functions.start(self.state, now)

    def pull(self, now: int) -> int:
        """What the rules want to send now."""
        what: int = self._pull(self.state, now)
        return what

    def on_timer(self, now: int) -> None:
        """The time that the rules asked for has come."""
        self.state[TIMER] = 0
        self._on_timer(self.state, now)

    def told(self, bitmap: int, first: int, words: list[int]) -> None:
        """Words of one of the receiver's bitmaps, from word `first` on, as a packet has brought them."""
        begin = self.state[BASE + at.S_PEER] + bitmap * self.words + first
        self.state[begin : begin + len(words)] = words

    def word(self, offset: int) -> int:
        """A word of the record that is no list."""
        return int(self.state[BASE + offset])

    @property
    def new(self) -> int:
        """Packets that have been sent at least once."""
        return self.word(self.rules.owner.fresh_word)

    @property
    def probes(self) -> int:
        """Probes sent, with repetitions."""
        return self.word(self.rules.owner.probe_word) if self.rules.owner.probe_word else 0


class ReceivingEnd:
    """The receiving end of one message. Sizes in bytes. `state`: its words, parameters first; `pairs` as at the
    sending end."""

    __slots__ = (
        "marked", "nbytes", "packets", "payload", "place", "row", "rules", "source", "state", "take", "words"
    )  # fmt: skip

    def __init__(self, rules: Rules, row: MessageRow, pairs: Pairs | None = None) -> None:
        payload, owner = rules.context.payload, rules.owner
        self.rules, self.row, self.payload, self.nbytes = rules, row, payload, row.nbytes
        self.packets = max(1, -(-row.nbytes // payload))
        self.words = words = -(-self.packets // 32)
        tags = tag_words(row, self.packets)
        tagged = BEYOND_RECEIVER + owner.receiver_bitmaps * words
        record: State = [0] * at.RECEIVER_WORDS
        record[at.R_PACKETS], record[at.R_BYTES], record[at.R_PAYLOAD] = self.packets, row.nbytes, payload
        record[at.R_BITS], record[at.R_WORDS] = BEYOND_RECEIVER, words
        record[at.R_TAGS] = tagged if tags else int(bool(row.important))
        record[at.R_ALLOWED] = allowed_loss(row.nbytes, row.bound if row.share is None else row.share)
        record[at.R_MOST], record[at.R_POOL] = allowed_loss(row.nbytes, row.bound), row.pool
        record[at.R_IMPORTANT] = sum(each.bit_count() for each in tags) if tags else self.packets * record[at.R_TAGS]
        if pairs is not None:
            record[at.R_PAIR], record[at.R_HOST] = pairs.peer(row), pairs.host
        self.state: State = [*rules.parameters, *record, *[0] * (tagged - BEYOND_RECEIVER), *tags]
        self.take = rules.functions.on_data
        """takes a data packet: (state, sequence, size, ce, now) -> answer, 0 for none"""
        self.marked = 0
        self.place = memoryview(b"")
        """where its bytes go; empty before and after"""
        self.source = 0
        """where its packets come from, as `Receiver.source` has it"""

    @property
    def done(self) -> bool:
        """Whether the message is delivered."""
        return self.state[R_DONE] != 0

    @property
    def got(self) -> int:
        """Bytes that have arrived."""
        return int(self.state[R_GOT])

    def size(self, sequence: int) -> int:
        """Payload bytes of a packet."""
        return min(self.payload, self.nbytes - sequence * self.payload)

    def arrived(self) -> Flags | None:
        """Which packets are here, bool[packets]; None if all are."""
        if self.state[R_GOT] == self.nbytes:
            return None
        bits = np.array(self.bitmap(0, 0, self.words), dtype="<u4").view(np.uint8)
        return np.unpackbits(bits, bitorder="little")[: self.packets].astype(bool)

    def bitmap(self, number: int, first: int, count: int) -> list[int]:
        """Words of one of its bitmaps."""
        begin = R_BITS + number * self.words + first
        return self.state[begin : min(begin + count, R_BITS + (number + 1) * self.words)]

    def on_probe(self, argument: int, now: int) -> int:
        """A probe has come: the rules' answer, 0 for none."""
        return int(self.rules.functions.on_probe(self.state, argument, now))

    def word(self, offset: int) -> int:
        """A word of the record."""
        return int(self.state[BASE + offset])
