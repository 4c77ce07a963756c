"""`SideChannel` carries a host's Stops, Probes and Bitmaps reliably over TCP connections to other hosts.

There are a few connections to every host that this one sends messages to. Probes go one way and answers the other, so
that a Probe queued behind its data does not delay answers (a stream keeps its order). A Probe has the DSCP of its data,
answers that of control.

In a stream everything waits for earlier losses, which the kernel retransmits at growing intervals; through a full
buffer, where two of three packets are lost, a host may stand still for half a second. So a frame uses the connection
with the fewest retransmissions. The kernel's own packets, acknowledgements and retransmissions, also take their time on
the host's line; otherwise data would be sent as if they did not exist, and a queue would form at the host's port
(docs/fidelity.md shows both effects).

Both ends begin with the same words (`gradwire.emu.wire.header.Opening`), and a connection is established when those of
the other end have arrived. The connecting kernel reports it earlier, but the last packet of TCP's handshake can be
lost,
and then the other end has no connection until more arrives, too late for its first answer.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Callable, Iterator, Sequence

from gradwire.emu.agent.base import CarrierHost, MessageRow
from gradwire.emu.agent.nic import Nic
from gradwire.emu.switches.backend_kind import TestbedError
from gradwire.emu.transports.tcp_listener import OpeningListener, acknowledge_now, close, connect, take_opening
from gradwire.emu.wire.header import PROBE, Frames, Header, Opening
from gradwire.scenarios.wire import CONTROL_PORT, TCP_OVERHEAD, dscp

CONTROL_TOS = dscp(0) << 2
TCP_CONGESTION = getattr(socket, "TCP_CONGESTION", 13)
TCP_THIN_LINEAR_TIMEOUTS = 16
TCP_RTO_MIN_US = 45
RTO_MIN_US = 5000
READ_BYTES = 1 << 16
THIN = 3
"""segments in flight up to which time-outs do not double [net/ipv4/tcp_timer.c: `tcp_stream_is_thin`]"""
CONNECTIONS = 4
"""between two hosts, each way (our choice: with 8 and 16 a job through a full buffer takes no less time)"""
WORD = struct.Struct("=I")
LONG = struct.Struct("=Q")
INFO_BYTES, AGAIN_AT, BACKOFF_AT, UNACKED_AT, SEGMENTS_AT, BYTES_AT = 232, 2, 4, 24, 136, 200
"""`struct tcp_info`: tcpi_retransmits, _backoff, _unacked, _segs_out, _bytes_sent (Linux 4.19) [linux/tcp.h]"""
FREE, STUCK = (0, 0), 1 << 16


class Connection:
    """A non-blocking TCP connection that carries frames both ways."""

    def __init__(
        self,
        host: CarrierHost,
        nic: Nic,
        link: socket.socket,
        take: Callable[[Connection, Header, bytes], None],
        opening: Opening | None = None,
        opened: Callable[[Connection], None] = lambda connection: None,
    ) -> None:
        """Make a connection.

        opening : the expected opening of the other end, if this end connects; `opened` is called when it has arrived.
        """
        self.host, self.nic, self.link, self.take = host, nic, link, take
        self._opening, self.opened = opening, opened
        self._frames = Frames()
        self._waiting = bytearray()
        self._tos = CONTROL_TOS  # set by `configure`
        self._segments = self._bytes = self._unpaid = 0
        self._idle = False
        """nothing was in flight at the last query of the kernel, and nothing has been written since"""

    def begin(self) -> None:
        """Begin to read after the TCP handshake, and send the opening."""
        self.link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.host.loop.reader(self.link.fileno(), self._read)
        if self._opening is not None:
            self._put(self._opening.words)
        else:
            acknowledge_now(self.link)

    def poll(self) -> tuple[int, int]:
        """Return the cost of a connection: consecutive retransmissions, and segments in flight in steps of THIN.

        While nothing is in flight the kernel is not queried: many hosts may share a processor, and a system call per
        connection and Probe makes their timers late.
        """
        return FREE if self._idle else self.query_kernel()

    def query_kernel(self) -> tuple[int, int]:
        """Return the same after a query of the kernel."""
        info = self.link.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, INFO_BYTES)
        (segments,), (sent,) = WORD.unpack_from(info, SEGMENTS_AT), LONG.unpack_from(info, BYTES_AT)
        self._unpaid += (segments - self._segments) * TCP_OVERHEAD + sent - self._bytes
        self._segments, self._bytes = segments, sent
        waits = STUCK if self._waiting else 0
        (unacked,) = WORD.unpack_from(info, UNACKED_AT)
        self._idle = not (waits or unacked)
        return waits + max(info[AGAIN_AT], info[BACKOFF_AT]), unacked // THIN

    def take_link_bytes(self) -> int:
        """Return the bytes on the link since the last call. They are the written ones, and acknowledgements and
        retransmissions known from the last query."""
        owed = max(self._unpaid, 0)
        self._unpaid -= owed
        return owed

    def _set_tos(self, tos: int) -> None:
        if tos != self._tos:
            self._tos = tos
            self.link.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, tos)

    def write(self, header: Header, content: bytes = b"", tos: int = CONTROL_TOS) -> None:
        data = header.pack() + content
        if self._waiting:
            self._waiting += data
        else:
            self._set_tos(tos)
            self._put(data)
            self._set_tos(CONTROL_TOS)

    def _put(self, data: bytes | bytearray) -> None:
        try:
            done = self.link.send(data)
        except BlockingIOError:
            done = 0
        except (BrokenPipeError, ConnectionResetError):  # the other host has ended; the controller handles it
            return
        if done:  # assume one segment; the next query of the kernel corrects it
            self._idle = False
            self._segments += 1
            self._bytes += done
            self._unpaid += TCP_OVERHEAD + done
        if done < len(data):
            self._waiting = bytearray(data[done:])
            self.host.loop.writer(self.link.fileno(), self._drain)

    def _drain(self) -> None:
        data, self._waiting = self._waiting, bytearray()
        self.host.loop.writer(self.link.fileno(), None)
        self._put(data)

    def _read(self) -> None:
        while True:
            try:
                data = self.link.recv(READ_BYTES)
            except BlockingIOError:
                break
            except OSError:
                data = b""
            if not data:  # the other host has ended
                self.host.loop.reader(self.link.fileno(), None)
                return
            read = len(data)
            if self._opening is not None:
                data = take_opening(self._opening, self.link, data)
                if not self._opening.missing_bytes:
                    self._opening = None
                    self.opened(self)
            for header, content in self._frames.feed(data):
                self.take(self, header, content)
            if read < READ_BYTES:
                break
        self.query_kernel()
        if owed := self.take_link_bytes():
            self.nic.add_control_bytes(owed)

    def close(self) -> None:
        close(self.host, self.link)


def configure(link: socket.socket) -> None:
    """Set the options of a socket before it connects or listens.

    The class of control also applies to the kernel's own packets: a connection that has written nothing would
    acknowledge in the lowest class, behind all data, and the other end would retransmit. DCTCP, if available, makes
    every packet of both ends ECN-capable, whatever the sysctl, so no switch drops it selectively. If the kernel
    supports it per socket (6.17), a lost segment is retransmitted after 5 ms instead of 200; otherwise the route's
    `rto_min` decides. Time-outs do not double for six attempts [Documentation/networking/tcp-thin]: losses here are a
    few bytes in a full buffer, and growing time-outs would make a sender probe less often than DLCP does.
    """
    link.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, CONTROL_TOS)
    for option, value in ((TCP_RTO_MIN_US, RTO_MIN_US), (TCP_THIN_LINEAR_TIMEOUTS, 1)):
        with contextlib.suppress(OSError):
            link.setsockopt(socket.IPPROTO_TCP, option, value)
    for name in (b"dctcp", b"reno"):
        with contextlib.suppress(OSError):
            link.setsockopt(socket.IPPROTO_TCP, TCP_CONGESTION, name)
            return


class SideChannel:
    """All side connections of a host, shared by its transports."""

    def __init__(self, host: CarrierHost, nic: Nic) -> None:
        self.host, self.nic = host, nic
        self._listener: OpeningListener | None = None
        self.unknown = 0
        """Probes for messages that this host does not receive"""
        self._to: dict[int, list[Connection]] = {}  # by destination host
        self._from: dict[str, list[Connection]] = {}  # by address of the source host
        self._calls: dict[int, Callable[[Header, bytes], None]] = {}
        self.probed: Callable[[Header, bytes], None] | None = None
        """handler of Probes for messages received here"""
        self._pending: dict[Connection, None] = {}

    def open(self) -> None:
        """Listen; no effect if listening."""
        if self._listener is not None:
            return
        self._listener = OpeningListener(self.host, CONTROL_PORT, self._accept, configure)

    def invalid_count(self) -> int:
        return self.unknown + (self._listener.turned if self._listener is not None else 0)

    def connect(self, peers: Sequence[int]) -> None:
        """Begin to connect to destination hosts that have no connections yet."""
        for node in peers:
            if node in self._to or node == self.host.node:
                continue
            self._to[node] = [self._begin(node) for _ in range(CONNECTIONS)]

    def _begin(self, node: int) -> Connection:
        link = connect(self.host, node, CONTROL_PORT, configure, lambda: connection.begin())
        connection = Connection(self.host, self.nic, link, self._take, Opening(self.host.token), self._pending.pop)
        self._pending[connection] = None
        return connection

    def connected(self) -> bool:
        """Return True if all connections begun here are established at both ends."""
        return not self._pending

    def begin(self) -> None:
        """Begin the run; earlier bytes on the line do not count."""
        for connection in self._all():
            connection.query_kernel()
            connection.take_link_bytes()

    def _all(self) -> Iterator[Connection]:
        for connections in (*self._to.values(), *self._from.values()):
            yield from connections

    def _accept(self, link: socket.socket, address: str) -> None:
        connection = Connection(self.host, self.nic, link, self._take)
        self._from.setdefault(address, []).append(connection)
        connection.begin()

    def _take(self, connection: Connection, header: Header, content: bytes) -> None:
        call = self._calls.get(header.message)
        if header.kind == PROBE:
            try:
                is_known = self.host.row(header.message).dst == self.host.node
            except KeyError:
                is_known = False
            call = self.probed if is_known else None
            self.unknown += not is_known
        if call is not None:
            call(header, content)

    def listen_for(self, message: int, call: Callable[[Header, bytes], None]) -> None:
        """Set the handler of answers about a message sent from here."""
        self._calls[message] = call

    def probe(self, row: MessageRow, number: int, part: int = 0) -> int:
        """Send a Probe in the class of its data; return its bytes on the link. It asks for one part of the Bitmap,
        counted from 1, or for all (0)."""
        header = Header(row.number, part, sequence=number, kind=PROBE, important=True)
        return self._send(self._to[row.dst], header, tos=dscp(row.priority) << 2)

    def answer(self, row: MessageRow, header: Header, content: bytes = b"") -> None:
        """Send a Stop or a part of a Bitmap to the sender of a message."""
        connections = self._from.get(self.host.address(row.src))
        if connections is None:
            raise TestbedError(f"no connection from {self.host.address(row.src)} for answers", "agent", usage=False)
        self.nic.add_control_bytes(self._send(connections, header, content))

    @staticmethod
    def _send(connections: Sequence[Connection], header: Header, content: bytes = b"", tos: int = CONTROL_TOS) -> int:
        min(connections, key=Connection.poll).write(header, content, tos)
        return sum(connection.take_link_bytes() for connection in connections)

    def close(self) -> None:
        for connection in self._all():
            connection.close()
        if self._listener is not None:
            self._listener.close()
            self._listener = None
