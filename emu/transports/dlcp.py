"""`Dlcp` and `DlcpBySide` carry DLCP over real sockets, with Stops, Probes and Bitmaps as UDP packets or over TCP.

Stops, Probes and Bitmaps use either TCP (`DlcpBySide`, `gradwire.emu.transports.side_channel`), where the kernel also
acknowledges and retransmits them, or packets of their simulated size (`Dlcp`), which only the rules repeat. On the wall
clock a Probe is repeated after at least 5 ms, because hosts answer only when they are scheduled.

A Bitmap has words of the receiver's second bitmap: the packets present when the Probe first arrived. The simulator's
sender reads them at the receiver; here they are copied to where the sender's rules read them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gradwire.emu.agent.base import CarrierHost, MessageRow
from gradwire.emu.planning.plan import TransportPlan
from gradwire.emu.transports.datagrams import DatagramCarrier, DatagramSender
from gradwire.emu.transports.endpoint import Endpoint
from gradwire.emu.transports.side_channel import SideChannel
from gradwire.emu.transports.simulator_rules import ReceivingEnd, SendingEnd
from gradwire.emu.wire.header import ACK, BITMAP, IMPORTANT, KIND, PROBE, STOP, Header
from gradwire.protocols.transports.dlcp.sender import ANSWER_WORDS, NUMBER_BITS, NUMBERS
from gradwire.scenarios.json_data import Json
from gradwire.scenarios.wire import BITMAP_PACKETS, GRADWIRE, UDP_OVERHEAD

WALL_PROBE_PS = 5_000_000_000
SNAPSHOT = 1
"""the receiver's bitmap of packets present when the last Probe first arrived"""


def parts_of(receiver: ReceivingEnd, part: int) -> list[tuple[int, bytes]]:
    """Return (first packet, bits, lowest first) of each part of an answer, or of one part, counted from 1."""
    parts = range(-(-receiver.packets // BITMAP_PACKETS)) if part == 0 else [part - 1]
    answer_parts = []
    for number in parts:
        words = receiver.bitmap(SNAPSHOT, number * ANSWER_WORDS, ANSWER_WORDS)
        count = min(receiver.packets - number * BITMAP_PACKETS, BITMAP_PACKETS)
        answer_parts.append((number * BITMAP_PACKETS, np.array(words, dtype="<u4").tobytes()[: (count + 7) >> 3]))
    return answer_parts


def take_part(sender: SendingEnd, first: int, content: bytes, number: int, now: int) -> None:
    """Handle a part of an answer: the bits from packet `first` on."""
    if first >= sender.packets or len(content) != (min(sender.packets - first, BITMAP_PACKETS) + 7) >> 3:
        return  # invalid part
    part = first // BITMAP_PACKETS
    words = np.frombuffer(content + bytes(-len(content) % 4), dtype="<u4").tolist()
    sender.store_bitmap(SNAPSHOT, part * ANSWER_WORDS, words)
    sender.take(BITMAP, part, number & NUMBERS, 0, now)


class Dlcp(DatagramCarrier):
    """The transport `dlcp` at one host, with Stops, Probes and Bitmaps as UDP packets."""

    passed_kinds = (ACK, STOP)

    def __init__(self, host: CarrierHost, transport: TransportPlan, endpoint: Endpoint, side: SideChannel) -> None:
        super().__init__(host, transport, endpoint)
        self.side = side

    def settings(self) -> Json:
        settings = super().settings()
        if self.host.clock == "wall":
            settings["probe_timeout"] = max(settings.get("probe_timeout", 0), WALL_PROBE_PS)
        return settings

    def probe(self, sender: DatagramSender, question: int) -> int:
        return self.send_probe(sender, question & NUMBERS, question >> NUMBER_BITS)

    def send_probe(self, sender: DatagramSender, number: int, part: int) -> int:
        """Send a Probe for one part of the Bitmap, counted from 1, or for all (0); return its bytes on the link."""
        size = max(int(self.owner.control_bytes), UDP_OVERHEAD)
        header = sender.row.number, part, 0, number, PROBE | IMPORTANT
        flow = sender.nic_flow
        self.endpoint.out.add(flow.file, flow.destination, flow.important_tos, header, fill=size - UDP_OVERHEAD)
        return size

    def probed(self, receiver: ReceivingEnd, header: tuple[int, ...], name: int, now: int) -> bool:
        answer = self._answer_to_probe(receiver, header[1], header[3], now)
        if answer is None:
            return False
        kind, fill = answer
        if kind == STOP:
            self.endpoint.control(receiver.row, STOP, 0, name, fill=fill)
        elif kind == BITMAP:
            for first, bits in parts_of(receiver, header[1]):  # all parts have the same length
                self.endpoint.control(receiver.row, BITMAP, header[3], name, first, fill - len(bits), bits)
        return True

    def handle_packet(self, sender: DatagramSender, header: tuple[int, ...], datagram: memoryview, now: int) -> bool:
        if header[4] & KIND != BITMAP or len(datagram) < GRADWIRE + header[2]:
            return False
        take_part(sender, header[1], bytes(datagram[len(datagram) - header[2] :]), header[3], now)
        self.endpoint.nic.update(sender)
        return True

    def _answer_to_probe(self, receiver: ReceivingEnd, part: int, number: int, now: int) -> tuple[int, int] | None:
        """Return (kind, zeros) of the rules' answer to a Probe (kind ACK: none), or None for an invalid part."""
        if part > -(-receiver.packets // BITMAP_PACKETS):
            return None
        word = receiver.on_probe(part << NUMBER_BITS | number & NUMBERS, now)
        return receiver.rules.answer(word) if word else (ACK, 0)


class DlcpBySide(Dlcp):
    """DLCP with Stops, Probes and Bitmaps on the side channel."""

    by_side = True

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

    def make_sender(self, row: MessageRow) -> DatagramSender:
        self.side.listen_for(row.number, self.on_control)
        return super().make_sender(row)

    def send_probe(self, sender: DatagramSender, number: int, part: int) -> int:
        return self.side.probe(sender.row, number, part)

    def probed(self, receiver: ReceivingEnd, header: tuple[int, ...], name: int, now: int) -> bool:
        return False

    def handle_packet(self, sender: DatagramSender, header: tuple[int, ...], datagram: memoryview, now: int) -> bool:
        return False

    def answer(self, receiver: ReceivingEnd, word: int) -> None:  # a Stop
        self.side.answer(receiver.row, Header(receiver.row.number, kind=STOP, important=True))

    def on_control(self, header: Header, content: bytes) -> None:
        """Handle a frame of the side channel: a Probe for a receiver here, or an answer for a sender."""
        if header.kind == PROBE:
            self._handle_probe(header)
            return
        sender = self.endpoint.senders.get(header.message)
        if sender is None or sender.done:
            return
        now = self.host.loop.now() * 1000
        if header.kind == STOP:
            sender.take(STOP, 0, 0, 0, now)
            self.finish_message(sender)
        elif header.kind == BITMAP:
            take_part(sender, header.offset, content, header.sequence, now)
            self.endpoint.nic.update(sender)
            self.endpoint.nic.serve()

    def _handle_probe(self, header: Header) -> None:
        receiver = self.endpoint.receiver_of(header.message)
        was_done = receiver.done
        answer = self._answer_to_probe(receiver, header.offset, header.sequence, self.host.loop.now() * 1000)
        if answer is None:
            return
        if answer[0] == STOP:
            self.answer(receiver, answer[0])
            if not was_done:
                self.deliver(receiver)
        elif answer[0] == BITMAP:
            for first, bits in parts_of(receiver, header.offset):
                part = Header(header.message, first, len(bits), header.sequence, BITMAP, important=True)
                self.side.answer(receiver.row, part, bits)
