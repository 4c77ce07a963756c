"""`SendingEnd` and `ReceivingEnd` run a simulated transport's compiled functions for one message end of the testbed,
without sockets.

A transport's rules are written once, as the functions of `gradwire.protocols.transports`; agents run them compiled
(`gradwire.emu.agent.compiled_agent`). In the simulator they work on the records of all flows in one array. Here each
end of a message has separate words (`gradwire.emu.agent.shared_words`) in the same layout, indexed from address zero.
`SendingEnd` and `ReceivingEnd` have no sockets, so that tests can compare them with the simulator's.

Decisions of the rules are read from the words that the engine reads too (`gradwire.protocols.transports.base`): a
packet or Probe to send, the next timer, the gap between packets, the end of sending, the delivery of the message, and a
receiver's answer in one word.

Rules see the time of the schedule, which on the wall clock may be slightly ahead of the arrival of an answer. So an
answer may seem to precede its packet, and rules take a round trip to be at least one picosecond.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from gradwire.emu.agent import compiled_agent
from gradwire.emu.agent.base import MessageRow
from gradwire.emu.agent.core import layout as core
from gradwire.emu.agent.core.layout import ReceivingFlow
from gradwire.emu.agent.loop import ERROR_TEXTS
from gradwire.emu.agent.nic import FlowGroup, ScheduledFlow
from gradwire.emu.agent.shared_words import WordBlock
from gradwire.emu.switches.backend_kind import TestbedError
from gradwire.jit.records.flows import Pair, Parameters, Receiver
from gradwire.jit.records.packets import with_entropy, with_priority
from gradwire.jit.records.replies import reply_kind, reply_size
from gradwire.protocols.registry import resolve_component, transport_parameters
from gradwire.protocols.transports.base import Context
from gradwire.scenarios.arrays import Flags
from gradwire.scenarios.json_data import JsonView
from gradwire.scenarios.loss import allowed_loss
from gradwire.scenarios.wire import MIN_FRAME, UDP_OVERHEAD

if TYPE_CHECKING:
    from gradwire.scenarios.schema.network.transport_base import Transport

MAX_FILL = 16
"""Maximum excess in bytes of a simulated header over gradwire's, filled between header and payload."""
ORIGIN = 0
"""The address from which all words are indexed."""


@cache
def transport_class(kind: str, folder: str | None = None) -> type[Transport]:
    """Return the class of a transport, by name or as "module:Class" of a file in `folder`. Raises ScenarioError: there
    is none, or it is not a transport."""
    return resolve_component("transport", kind, Path(folder) if folder else None)


class Rules:
    """A transport with its parameters, for flows with the same base round-trip time and slowest link."""

    def __init__(self, owner: type[Transport], settings: JsonView, context: Context) -> None:
        self.owner, self.context = owner, context
        self.parameters = WordBlock(Parameters.WORDS)
        for index, value in enumerate(transport_parameters(owner, settings, context)):
            self.parameters.words[index] = value
        self.functions = compiled_agent.rules(owner)
        self.table = WordBlock(len(core.RULES))
        """addresses of its functions, for compiled code"""
        for index, name in enumerate(core.RULES):
            self.table.words[index] = self.functions[name].address
        self.fill = max(int(owner.data_overhead) - UDP_OVERHEAD, 0)
        """zeros before the payload of a data packet, which give it the simulated length"""

    def call(self, name: str, record: int, *arguments: int) -> int:
        """Call a function on the record at an index; raise TestbedError if it raises an exception."""
        try:
            return self.functions[name](ORIGIN, self.parameters.index, record, *arguments)
        except RuntimeError:
            message = ERROR_TEXTS[core.FAILED_RULE].format(name=name)
            raise TestbedError(message, "transport", "another", usage=False) from None

    def answer(self, word: int) -> tuple[int, int]:
        """Return (kind, zeros after the header) of a receiver's answer."""
        size = reply_size(word) or int(self.owner.control_bytes)
        return reply_kind(word), max(size, MIN_FRAME) - UDP_OVERHEAD


class Pairs:
    """State that messages of transport `owner` share at one host, and their groups at its NIC.

    As in the simulator (`gradwire.sim.engine.memory.pairs`), there are words shared by messages to one host, by
    messages from one host, and by all incoming messages, `host` (see `gradwire.protocols.transports.base`). They are
    made with the first message that needs them, start at zero and exist for the run.
    """

    def __init__(self, owner: type[Transport]) -> None:
        self._owner = owner
        self._senders: dict[int, WordBlock] = {}
        self._peers: dict[int, WordBlock] = {}
        self._groups: dict[tuple[int, int], FlowGroup] = {}
        self.host = WordBlock(owner.host_words)

    def group(self, row: MessageRow) -> FlowGroup:
        """Return the group of a message sent from here; it has the words of its pair."""
        key = row.dst, row.priority
        if key not in self._groups:
            pair = self._senders.get(row.dst) or WordBlock(Pair.WORDS + self._owner.pair_words)
            self._senders[row.dst] = pair
            self._groups[key] = FlowGroup(pair, row.priority)
        return self._groups[key]

    def peer(self, row: MessageRow) -> WordBlock:
        if row.src not in self._peers:
            self._peers[row.src] = WordBlock(self._owner.peer_words)
        return self._peers[row.src]


def tag_words(row: MessageRow, packets: int) -> list[int]:
    """Return a bitmap of important packets; empty if all packets have the same tag."""
    return [] if isinstance(row.important, bool) else words_of(np.asarray(row.important[:packets], dtype=bool))


def words_of(flags: Flags) -> list[int]:
    """Return a bitmap with 32 packets per word."""
    packed = np.packbits(flags, bitorder="little").tobytes()
    return np.frombuffer(packed + bytes(-len(packed) % 4), dtype="<u4").tolist()


class SendingEnd(ScheduledFlow):
    """The sending end of one message.

    now : its beginning in picoseconds; None: set by a later `start`.
    entropy : its path entropy, from which rules may draw (`gradwire.jit.counter_rng.draw_entropy`).
    pairs : shared state of its transport's messages at this host, if any.
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
        peer_offset = core.SENDER_WORDS + owner.sender_bitmaps * words
        tags_offset = peer_offset + (owner.receiver_bitmaps * words if owner.probe_word else 0)
        group = pairs.group(row) if pairs is not None else None
        super().__init__(row.number, row.priority, group, tags_offset + len(tags) - core.SENDER_WORDS)
        index, flow, record = self.index, self.nic_flow, self.record
        flow.rules, flow.parameters = rules.table.index, rules.parameters.index
        flow.packets = self.packets
        record.data_header = with_entropy(with_priority(0, row.priority), entropy)
        record.packets = self.packets
        record.last_bytes = row.nbytes - payload * (self.packets - 1) + owner.data_overhead
        record.bitmaps_base, record.peer_bitmaps_base = index + core.SENDER_WORDS, index + peer_offset
        record.bitmap_words = words
        record.ps_per_byte = rules.context.speed
        record.tags = index + tags_offset if tags else int(bool(row.important))
        record.allowed_loss = allowed_loss(row.nbytes, row.bound if row.share is None else row.share)
        record.turn = row.turn
        record.pair = group.pair.index if group is not None else 0
        for position, word in enumerate(tags, tags_offset):
            self.block.words[position] = word
        if now is not None:
            self.start(now)

    def start(self, now: int) -> None:
        self._call("start", now)

    def _call(self, name: str, *arguments: int) -> int:
        return self.rules.call(name, self.record_index, *arguments)

    def pull(self, now: int) -> int:
        return self._call("pull", now)

    def on_timer(self, now: int) -> None:
        self.record.timer = 0
        self._call("on_timer", now)

    def take(self, kind: int, sequence: int, argument: int, echo: int, now: int) -> None:
        self._call("on_control", kind, sequence, argument, echo, now)

    def store_bitmap(self, bitmap: int, first: int, words: list[int]) -> None:
        """Store received words of one of the receiver's bitmaps, from word `first` on."""
        begin = self.record.peer_bitmaps_base - self.index + bitmap * self.words + first
        for position, word in enumerate(words, begin):
            self.block.words[position] = word

    def bitmap(self, number: int) -> list[int]:
        begin = core.SENDER_WORDS + number * self.words
        return self.block.words[begin : begin + self.words].tolist()

    @property
    def new(self) -> int:
        """Return the number of packets sent at least once."""
        return self.word(self.rules.owner.fresh_word)

    @property
    def probes(self) -> int:
        """Return the number of Probes sent, including repetitions."""
        return self.word(self.rules.owner.probe_word) if self.rules.owner.probe_word else 0


class ReceivingEnd:
    """The receiving end of one message. Sizes in bytes; `pairs` as at the sending end.

    flow, record : its record at the endpoint, and that of the transport.
    """

    __slots__ = ("block", "flow", "index", "nbytes", "packets", "payload", "place", "record", "row", "rules", "words")

    def __init__(self, rules: Rules, row: MessageRow, pairs: Pairs | None = None) -> None:
        payload, owner = rules.context.payload, rules.owner
        self.rules, self.row, self.payload, self.nbytes = rules, row, payload, row.nbytes
        self.packets = max(1, -(-row.nbytes // payload))
        self.words = words = -(-self.packets // 32)
        tags = tag_words(row, self.packets)
        tags_offset = core.RECEIVER_WORDS + owner.receiver_bitmaps * words
        self.block = WordBlock(tags_offset + len(tags))
        self.index = index = self.block.index
        self.flow = flow = ReceivingFlow(self.block.words, 0)
        self.record = record = Receiver(self.block.words, ReceivingFlow.WORDS)
        flow.number, flow.nbytes, flow.fill = row.number, row.nbytes, rules.fill
        flow.rules, flow.parameters = rules.table.index, rules.parameters.index
        flow.packets, flow.payload = self.packets, payload
        record.packets, record.nbytes, record.payload = self.packets, row.nbytes, payload
        record.bitmaps_base, record.bitmap_words = index + core.RECEIVER_WORDS, words
        record.tags = index + tags_offset if tags else int(bool(row.important))
        record.allowed_loss = allowed_loss(row.nbytes, row.bound if row.share is None else row.share)
        record.max_loss, record.pool = allowed_loss(row.nbytes, row.bound), row.pool
        record.important_packets = sum(word.bit_count() for word in tags) if tags else self.packets * record.tags
        if pairs is not None:
            record.pair, record.host = pairs.peer(row).index, pairs.host.index
        for position, word in enumerate(tags, tags_offset):
            self.block.words[position] = word
        self.place = memoryview(b"")
        """its receive buffer; empty before and after"""

    @property
    def done(self) -> bool:
        return self.record.is_done != 0

    @property
    def received_bytes(self) -> int:
        return self.record.received_bytes

    @property
    def marked_packets(self) -> int:
        return self.flow.marked

    def arrived(self) -> Flags | None:
        """Return bool[packets] of received packets; None if all have been received."""
        if self.received_bytes == self.nbytes:
            return None
        bits = np.array(self.bitmap(0, 0, self.words), dtype="<u4").view(np.uint8)
        return np.unpackbits(bits, bitorder="little")[: self.packets].astype(bool)

    def bitmap(self, number: int, first: int, count: int) -> list[int]:
        begin = core.RECEIVER_WORDS + number * self.words + first
        end = core.RECEIVER_WORDS + (number + 1) * self.words
        return self.block.words[begin : min(begin + count, end)].tolist()

    def _call(self, name: str, *arguments: int) -> int:
        return self.rules.call(name, self.index + self.record.base, *arguments)

    def take(self, sequence: int, size: int, ce: int, now: int) -> int:
        """Handle a data packet; return the rules' answer, 0 for none."""
        return self._call("on_data", sequence, size, ce, now)

    def on_probe(self, argument: int, now: int) -> int:
        """Handle a Probe; return the rules' answer, 0 for none."""
        return self._call("on_probe", argument, now)

    def word(self, offset: int) -> int:
        return self.block.words[self.record.base + offset]
