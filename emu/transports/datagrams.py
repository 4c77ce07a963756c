"""Transports over UDP: the sockets of a host, and what stands between them and the rules of the simulator.

All data of a host leaves from 32 sockets, by the number of the message, so that switches that hash spread the flows; it
comes in at one, whose answers go back to where the data came from. What arrives is written straight to its place in
the message, whatever the order. A packet is as long on a link as the simulator has it: where its header is a wider one
than ours, zeros follow the header.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from gradwire.components.draws import entropy_of
from gradwire.components.transports.base import Context, control_important, shares
from gradwire.emu.agent.base import Arrival, Host, MessageRow
from gradwire.emu.agent.nic import AHEAD_NS, DONE, Nic, SendingFlow
from gradwire.emu.planning.plan import TransportPlan
from gradwire.emu.system.sockets import (
    ADDRESS,
    ADDRESS_AT,
    CONTROL_ROOM,
    LENGTH,
    LENGTH_AT,
    TOS_AT,
    Receiver,
    Sender,
    address_of,
    address_word,
    open_datagrams,
    overflowed,
    socket_address,
)
from gradwire.emu.transports.pairs import Pairs
from gradwire.emu.transports.rules import (
    ARGUMENT_AT,
    BELOW_ARGUMENT,
    MOST_FILL,
    MUST,
    R_DONE,
    ReceivingEnd,
    Rules,
    SendingEnd,
    functions_of,
    transport_class,
)
from gradwire.emu.wire.header import (
    ACK,
    BITMAP,
    CE,
    DATA,
    ECHO,
    ECN,
    HEADER,
    IMPORTANT,
    KIND,
    NACK,
    PROBE,
    STOP,
    WORD,
)
from gradwire.scenarios.inner_units import Bytes, Ns
from gradwire.scenarios.json_data import Json
from gradwire.scenarios.wire import (
    BITMAP_PACKETS,
    GRADWIRE,
    GRADWIRE_PORT,
    MIN_FRAME,
    SOURCE_PORTS,
    UDP_OVERHEAD,
    tos,
)

if TYPE_CHECKING:
    from gradwire.emu.transports.side import SideChannel

BATCHES = 8
"""Full batches that are read in a row, before timers have their turn; our choice."""
FILL = MIN_FRAME - UDP_OVERHEAD
"""Zeros behind a header that make the smallest frame."""


class Endpoint:
    """The UDP sockets of a host and its NIC, shared by all its transports.

    carriers : by the number of the transport, filled by whoever makes them.
    senders, receivers : of messages, by number.
    strays : datagrams that were none of ours: of no message under way, of other sizes, or from elsewhere.
    side : the side channel beside it, if there is one.
    """

    def __init__(self, host: Host, payload: int, *, classes: int = 8, ahead_ns: int = AHEAD_NS) -> None:
        self.host = host
        self.carriers: dict[int, DatagramCarrier] = {}
        self.senders: dict[int, Outgoing] = {}
        self.receivers: dict[int, ReceivingEnd] = {}
        self.strays = 0
        self.side: SideChannel | None = None
        self._contents: list[bytes] = []  # of control packets, which have to stay until they are handed over
        self.answered = 0  # bytes of control packets that answer the batch that is being read
        self.out = Sender()
        self.nic = Nic(
            host.loop, host.rate, self.out, classes=classes, ahead_ns=ahead_ns if host.clock == "wall" else 0
        )
        self._in = Receiver(GRADWIRE + MOST_FILL + max(payload, BITMAP_PACKETS // 8))
        self._names: dict[int, tuple[object, int]] = {}
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

    def receiver_of(self, message: int) -> ReceivingEnd:
        """The receiving end of a message. KeyError: this host receives no such message."""
        receiver = self.receivers.get(message)
        if receiver is None:
            row = self.host.row(message)
            if row.dst != self.host.node or row.transport not in self.carriers:
                raise KeyError(message)
            receiver = self.receivers[message] = self.carriers[row.transport].make_receiver(row)
            receiver.place = self.host.incoming(message)
            receiver.source = address_word(self.host.address(row.src))
        return receiver

    def control(
        self, row: MessageRow, flags: int, sequence: int, name: int, argument: int = 0, fill: int = FILL,
        content: bytes = b"",
    ) -> None:  # fmt: skip
        """Send a control packet back, at the end of what is being read. `content` follows the zeros."""
        carrier = self.carriers[row.transport]
        header = row.number, argument & WORD, len(content), sequence, flags | carrier.control_flags
        at = 0
        if content:
            at = address_of(memoryview(content))
            self._contents.append(content)
        self.out.add(self.file, name, carrier.control_tos, header, at, len(content), fill)
        self.answered += UDP_OVERHEAD + fill + len(content)

    def _read_data(self) -> None:
        arrived = self._in
        for _ in range(BATCHES):
            got = arrived.receive(self.file)
            if not got:
                return
            now = self.host.loop.now() * 1000
            done: list[ReceivingEnd] = []
            for slot in range(got):
                self._one_packet(slot, now, done)
            if self.answered:
                self.out.flush()
                self.nic.took(self.answered)
                self.answered = 0
                self._contents.clear()
            for receiver in done:
                self.carriers[receiver.row.transport].deliver(receiver)
            if not arrived.full(got):
                return

    def _one_packet(self, slot: int, now: int, done: list[ReceivingEnd]) -> None:
        arrived = self._in
        start = slot * arrived.room
        message, _, length, sequence, flags = HEADER.unpack_from(arrived.data, start)
        receiver = self.receivers.get(message)
        if receiver is None:
            try:
                receiver = self.receiver_of(message)
            except KeyError:
                self.strays += 1
                return
        fill = receiver.rules.fill
        if (
            sequence >= receiver.packets
            or ((length != receiver.payload or sequence == receiver.packets - 1) and length != receiver.size(sequence))
            or flags & KIND != DATA
            or arrived.lengths[slot * LENGTH + LENGTH_AT] < GRADWIRE + fill + length
            or arrived.addresses[slot * ADDRESS + ADDRESS_AT] != receiver.source
        ):
            self._no_data(receiver, slot, now, done)
            return
        ce = int(arrived.control[slot * CONTROL_ROOM + TOS_AT] & ECN == CE)
        receiver.marked += ce
        state = receiver.state
        finished = state[R_DONE]
        if not finished:  # a copy has the same bytes
            at = sequence * receiver.payload
            start += GRADWIRE + fill
            receiver.place[at : at + length] = arrived.data[start : start + length]
        answer = receiver.take(state, sequence, length, ce, now)
        if answer:
            carrier = self.carriers[receiver.row.transport]
            carrier.answer(receiver, answer, sequence, arrived.name(slot))
        if state[R_DONE] and not finished:
            done.append(receiver)

    def _no_data(self, receiver: ReceivingEnd, slot: int, now: int, done: list[ReceivingEnd]) -> None:
        """What came for a message is none of its data packets: a Probe, or nothing of ours."""
        arrived, finished = self._in, receiver.done
        header = HEADER.unpack_from(arrived.data, slot * arrived.room)
        carrier = self.carriers[receiver.row.transport]
        source = arrived.addresses[slot * ADDRESS + ADDRESS_AT]
        ours = header[4] & KIND == PROBE and source == receiver.source
        if not (ours and carrier.probed(receiver, header, arrived.name(slot), now)):
            self.strays += 1
        elif receiver.done and not finished:
            done.append(receiver)

    def _read_answers(self, file: int) -> None:
        arrived, senders, nic = self._in, self.senders, self.nic
        for _ in range(BATCHES):
            got = arrived.receive(file)
            now = self.host.loop.now() * 1000
            for slot in range(got):
                length = arrived.lengths[slot * LENGTH + LENGTH_AT]
                if length < GRADWIRE:
                    self.strays += 1
                    continue
                header = HEADER.unpack_from(arrived.data, slot * arrived.room)
                sender = senders.get(header[0])
                if sender is None:
                    continue
                if arrived.addresses[slot * ADDRESS + ADDRESS_AT] != sender.source:
                    self.strays += 1
                    continue
                flags = header[4]
                kind = flags & KIND
                if kind not in sender.heard or header[3] >= sender.packets:
                    start = slot * arrived.room
                    if not sender.carrier.told(sender, header, arrived.data[start : start + length], now):
                        self.strays += 1
                    continue
                sender.take(sender.state, kind, header[3], header[1], 1 if flags & ECHO else 0, now)
                if sender.state[DONE]:
                    sender.carrier.settle(sender)
                else:
                    nic.heard(sender)
            if not arrived.full(got):
                break
        nic.serve()


class Outgoing(SendingEnd, SendingFlow):
    """A sending end with a socket."""

    __slots__ = (
        "carrier", "content", "content_at", "endpoint", "file", "fill", "kinds", "name", "payload", "row", "source",
    )  # fmt: skip

    heard: tuple[int, ...] = (ACK, STOP, BITMAP, NACK)
    """kinds of packets that are told to the rules"""

    def __init__(self, rules: Rules, row: MessageRow, carrier: DatagramCarrier) -> None:
        """Find the bytes of the message and the way to its destination."""
        host, self.endpoint = carrier.host, carrier.endpoint
        entropy = entropy_of(host.seed, row.number)
        super().__init__(rules, row, host.loop.now() * 1000, entropy, carrier.pairs)
        self.row, self.carrier, self.payload, self.fill = row, carrier, carrier.transport.payload, rules.fill
        self.content = host.outgoing(row.number)
        self.content_at = address_of(self.content)
        self.name = self.endpoint.name_of(row.dst)
        self.source = address_word(host.address(row.dst))
        self.file = self.endpoint.sources[row.number % len(SOURCE_PORTS)].fileno()
        self.kinds = tos(row.priority, False), tos(row.priority, True)

    def transmit(self, what: int) -> int:
        """Give one data packet to the kernel. Returns its bytes on the link."""
        row, sequence = self.row, what & (MUST - 1)
        offset = sequence * self.payload
        length = min(self.payload, row.nbytes - offset)
        tags = row.important
        important = bool(what & MUST or (tags if isinstance(tags, bool) else tags[sequence]))
        fill = self.fill
        self.endpoint.out.add(
            self.file, self.name, self.kinds[important],
            (row.number, offset & WORD, length, sequence, IMPORTANT if important else DATA),
            self.content_at + offset, length, fill,
        )  # fmt: skip
        nbytes = length + fill + UDP_OVERHEAD
        return nbytes if nbytes > MIN_FRAME else MIN_FRAME


class DatagramCarrier:
    """A transport over UDP at one host; see `gradwire.emu.agent.base.Carrier`. It runs the simulator's rules of any
    transport that asks nothing of switches but queues."""

    def __init__(
        self, host: Host, transport: TransportPlan, endpoint: Endpoint, _side: SideChannel | None = None
    ) -> None:
        self.host, self.transport, self.endpoint = host, transport, endpoint
        self.owner = transport_class(transport.kind, transport.folder)
        functions_of(self.owner)  # takes a tenth of a second, which there is before the run begins
        important = control_important(self.owner, transport.parameters)
        self.control_flags = IMPORTANT if important else 0
        self.control_tos = tos(transport.parameters.get("control_priority", 0), important)
        self._rules: dict[tuple[int, int], Rules] = {}
        self.pairs = Pairs(self.owner) if shares(self.owner) else None
        """what its messages share at this host"""
        self._sent: list[Outgoing] = []

    def settings(self) -> Json:
        """The transport's table, as its parameters are made from it."""
        return dict(self.transport.parameters)

    def rules_of(self, row: MessageRow) -> Rules:
        """The rules for a message: those for its base round trip and the slowest link of its paths."""
        kind = self.host.base_rtt_ps(row), self.host.slowest(row)
        if kind not in self._rules:
            context = Context(self.endpoint.nic.line, self.transport.payload, *kind)
            self._rules[kind] = Rules(self.owner, self.settings(), context)
        return self._rules[kind]

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

    def make_sender(self, row: MessageRow) -> Outgoing:
        """The sending end of a message."""
        return Outgoing(self.rules_of(row), row, self)

    def make_receiver(self, row: MessageRow) -> ReceivingEnd:
        """The receiving end of a message."""
        return ReceivingEnd(self.rules_of(row), row, self.pairs)

    def answer(self, receiver: ReceivingEnd, word: int, sequence: int, name: int) -> None:
        """Send what the rules answer to a packet; `name`: where it came from."""
        rules = receiver.rules
        answer = rules.answers.get(word & BELOW_ARGUMENT) or rules.answer(word)
        # as `Endpoint.control` does, for every packet
        endpoint, fill = self.endpoint, answer.fill
        header = receiver.row.number, word >> ARGUMENT_AT & WORD, 0, sequence, answer.flags | self.control_flags
        endpoint.out.add(endpoint.file, name, self.control_tos, header, 0, 0, fill)
        endpoint.answered += UDP_OVERHEAD + fill

    def probed(self, receiver: ReceivingEnd, header: tuple[int, ...], name: int, now: int) -> bool:
        """A Probe has come for a message, from the address at `name`. Whether it can be one."""
        return False

    def told(self, sender: Outgoing, header: tuple[int, ...], datagram: memoryview, now: int) -> bool:
        """Something has come for a sender that its rules do not take as it is. Whether it is one of ours."""
        return False

    def deliver(self, receiver: ReceivingEnd) -> None:
        """A message is complete within its bound."""
        self.host.arrived(
            Arrival(
                receiver.row.number, Ns(self.host.loop.now()), Bytes(receiver.got),
                Bytes(receiver.nbytes - receiver.got), receiver.arrived(), receiver.marked,
            )
        )  # fmt: skip
        receiver.place = memoryview(b"")

    def settle(self, sender: Outgoing) -> None:
        """The sender has nothing more to do."""
        self.endpoint.senders.pop(sender.number, None)
        sender.content, sender.content_at = memoryview(b""), 0
        self.host.settled(sender.number, *self._count(sender))

    def _count(self, sender: Outgoing) -> tuple[int, int]:
        return sender.sent, sender.sent - sender.probes - sender.new

    def counts(self) -> dict[int, tuple[int, int]]:
        return {sender.number: self._count(sender) for sender in self._sent}

    def marks(self) -> dict[int, int]:
        """Data packets that came with a mark, by message received here; late ones included."""
        return {number: receiver.marked for number, receiver in self._receivers()}

    def received(self) -> dict[int, int]:
        """Payload bytes that have come, by message received here."""
        return {number: receiver.got for number, receiver in self._receivers()}

    def _receivers(self) -> Iterator[tuple[int, ReceivingEnd]]:
        found = self.endpoint.receivers.items()
        return (each for each in found if self.endpoint.carriers[each[1].row.transport] is self)

    def close(self) -> None:
        self.endpoint.close()
