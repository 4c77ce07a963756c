"""What transports over UDP share: the sockets of a host, and what stands between them and a transport's rules.

All data of a host leaves from 32 sockets, by the number of the message, so that switches that hash spread the flows; it
comes in at one, whose answers go back to where the data came from. What arrives is written straight to its place in
the message, whatever the order.
"""

from __future__ import annotations

import socket
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradwire.emu.agent.base import Arrival, Host, MessageRow
from gradwire.emu.agent.nic import AHEAD_NS, Nic, SendingFlow
from gradwire.emu.plan import TransportPlan
from gradwire.emu.sockets import Receiver, Sender, address_of, open_datagrams, overflowed, socket_address
from gradwire.emu.wire import ACK, CE, DATA, ECHO, ECN, HEADER, IMPORTANT, KIND, STOP, WORD
from gradwire.scenarios.loss import allowed_loss
from gradwire.scenarios.wire import GRADWIRE, GRADWIRE_PORT, MIN_FRAME, SOURCE_PORTS, UDP_OVERHEAD, tos

BATCHES = 8
"""Full batches that are read in a row, before timers have their turn; our choice."""
FILL = MIN_FRAME - UDP_OVERHEAD
"""Zeros behind a header that make the smallest frame."""


class Core(ABC):
    """The receiving end of one message, as far as all transports agree: what has arrived. Sizes in bytes."""

    __slots__ = (
        "allowed", "done", "got", "have", "marked", "nbytes", "packets", "payload", "place", "row", "source",
    )  # fmt: skip

    def __init__(self, row: MessageRow, payload: int) -> None:
        self.row, self.payload, self.nbytes = row, payload, row.nbytes
        self.packets = max(1, -(-row.nbytes // payload))
        self.allowed = allowed_loss(row.nbytes, row.bound)
        self.have = bytearray(self.packets)
        self.got = self.marked = 0
        self.done = False
        self.place: memoryview | None = None
        self.source = b""
        """where its packets come from, as `Receiver.source` has it"""

    def size(self, sequence: int) -> int:
        """Payload bytes of a packet."""
        return min(self.payload, self.nbytes - sequence * self.payload)

    def arrived(self) -> NDArray[np.bool_] | None:
        """Which packets are here, bool[packets]; None if all are."""
        return None if self.got == self.nbytes else np.frombuffer(bytes(self.have), dtype=np.bool_)

    @abstractmethod
    def on_data(self, sequence: int, size: int, ce: int, now: int) -> int:
        """A packet has come: the kind of the answer, -1 for none."""


class Endpoint:
    """The UDP sockets of a host and its network interface, shared by all its transports.

    carriers : by the number of the transport, filled by whoever makes them.
    senders, receivers : of messages, by number.
    strays : datagrams that were none of ours: of no message under way, of other sizes, or from elsewhere.
    side : the side channel beside it, if there is one.
    """

    def __init__(self, host: Host, payload: int, *, classes: int = 8, ahead_ns: int = AHEAD_NS) -> None:
        self.host = host
        self.carriers: dict[int, DatagramCarrier] = {}
        self.senders: dict[int, Any] = {}
        self.receivers: dict[int, Core] = {}
        self.strays = 0
        self.side: Any = None
        self._answered = 0  # control packets of the batch that is being read
        self.out = Sender()
        self.nic = Nic(
            host.loop, host.rate, self.out, classes=classes, ahead_ns=ahead_ns if host.clock == "wall" else 0
        )
        self._in = Receiver(GRADWIRE + payload)
        self._names: dict[int, tuple[Any, int]] = {}
        self._data: socket.socket | None = None
        self.sources: list[socket.socket] = []

    def open(self) -> None:
        """Bind everything; the second time nothing."""
        if self._data is not None:
            return
        address = self.host.address(self.host.node)
        self._data = open_datagrams(address, GRADWIRE_PORT)
        self.file = self._data.fileno()
        self.host.loop.reader(self.file, self._read_data)
        for port in SOURCE_PORTS:
            source = open_datagrams(address, port)
            self.sources.append(source)
            self.host.loop.reader(source.fileno(), partial(self._read_answers, source.fileno()))

    def close(self) -> None:
        """Close everything; the second time nothing."""
        for each in [*self.sources, *([self._data] if self._data else [])]:
            self.host.loop.reader(each.fileno(), None)
            each.close()
        self.sources, self._data = [], None

    def overflows(self) -> int:
        """Datagrams lost because this process was too slow to read them."""
        return sum(overflowed(each) for each in [*self.sources, *([self._data] if self._data else [])])

    def unasked(self) -> int:
        """Datagrams and connections to the side channel that were none of this run's."""
        return self.strays + (self.side.strays() if self.side is not None else 0)

    def name_of(self, node: int) -> int:
        """Where the socket address is that a host receives data at."""
        if node not in self._names:
            import ctypes

            made = ctypes.create_string_buffer(socket_address(self.host.address(node), GRADWIRE_PORT), 16)
            self._names[node] = made, ctypes.addressof(made)
        return self._names[node][1]

    def receiver_of(self, message: int) -> Any:
        """The receiving end of a message. KeyError: this host receives no such message."""
        receiver = self.receivers.get(message)
        if receiver is None:
            row = self.host.row(message)
            if row.dst != self.host.node or row.transport not in self.carriers:
                raise KeyError(message)
            receiver = self.receivers[message] = self.carriers[row.transport].make_receiver(row)
            receiver.place = self.host.incoming(message)
            receiver.source = socket.inet_aton(self.host.address(row.src))
        return receiver

    def acknowledge(self, row: MessageRow, sequence: int, ce: int, name: int) -> None:
        """Answer a packet with ACK; `ce`: and tell that it was marked."""
        self.control(row, ACK | (ECHO if ce else 0), sequence, name)

    def control(self, row: MessageRow, flags: int, sequence: int, name: int) -> None:
        """Send a control packet back, at the end of what is being read."""
        where = self.carriers[row.transport].control_tos
        self.out.add(self.file, name, where, (row.number, 0, 0, sequence, flags | IMPORTANT), fill=FILL)
        self._answered += 1

    def _read_data(self) -> None:
        arrived = self._in
        for _ in range(BATCHES):
            got = arrived.receive(self.file)
            if not got:
                return
            now = self.host.loop.now() * 1000
            done: list[Any] = []
            for slot in range(got):
                self._one_packet(slot, now, done)
            if self._answered:
                self.out.flush()
                self.nic.took(MIN_FRAME, self._answered)
                self._answered = 0
            for receiver in done:
                self.carriers[receiver.row.transport].deliver(receiver)
            if not arrived.full(got):
                return

    def _one_packet(self, slot: int, now: int, done: list[Any]) -> None:
        arrived = self._in
        start = slot * arrived.room
        message, _, length, sequence, flags = HEADER.unpack_from(arrived.data, start)
        receiver: Any = self.receivers.get(message)
        if receiver is None:
            try:
                receiver = self.receiver_of(message)
            except KeyError:
                self.strays += 1
                return
        if (
            sequence >= receiver.packets
            or length != receiver.size(sequence)
            or flags & KIND != DATA
            or arrived.length(slot) < GRADWIRE + length
            or arrived.source(slot) != receiver.source
        ):
            self.strays += 1
            return
        ce = int(arrived.tos(slot) & ECN == CE)
        receiver.marked += ce
        finished = receiver.done
        if not finished and not receiver.have[sequence]:
            at = sequence * receiver.payload
            start += GRADWIRE
            receiver.place[at : at + length] = arrived.data[start : start + length]
        kind = receiver.on_data(sequence, length, ce, now)
        if kind >= 0:
            carrier = self.carriers[receiver.row.transport]
            carrier.answer(receiver, kind, sequence, ce, arrived.name(slot))
        if receiver.done and not finished:
            done.append(receiver)

    def _read_answers(self, file: int) -> None:
        arrived, senders, nic = self._in, self.senders, self.nic
        for _ in range(BATCHES):
            got = arrived.receive(file)
            now = self.host.loop.now() * 1000
            for slot in range(got):
                if arrived.length(slot) < GRADWIRE:
                    self.strays += 1
                    continue
                header = HEADER.unpack_from(arrived.data, slot * arrived.room)
                sender = senders.get(header[0])
                if sender is None or sender.done:
                    continue
                if arrived.source(slot) != sender.source:
                    self.strays += 1
                    continue
                kind = header[4] & KIND
                if kind == ACK:
                    sender.on_answer(header, int(bool(header[4] & ECHO)), now)
                    nic.heard(sender)
                elif kind == STOP:
                    sender.on_stop()
                    sender.carrier.settle(sender)
            if not arrived.full(got):
                break
        nic.serve()


class Outgoing(SendingFlow):
    """What a sender is besides its rules: it puts packets on the wire."""

    row: MessageRow
    carrier: DatagramCarrier
    new: Any
    source: bytes

    def attach(self, row: MessageRow, transport: TransportPlan, host: Host, endpoint: Endpoint) -> None:
        """Find the bytes of the message and the way to its destination."""
        self.row, self.payload, self.endpoint = row, transport.payload, endpoint
        self.carrier = endpoint.carriers[row.transport]
        self.content = host.outgoing(row.number)
        self.content_at = address_of(self.content)
        self.name = endpoint.name_of(row.dst)
        self.source = socket.inet_aton(host.address(row.dst))
        self.file = endpoint.sources[row.number % len(SOURCE_PORTS)].fileno()
        self.kinds = tos(row.priority, False), tos(row.priority, True)

    def put(self, sequence: int, must: bool) -> int:
        """One data packet. Returns its bytes on the link."""
        row = self.row
        offset = sequence * self.payload
        length = min(self.payload, row.nbytes - offset)
        tags = row.important
        important = must or bool(tags if isinstance(tags, bool) else tags[sequence])
        self.endpoint.out.add(
            self.file, self.name, self.kinds[important],
            (row.number, offset & WORD, length, sequence, IMPORTANT if important else DATA),
            self.content_at + offset, length,
        )  # fmt: skip
        return length + UDP_OVERHEAD if length >= FILL else MIN_FRAME

    def on_answer(self, header: tuple[int, int, int, int, int], echo: int, now: int) -> None:
        """An acknowledgement has come."""


class DatagramCarrier(ABC):
    """A transport over UDP at one host; see `gradwire.emu.agent.base.Carrier`."""

    def __init__(self, host: Host, transport: TransportPlan, endpoint: Endpoint) -> None:
        self.host, self.transport, self.endpoint = host, transport, endpoint
        self.control_tos = tos(transport.parameters.get("control_priority", 0), True)
        self._sent: list[Any] = []

    def open(self) -> None:
        self.endpoint.open()

    def connect(self, peers: Sequence[int]) -> None:
        """Nothing: datagrams need no connections."""

    def connected(self) -> bool:
        return True

    def begin(self) -> None:
        self.endpoint.nic.restart()

    def send(self, message: int) -> None:
        sender = self.make_sender(self.host.row(message))
        self.endpoint.senders[message] = sender
        self._sent.append(sender)
        self.endpoint.nic.begin(sender)
        self.endpoint.nic.serve()

    @abstractmethod
    def make_sender(self, row: MessageRow) -> Any:
        """The sending end of a message."""

    @abstractmethod
    def make_receiver(self, row: MessageRow) -> Any:
        """The receiving end of a message."""

    @abstractmethod
    def answer(self, receiver: Any, kind: int, sequence: int, ce: int, name: int) -> None:
        """Send what `on_data` has asked for; `name`: where the packet came from."""

    def deliver(self, receiver: Any) -> None:
        """A message is complete within its bound."""
        self.host.arrived(
            Arrival(
                receiver.row.number, self.host.loop.now(), receiver.got, receiver.nbytes - receiver.got,
                receiver.arrived(), receiver.marked,
            )
        )  # fmt: skip
        receiver.place = None

    def settle(self, sender: Any) -> None:
        """The receiver has said Stop."""
        self.endpoint.senders.pop(sender.number, None)
        sender.content, sender.content_at = memoryview(b""), 0
        self.host.settled(sender.number, *self._count(sender))

    def _count(self, sender: Any) -> tuple[int, int]:
        return sender.sent, sender.sent - getattr(sender, "probes", 0) - sender.new

    def counts(self) -> dict[int, tuple[int, int]]:
        return {sender.number: self._count(sender) for sender in self._sent}

    def marks(self) -> dict[int, int]:
        """Data packets that came with a mark, by message received here; late ones included."""
        found = self.endpoint.receivers.items()
        return {number: r.marked for number, r in found if self.endpoint.carriers[r.row.transport] is self}

    def close(self) -> None:
        self.endpoint.close()
