"""`Tcp` carries messages over the kernel's TCP, on one connection per message (fresh) or per destination and class
(persistent).

A fresh connection carries one message; a persistent one carries all messages of one host and class in sequence.
Connections are opened before the beginning. A fresh one names its message at once, so that during the run only the
message crosses it and begins with a fresh window, as in the simulator; after `OPEN_AHEAD` messages the next one is
opened when an earlier one is finished. On a persistent one every message follows its header, and segments count for the
next message to finish.

The congestion control is set per socket. Settings that exist only per route (initial window, minimum RTO, acknowledging
every packet) and the sysctl for ECN are set by the builder of the network.

The receiver answers a whole message with Stop, which settles it at the sender.
"""

from __future__ import annotations

import socket
import struct
from collections import deque
from collections.abc import Sequence
from typing import Final

from gradwire.emu.agent.base import Arrival, Carrier, CarrierHost, MessageRow
from gradwire.emu.planning.plan import TestbedPlan, TransportPlan
from gradwire.emu.switches.backend_kind import TestbedError
from gradwire.emu.system.sockets import receive_buffer
from gradwire.emu.transports.side_channel import CONTROL_TOS, TCP_CONGESTION
from gradwire.emu.transports.tcp_listener import OpeningListener, close, connect, take_opening
from gradwire.emu.wire.header import DATA, STOP, Frames, Header, Opening, unpack
from gradwire.scenarios.inner_units import Bytes, Ns
from gradwire.scenarios.wire import CONTROL_PORT, GRADWIRE, GRADWIRE_PORT, dscp

OPEN_AHEAD: Final = 1000
OPEN_AT_ONCE: Final = 4
"""Connections that a host opens at a time, before the beginning (our choice). If all were opened together, they would
queue at their destinations, and enter the run with the round-trip times of that queue, or with windows reduced by a
lost packet."""
NOT_SENT_LOWAT: Final = 32 * 1024
"""Unsent bytes of a message that the kernel may hold, so that a later message of a higher class does not wait behind
megabytes; our choice."""
RECEIVE_BUFFER: Final = 8 << 20
TCP_NOTSENT_LOWAT: Final = 25
TCP_INFO: Final = getattr(socket, "TCP_INFO", 11)
RETRANSMITTED, DATA_SEGMENTS, MARKED, INFO_BYTES = 100, 156, 196, 200
"""Offsets in struct tcp_info."""
WORD = struct.Struct("=I")


class OutgoingConnection:
    """A connection for outgoing messages."""

    def __init__(self, carrier: Tcp, node: int, tos: int, message: int | None) -> None:
        self.carrier, self.message = carrier, message
        self.established = False
        self._queue: deque[int] = deque()
        self._data: deque[memoryview] = deque()
        self._frames = Frames()
        self._base = (0, 0, 0)
        host = carrier.host
        self._opening: Opening | None = Opening(host.token)

        def configure(link: socket.socket) -> None:
            carrier.configure(link)
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            link.setsockopt(socket.IPPROTO_TCP, TCP_NOTSENT_LOWAT, NOT_SENT_LOWAT)
            link.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, tos)

        self.link = connect(host, node, carrier.port, configure, self._ready)

    def _ready(self) -> None:
        self.established = True
        self.carrier.host.loop.reader(self.link.fileno(), self._read_answers)
        assert self._opening is not None
        self.link.send(self._opening.words + (Header(self.message).pack() if self.message is not None else b""))
        self._base = self.segments()
        self._push()

    def send(self, message: int) -> None:
        host = self.carrier.host
        if self.message is None:
            self._data.append(memoryview(Header(message).pack()))
        elif self.established:
            self._base = self.segments()
        self._queue.append(message)
        self._data.append(host.outgoing(message).cast("B"))
        if self.established:
            self._push()

    def _push(self) -> None:
        data = self._data
        while data:
            if not len(data[0]):
                data.popleft()
                continue
            try:
                done = self.link.send(data[0])
            except BlockingIOError:
                self.carrier.host.loop.writer(self.link.fileno(), self._push)
                return
            data[0] = data[0][done:]
        self.carrier.host.loop.writer(self.link.fileno(), None)

    def _read_answers(self) -> None:
        try:
            data = self.link.recv(4096)
        except BlockingIOError:
            return
        if not data:  # the other host has ended; the controller handles it
            self.carrier.host.loop.reader(self.link.fileno(), None)
            return
        if self._opening is not None:
            data = take_opening(self._opening, self.link, data)
            if not self._opening.missing_bytes:
                self._opening = None
                self.carrier.opened(self)
        for header, _ in self._frames.feed(data):
            if header.kind == STOP and self._queue and self._queue[0] == header.message:
                self._queue.popleft()
                now = self.segments()
                counts = tuple(a - b for a, b in zip(now, self._base, strict=True))
                self._base = now
                self.carrier.finish_message(self, header.message, counts)

    def segments(self) -> tuple[int, int, int]:
        """Return (data segments sent, retransmissions, acknowledged with marks) as counted by the kernel."""
        info = self.link.getsockopt(socket.IPPROTO_TCP, TCP_INFO, INFO_BYTES)
        counts = [
            WORD.unpack_from(info, at)[0] if len(info) >= at + 4 else 0 for at in (DATA_SEGMENTS, RETRANSMITTED, MARKED)
        ]
        return counts[0], counts[1], counts[2]

    def message_in_progress(self) -> dict[int, tuple[int, int, int]]:
        if not self._queue or not self.established:
            return {}
        return {self._queue[0]: tuple(a - b for a, b in zip(self.segments(), self._base, strict=True))}  # type: ignore[dict-item]

    def close(self) -> None:
        close(self.carrier.host, self.link)


class IncomingConnection:
    """A connection for incoming messages: header, content, header, ..."""

    def __init__(self, carrier: Tcp, link: socket.socket) -> None:
        self.carrier, self.link = carrier, link
        link.setblocking(False)
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        link.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, CONTROL_TOS)
        self._header = memoryview(bytearray(GRADWIRE))
        self._row: MessageRow | None = None
        self._buffer: memoryview = self._header
        self._at = 0
        carrier.host.loop.reader(link.fileno(), self._read)

    def _read(self) -> None:
        while True:
            try:
                count = self.link.recv_into(self._buffer[self._at :])
            except BlockingIOError:
                return
            except OSError:
                count = 0
            if not count:
                self.close()
                return
            self._at += count
            if self._at < len(self._buffer):
                continue
            if self._row is None:
                if not self._check_header():
                    self.carrier.unknown += 1
                    self.close()
                    return
                if len(self._buffer):
                    continue
            self._end()

    def _check_header(self) -> bool:
        """Check a header and prepare the buffer of its message; return False if it is unexpected."""
        host, carrier, header = self.carrier.host, self.carrier, unpack(self._header)
        try:
            row = host.row(header.message)
        except KeyError:
            return False
        if row.dst != host.node or row.transport != carrier.number or header.kind != DATA:
            return False
        if row.number in carrier.begun:
            return False
        carrier.begun.add(row.number)
        self._row, self._buffer, self._at = row, host.incoming(row.number).cast("B"), 0
        return True

    def _end(self) -> None:
        host, row = self.carrier.host, self._row
        assert row is not None
        self._row, self._buffer, self._at = None, self._header, 0
        self.link.send(Header(row.number, kind=STOP).pack())
        host.arrived(Arrival(row.number, Ns(host.loop.now()), row.nbytes, Bytes(0), None, -1))

    @property
    def message_in_progress(self) -> tuple[int, int] | None:
        return None if self._row is None else (self._row.number, self._at)

    def close(self) -> None:
        close(self.carrier.host, self.link)
        self.carrier.incoming.pop(self, None)


class Tcp(Carrier):
    """A transport over the kernel's TCP at one host; see `gradwire.emu.agent.base.Carrier`."""

    def __init__(self, host: CarrierHost, transport: TransportPlan, number: int, plan: TestbedPlan) -> None:
        self.host, self.transport, self.number = host, transport, number
        self.congestion = transport.congestion.encode()
        self.fresh = not transport.persistent
        kinds = [i for i, transport_plan in enumerate(plan.transports) if transport_plan.by_kernel]
        index = kinds.index(number)
        # one listener per transport: the congestion controls of both ends negotiate ECN
        self.port = CONTROL_PORT + index if index else GRADWIRE_PORT
        self.incoming: dict[IncomingConnection, None] = {}  # in order of arrival
        self._listener: OpeningListener | None = None
        rows = plan.program.messages
        table = plan.program.tables
        numbers = [
            i for i in range(len(rows)) if rows.src[i] == host.node and table[int(rows.table[i])].transport == number
        ]
        self._messages = deque(numbers)
        self._links: dict[int | tuple[int, int], OutgoingConnection] = {}
        self.begun: set[int] = set()
        """messages whose header has arrived"""
        self.unknown = 0
        """headers of unexpected messages"""
        self._opening = self._ahead = 0
        self._pairs: deque[tuple[tuple[int, int], MessageRow]] = deque()
        self._late = 0
        self._counts: dict[int, tuple[int, ...]] = {}

    def configure(self, link: socket.socket) -> None:
        """Set the options of a socket of the transport before it listens or connects."""
        try:
            link.setsockopt(socket.IPPROTO_TCP, TCP_CONGESTION, self.congestion)
        except OSError:
            name = self.congestion.decode()
            raise TestbedError(
                f"congestion control not available on this kernel: {name!r}",
                "transport.kind",
                "one of " + open("/proc/sys/net/ipv4/tcp_available_congestion_control").read().strip(),
            ) from None
        receive_buffer(link, RECEIVE_BUFFER)

    def open(self) -> None:
        self._listener = OpeningListener(self.host, self.port, self._accept, self.configure)

    def _accept(self, link: socket.socket, address: str) -> None:
        self.incoming[IncomingConnection(self, link)] = None

    def invalid_count(self) -> int:
        return self.unknown + (self._listener.turned if self._listener is not None else 0)

    def connect(self, peers: Sequence[int]) -> None:
        if self.fresh:
            self._ahead = min(len(self._messages), OPEN_AHEAD)
        else:
            rows = map(self.host.row, self._messages)
            self._pairs = deque({(row.dst, row.priority): row for row in rows}.items())
        self._open_early()

    def _open_early(self) -> None:
        """Continue to open connections before the beginning."""
        while self._opening < OPEN_AT_ONCE:
            if self._ahead:
                self._ahead -= 1
                self._open_next()
            elif self._pairs:
                key, row = self._pairs.popleft()
                self._links[key] = self._link(row, None)
            else:
                return

    def _open_next(self) -> None:
        row = self.host.row(self._messages.popleft())
        self._links[row.number] = self._link(row, row.number)

    def _link(self, row: MessageRow, message: int | None) -> OutgoingConnection:
        self._opening += 1
        return OutgoingConnection(self, row.dst, dscp(row.priority) << 2, message)

    def opened(self, link: OutgoingConnection) -> None:
        """Handle a connection that is established at both ends."""
        self._opening -= 1
        self._open_early()

    def connected(self) -> bool:
        return self._opening == 0 and not self._ahead and not self._pairs

    def send(self, message: int) -> None:
        row = self.host.row(message)
        key = message if self.fresh else (row.dst, row.priority)
        if key not in self._links:  # beyond those opened ahead
            self._messages.remove(message)
            self._links[key] = self._link(row, message)
        if not self._links[key].established:
            self._late += 1
        self._links[key].send(message)

    def finish_message(self, link: OutgoingConnection, message: int, counts: tuple[int, ...]) -> None:
        self._counts[message] = counts
        if self.fresh and self._messages:
            self._links.pop(message).close()
            self._open_next()
        self.host.message_finished(message)

    def _all_counts(self) -> dict[int, tuple[int, ...]]:
        counts = dict(self._counts)
        for link in self._links.values():
            counts |= link.message_in_progress()
        return counts

    def counts(self) -> dict[int, tuple[int, int]]:
        return {message: (sent, retransmitted) for message, (sent, retransmitted, _) in self._all_counts().items()}

    def marked_sent(self) -> dict[int, int]:
        if self.congestion != b"dctcp":  # whose receivers are exact
            return {}
        return {message: marked for message, (_, _, marked) in self._all_counts().items()}

    def received(self) -> dict[int, int]:
        return dict(
            connection.message_in_progress for connection in self.incoming if connection.message_in_progress is not None
        )

    def notes(self) -> list[str]:
        return [f"{self._late} messages of {self.transport.kind} waited for their connection"] if self._late else []

    def close(self) -> None:
        for link in self._links.values():
            link.close()
        for connection in list(self.incoming):
            connection.close()
        if self._listener is not None:
            self._listener.close()
            self._listener = None
