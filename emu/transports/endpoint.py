"""`Endpoint` opens the UDP sockets of a host and distributes incoming packets to its messages.

All data of a host leaves from 32 sockets, chosen by message number, so that switches that hash spread the flows. It
arrives at one socket, whose answers return to the source port. Data is written directly to its position in the message,
in any order.

The work per packet is compiled (`gradwire.emu.agent.core`). This module serves the requests of compiled code for new
messages and for packets other than data and plain answers.
"""

from __future__ import annotations

import ctypes
import os
import socket
from typing import TYPE_CHECKING

from gradwire.emu.agent.base import CarrierHost, MessageRow
from gradwire.emu.agent.core import layout as at
from gradwire.emu.agent.nic import Nic
from gradwire.emu.agent.shared_words import WordTable
from gradwire.emu.switches.backend_kind import AHEAD_NS
from gradwire.emu.system import sockets
from gradwire.emu.transports.simulator_rules import MAX_FILL, ReceivingEnd
from gradwire.emu.wire.header import HEADER, KIND, PROBE, WORD
from gradwire.scenarios.wire import BITMAP_PACKETS, GRADWIRE, GRADWIRE_PORT, MIN_FRAME, SOURCE_PORTS, UDP_OVERHEAD

if TYPE_CHECKING:
    from gradwire.emu.transports.datagrams import DatagramCarrier, DatagramSender
    from gradwire.emu.transports.side_channel import SideChannel

FILL = MIN_FRAME - UDP_OVERHEAD
"""Zeros after a header that fill the minimum frame."""


class Endpoint:
    """The UDP sockets of a host and its NIC, shared by all its transports.

    carriers : by the number of the transport, filled by the caller.
    senders, receivers : of messages, by number.
    side : the side channel, if any.
    """

    def __init__(
        self, host: CarrierHost, payload: int, *, classes: int = 8, ahead_ns: int = AHEAD_NS, shared: bool = False
    ) -> None:
        """Make the endpoint, without sockets.

        shared : the kernel's TCP shares the NIC: a packet is passed on when the previous one has left it.
        """
        self.host = host
        self.carriers: dict[int, DatagramCarrier] = {}
        self.senders: dict[int, DatagramSender] = {}
        self.receivers: dict[int, ReceivingEnd] = {}
        self.side: SideChannel | None = None
        self._contents: list[bytes] = []  # of control packets, kept alive until they are sent
        self.out = sockets.Sender()
        self.nic = Nic(
            host.loop, host.rate, self.out, classes=classes, ahead_ns=ahead_ns if host.clock == "wall" else 0
        )
        self._in = sockets.Receiver(GRADWIRE + MAX_FILL + max(payload, BITMAP_PACKETS // 8))
        self._names: dict[int, tuple[object, int]] = {}
        self._data: socket.socket | None = None
        self.sources: list[socket.socket] = []
        self._agent = host.loop.agent
        self._agent.incoming, self._agent.shares_nic = self._in.index, shared
        self._rooms: list[int] = []
        self._sending, self._receiving = WordTable(), WordTable()
        self._store_tables()
        host.loop.asked |= {
            at.ASK_RECEIVER: self._make_receiver,
            at.ASK_NO_DATA: self._handle_non_data,
            at.ASK_ANSWER: self._answer,
            at.ASK_DELIVER: self._deliver,
            at.ASK_SPECIAL_ANSWER: self._handle_special_answer,
            at.ASK_SETTLE: self._settle,
            at.ASK_PROBE: self._probe,
        }

    def _store_tables(self) -> None:
        agent = self._agent
        agent.senders, agent.senders_mask = self._sending.index, self._sending.mask
        agent.receivers, agent.receivers_mask = self._receiving.index, self._receiving.mask

    def open(self) -> None:
        """Bind all sockets; no effect if they are bound."""
        if self._data is not None:
            return
        address = self.host.address(self.host.node)
        self._data = sockets.open_datagrams(address, GRADWIRE_PORT)
        self.file = self._data.fileno()
        self._agent.data_file = self.file
        self.host.loop.serve_in_core(self.file, at.FILE_DATA)
        for port in SOURCE_PORTS:
            source = sockets.open_datagrams(address, port)
            self.sources.append(source)
            self.host.loop.serve_in_core(source.fileno(), at.FILE_ANSWERS)
            if self._agent.shares_nic:
                sockets.send_buffer(source, 0)  # the minimum: writable only if none of its packets is in the NIC
                self._rooms.append(os.dup(source.fileno()))  # epoll accepts a file only once
                self.host.loop.serve_in_core(self._rooms[-1], at.FILE_SPACE)

    def close(self) -> None:
        for opened in [*self.sources, *([self._data] if self._data else [])]:
            self.host.loop.serve_in_core(opened.fileno(), at.FILE_OF_PYTHON)
            opened.close()
        for room in self._rooms:
            self.host.loop.serve_in_core(room, at.FILE_OF_PYTHON)
            os.close(room)
        self._rooms = []
        self.sources, self._data = [], None

    @property
    def invalid_count(self) -> int:
        """Return the number of invalid datagrams: unknown message, wrong size, or wrong source."""
        return self._agent.invalid_count

    def overflow_count(self) -> int:
        """Return the number of datagrams lost because this process was too slow to read them."""
        return sum(sockets.overflowed(opened) for opened in [*self.sources, *([self._data] if self._data else [])])

    def total_invalid_count(self) -> int:
        """Return the number of invalid datagrams, and of invalid connections to the side channel."""
        return self.invalid_count + (self.side.invalid_count() if self.side is not None else 0)

    def name_of(self, node: int) -> int:
        """Return the address of the sockaddr_in at which a host receives data."""
        if node not in self._names:
            name = ctypes.create_string_buffer(sockets.socket_address(self.host.address(node), GRADWIRE_PORT), 16)
            self._names[node] = name, ctypes.addressof(name)
        return self._names[node][1]

    def sends(self, sender: DatagramSender) -> None:
        self.senders[sender.number] = sender
        if self._sending.put(sender.number, sender.index):
            self._store_tables()

    def remove_sender(self, sender: DatagramSender) -> None:
        self.senders.pop(sender.number, None)
        self._sending.put(sender.number, 0)

    def receiver_of(self, message: int) -> ReceivingEnd:
        """Return the receiving end of a message; raise KeyError if this host does not receive it."""
        receiver = self.receivers.get(message)
        if receiver is None:
            row = self.host.row(message)
            if row.dst != self.host.node or row.transport not in self.carriers:
                raise KeyError(message)
            receiver = self.receivers[message] = self.carriers[row.transport].receiver(row)
            receiver.place = self.host.incoming(message)
            receiver.flow.buffer = sockets.address_of(receiver.place)
            receiver.flow.peer = sockets.address_word(self.host.address(row.src))
            if self._receiving.put(message, receiver.index):
                self._store_tables()
        return receiver

    def control(
        self,
        row: MessageRow,
        flags: int,
        sequence: int,
        name: int,
        argument: int = 0,
        fill: int = FILL,
        content: bytes = b"",
    ) -> None:
        """Send a control packet back after the current batch; `content` follows the zeros."""
        carrier = self.carriers[row.transport]
        header = row.number, argument & WORD, len(content), sequence, flags | carrier.control_flags
        address = 0
        if self.out.empty:
            self._contents.clear()
        if content:
            address = sockets.address_of(memoryview(content))
            self._contents.append(content)
        self.out.add(self.file, name, carrier.control_tos, header, address, len(content), fill)
        self._agent.answer_bytes += UDP_OVERHEAD + fill + len(content)

    # --- requests of compiled code

    def _make_receiver(self, message: int, *_: int) -> int:
        try:
            return self.receiver_of(message).index
        except KeyError:
            return 0

    def _handle_non_data(self, message: int, slot: int, now: int, _: int) -> None:
        """Handle a packet for a message other than its data: a Probe, or an invalid one."""
        arrived, receiver = self._in, self.receivers[message]
        header = HEADER.unpack_from(arrived.data, slot * arrived.room)
        is_probe = header[4] & KIND == PROBE and arrived.source(slot) == receiver.flow.peer
        carrier = self.carriers[receiver.row.transport]
        if not (is_probe and carrier.probed(receiver, header, arrived.name(slot), now)):
            self._agent.invalid_count += 1

    def _answer(self, message: int, word: int, _sequence: int, _slot: int) -> None:
        receiver = self.receivers[message]
        self.carriers[receiver.row.transport].answer(receiver, word)

    def _deliver(self, message: int, *_: int) -> None:
        receiver = self.receivers[message]
        self.carriers[receiver.row.transport].deliver(receiver)

    def _handle_special_answer(self, message: int, slot: int, now: int, _: int) -> bool:
        sender, arrived = self.senders[message], self._in
        header = HEADER.unpack_from(arrived.data, slot * arrived.room)
        return sender.carrier.handle_packet(sender, header, arrived.datagram(slot), now)

    def _settle(self, message: int, *_: int) -> None:
        sender = self.senders[message]
        sender.carrier.finish_message(sender)

    def _probe(self, message: int, question: int, *_: int) -> int:
        sender = self.senders[message]
        return sender.carrier.probe(sender, question)
