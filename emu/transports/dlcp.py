"""DLCP over real sockets: `gradwire.components.transports.dlcp`, with Stop, Probe and Bitmap on the side channel.

They go over TCP (`gradwire.emu.transports.side`), so they are repeated by the kernel as well; and on the wall clock a
probe is repeated after 5 ms at the earliest, because hosts answer when the scheduler lets them.

A Bitmap carries words of the receiver's second bitmap: what was there when the probe first came. Where the simulator's
sender reads them at the receiver, they are written here to where it looks for them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gradwire.components.transports.dlcp import ANSWER_WORDS, NUMBER_BITS, NUMBERS
from gradwire.emu.agent.base import Host, MessageRow
from gradwire.emu.planning.plan import TransportPlan
from gradwire.emu.transports.datagrams import DatagramCarrier, Endpoint, Outgoing
from gradwire.emu.transports.rules import KIND_MASK, PULL_PROBE, ReceivingEnd, Rules, SendingEnd
from gradwire.emu.transports.side import SideChannel
from gradwire.emu.wire.header import ACK, BITMAP, PROBE, STOP, Header
from gradwire.scenarios.arrays import Json
from gradwire.scenarios.wire import BITMAP_PACKETS

WALL_PROBE_PS = 5_000_000_000
SNAPSHOT = 1
"""the receiver's bitmap of what was there when the last probe first came"""


def parts_of(receiver: ReceivingEnd, part: int) -> list[tuple[int, bytes]]:
    """(first packet, bits, lowest first) of each part of an answer, or of one, counted from 1."""
    parts = range(-(-receiver.packets // BITMAP_PACKETS)) if part == 0 else [part - 1]
    found = []
    for number in parts:
        words = receiver.bitmap(SNAPSHOT, number * ANSWER_WORDS, ANSWER_WORDS)
        count = min(receiver.packets - number * BITMAP_PACKETS, BITMAP_PACKETS)
        found.append((number * BITMAP_PACKETS, np.array(words, dtype="<u4").tobytes()[: (count + 7) >> 3]))
    return found


def take_part(sender: SendingEnd, first: int, content: bytes, number: int, now: int) -> None:
    """A part of an answer has come: the bits from packet `first` on."""
    if first >= sender.packets or len(content) != (min(sender.packets - first, BITMAP_PACKETS) + 7) >> 3:
        return  # there is no such part
    part = first // BITMAP_PACKETS
    words = np.frombuffer(content + bytes(-len(content) % 4), dtype="<u4").tolist()
    sender.told(SNAPSHOT, part * ANSWER_WORDS, words)
    sender.take(sender.state, BITMAP, part, number & NUMBERS, 0, now)


class _Outgoing(Outgoing):
    """A sender whose probes go over the side channel."""

    __slots__ = ("side",)
    heard = (ACK, STOP)

    def __init__(self, rules: Rules, row: MessageRow, carrier: Dlcp) -> None:
        super().__init__(rules, row, carrier)
        self.side = carrier.side

    def transmit(self, what: int) -> int:
        if what >= PULL_PROBE:
            question = what - PULL_PROBE
            return self.side.probe(self.row, question & NUMBERS, question >> NUMBER_BITS)
        return super().transmit(what)


class Dlcp(DatagramCarrier):
    """The transport `dlcp` at one host."""

    def __init__(self, host: Host, transport: TransportPlan, endpoint: Endpoint, side: SideChannel) -> None:
        super().__init__(host, transport, endpoint)
        self.side = side

    def settings(self) -> Json:
        settings = super().settings()
        if self.host.clock == "wall":
            settings["probe_timeout"] = max(settings.get("probe_timeout", 0), WALL_PROBE_PS)
        return settings

    def open(self) -> None:
        super().open()
        self.side.probed = self.on_control
        self.side.open()

    def connect(self, peers: Sequence[int]) -> None:
        self.side.connect(peers)

    def connected(self) -> bool:
        return self.side.connected()

    def begin(self) -> None:
        super().begin()
        self.side.begin()

    def close(self) -> None:
        super().close()
        self.side.close()

    def make_sender(self, row: MessageRow) -> Outgoing:
        self.side.listen_for(row.number, self.on_control)
        return _Outgoing(self.rules_of(row), row, self)

    def answer(self, receiver: ReceivingEnd, word: int, sequence: int, name: int) -> None:
        if word & KIND_MASK == ACK:
            super().answer(receiver, word, sequence, name)
        else:
            self._stop(receiver)

    def _stop(self, receiver: ReceivingEnd) -> None:
        self.side.answer(receiver.row, Header(receiver.row.number, kind=STOP, important=True))

    def on_control(self, header: Header, content: bytes) -> None:
        """Something has come over the side channel: a Probe for a receiver here, or an answer for a sender."""
        if header.kind == PROBE:
            self._probed(header)
            return
        sender = self.endpoint.senders.get(header.message)
        if sender is None or sender.done:
            return
        now = self.host.loop.now() * 1000
        if header.kind == STOP:
            sender.take(sender.state, STOP, 0, 0, 0, now)
            self.settle(sender)
        elif header.kind == BITMAP:
            take_part(sender, header.offset, content, header.sequence, now)
            self.endpoint.nic.heard(sender)
            self.endpoint.nic.serve()

    def _probed(self, header: Header) -> None:
        receiver = self.endpoint.receiver_of(header.message)
        was, part = receiver.done, header.offset
        if part > -(-receiver.packets // BITMAP_PACKETS):
            return  # there is no such part
        question = part << NUMBER_BITS | header.sequence & NUMBERS
        word = receiver.on_probe(question, self.host.loop.now() * 1000)
        kind = receiver.rules.answer(word).kind if word else -1
        if kind == STOP:
            self._stop(receiver)
            if not was:
                self.deliver(receiver)
        elif kind == BITMAP:
            for first, bits in parts_of(receiver, part):
                answer = Header(header.message, first, len(bits), header.sequence, BITMAP, important=True)
                self.side.answer(receiver.row, answer, bits)
