"""The UDP sockets of a host, and what has arrived there handed to the messages it is of.

All data of a host leaves from 32 sockets, by the number of the message, so that switches that hash spread the flows; it
comes in at one, whose answers go back to where the data came from. What arrives is written straight to its place in
the message, whatever the order.

What happens for every packet is compiled (`gradwire.emu.agent.core`); here is what compiled code asks for: of messages
that are new, and of packets that are neither data nor plain answers.
"""

from __future__ import annotations

import ctypes
import os
import socket
from typing import TYPE_CHECKING, Protocol

from gradwire.emu.agent.base import Host, MessageRow
from gradwire.emu.agent.core import layout as at
from gradwire.emu.agent.loop import EpollLoop
from gradwire.emu.agent.nic import AHEAD_NS, Nic
from gradwire.emu.agent.words import Table
from gradwire.emu.system.sockets import (
    ADDRESS,
    ADDRESS_AT,
    Receiver,
    Sender,
    address_of,
    address_word,
    open_datagrams,
    overflowed,
    send_buffer,
    socket_address,
)
from gradwire.emu.transports.rules import MOST_FILL, ReceivingEnd
from gradwire.emu.wire.header import HEADER, KIND, PROBE, WORD
from gradwire.scenarios.wire import (
    BITMAP_PACKETS,
    GRADWIRE,
    GRADWIRE_PORT,
    MIN_FRAME,
    SOURCE_PORTS,
    UDP_OVERHEAD,
)

if TYPE_CHECKING:
    from gradwire.emu.transports.datagrams import DatagramCarrier, Outgoing
    from gradwire.emu.transports.side import SideChannel

FILL = MIN_FRAME - UDP_OVERHEAD
"""Zeros behind a header that make the smallest frame."""


class LoopingHost(Host, Protocol):
    """A host with the loop that compiled code goes round in."""

    loop: EpollLoop  # type: ignore[assignment]


class Endpoint:
    """The UDP sockets of a host and its NIC, shared by all its transports.

    carriers : by the number of the transport, filled by whoever makes them.
    senders, receivers : of messages, by number.
    side : the side channel beside it, if there is one.
    """

    def __init__(
        self, host: LoopingHost, payload: int, *, classes: int = 8, ahead_ns: int = AHEAD_NS, shared: bool = False
    ) -> None:
        """`shared` : the kernel's TCP sends from this host, too: a packet goes to the card when the one before has left
        it."""
        self.host = host
        self.carriers: dict[int, DatagramCarrier] = {}
        self.senders: dict[int, Outgoing] = {}
        self.receivers: dict[int, ReceivingEnd] = {}
        self.side: SideChannel | None = None
        self._contents: list[bytes] = []  # of control packets, which have to stay until they are handed over
        self.out = Sender()
        self.nic = Nic(
            host.loop, host.rate, self.out, classes=classes, ahead_ns=ahead_ns if host.clock == "wall" else 0
        )
        self._in = Receiver(GRADWIRE + MOST_FILL + max(payload, BITMAP_PACKETS // 8))
        self._names: dict[int, tuple[object, int]] = {}
        self._data: socket.socket | None = None
        self.sources: list[socket.socket] = []
        self._words = host.loop.words
        self._words[at.W_IN], self._words[at.W_SHARED] = self._in.index, shared
        self._rooms: list[int] = []
        self._sending, self._receiving = Table(), Table()
        self._tables_moved()
        host.loop.asked |= {
            at.ASK_RECEIVER: self._made, at.ASK_NO_DATA: self._no_data, at.ASK_ANSWER: self._answer,
            at.ASK_DELIVER: self._deliver, at.ASK_TOLD: self._told, at.ASK_SETTLE: self._settle,
            at.ASK_PROBE: self._probe,
        }  # fmt: skip

    def _tables_moved(self) -> None:
        words = self._words
        words[at.W_SENDERS], words[at.W_SENDERS_MASK] = self._sending.address, self._sending.mask
        words[at.W_RECEIVERS], words[at.W_RECEIVERS_MASK] = self._receiving.address, self._receiving.mask

    def open(self) -> None:
        """Bind everything; the second time nothing."""
        if self._data is not None:
            return
        address = self.host.address(self.host.node)
        self._data = open_datagrams(address, GRADWIRE_PORT)
        self.file = self._data.fileno()
        self._words[at.W_DATA_FILE] = self.file
        self.host.loop.serve_in_core(self.file, at.FILE_DATA)
        for port in SOURCE_PORTS:
            source = open_datagrams(address, port)
            self.sources.append(source)
            self.host.loop.serve_in_core(source.fileno(), at.FILE_ANSWERS)
            if self._words[at.W_SHARED]:
                send_buffer(source, 0)  # the smallest there is: it has room where none of its packets is at the card
                self._rooms.append(os.dup(source.fileno()))  # a file can be waited for in one way only
                self.host.loop.serve_in_core(self._rooms[-1], at.FILE_ROOM)

    def close(self) -> None:
        """Close everything; the second time nothing."""
        for each in [*self.sources, *([self._data] if self._data else [])]:
            self.host.loop.serve_in_core(each.fileno(), at.FILE_OF_PYTHON)
            each.close()
        for room in self._rooms:
            self.host.loop.serve_in_core(room, at.FILE_OF_PYTHON)
            os.close(room)
        self._rooms = []
        self.sources, self._data = [], None

    @property
    def strays(self) -> int:
        """Datagrams that were none of ours: of no message under way, of other sizes, or from elsewhere."""
        return self._words[at.W_STRAYS]

    def overflows(self) -> int:
        """Datagrams lost because this process was too slow to read them."""
        return sum(overflowed(each) for each in [*self.sources, *([self._data] if self._data else [])])

    def unasked(self) -> int:
        """Datagrams and connections to the side channel that were none of this run's."""
        return self.strays + (self.side.strays() if self.side is not None else 0)

    def name_of(self, node: int) -> int:
        """Where the socket address is that a host receives data at."""
        if node not in self._names:
            made = ctypes.create_string_buffer(socket_address(self.host.address(node), GRADWIRE_PORT), 16)
            self._names[node] = made, ctypes.addressof(made)
        return self._names[node][1]

    def sends(self, sender: Outgoing) -> None:
        """A message is under way from here."""
        self.senders[sender.number] = sender
        if self._sending.put(sender.number, sender.index):
            self._tables_moved()

    def is_over(self, sender: Outgoing) -> None:
        """It is not any more."""
        self.senders.pop(sender.number, None)
        self._sending.put(sender.number, 0)

    def receiver_of(self, message: int) -> ReceivingEnd:
        """The receiving end of a message. KeyError: this host receives no such message."""
        receiver = self.receivers.get(message)
        if receiver is None:
            row = self.host.row(message)
            if row.dst != self.host.node or row.transport not in self.carriers:
                raise KeyError(message)
            receiver = self.receivers[message] = self.carriers[row.transport].receiver(row)
            receiver.place = self.host.incoming(message)
            words = receiver.block.words
            words[at.E_PLACE] = address_of(receiver.place)
            words[at.E_SOURCE] = address_word(self.host.address(row.src))
            if self._receiving.put(message, receiver.index):
                self._tables_moved()
        return receiver

    def control(
        self, row: MessageRow, flags: int, sequence: int, name: int, argument: int = 0, fill: int = FILL,
        content: bytes = b"",
    ) -> None:  # fmt: skip
        """Send a control packet back, at the end of what is being read. `content` follows the zeros."""
        carrier = self.carriers[row.transport]
        header = row.number, argument & WORD, len(content), sequence, flags | carrier.control_flags
        place = 0
        if self.out.empty:
            self._contents.clear()
        if content:
            place = address_of(memoryview(content))
            self._contents.append(content)
        self.out.add(self.file, name, carrier.control_tos, header, place, len(content), fill)
        self._words[at.W_ANSWERED] += UDP_OVERHEAD + fill + len(content)

    # --- what compiled code asks for

    def _made(self, message: int, *_: int) -> int:
        try:
            return self.receiver_of(message).index
        except KeyError:
            return 0

    def _no_data(self, message: int, slot: int, now: int, _: int) -> None:
        """What came for a message is none of its data packets: a Probe, or nothing of ours."""
        arrived, receiver = self._in, self.receivers[message]
        header = HEADER.unpack_from(arrived.data, slot * arrived.room)
        source = arrived.addresses[slot * ADDRESS + ADDRESS_AT]
        ours = header[4] & KIND == PROBE and source == receiver.block.words[at.E_SOURCE]
        carrier = self.carriers[receiver.row.transport]
        if not (ours and carrier.probed(receiver, header, arrived.name(slot), now)):
            self._words[at.W_STRAYS] += 1

    def _answer(self, message: int, word: int, _sequence: int, _slot: int) -> None:
        receiver = self.receivers[message]
        self.carriers[receiver.row.transport].answer(receiver, word)

    def _deliver(self, message: int, *_: int) -> None:
        receiver = self.receivers[message]
        self.carriers[receiver.row.transport].deliver(receiver)

    def _told(self, message: int, slot: int, now: int, _: int) -> bool:
        sender, arrived = self.senders[message], self._in
        header = HEADER.unpack_from(arrived.data, slot * arrived.room)
        return sender.carrier.told(sender, header, arrived.datagram(slot), now)

    def _settle(self, message: int, *_: int) -> None:
        sender = self.senders[message]
        sender.carrier.settle(sender)

    def _probe(self, message: int, question: int, *_: int) -> int:
        sender = self.senders[message]
        return sender.carrier.probe(sender, question)
