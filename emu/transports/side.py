"""The reliable side channel of a host: Stop, Probe and Bitmap over TCP.

A few connections with every host that this one sends messages to: Probes go one way, answers come back the other, so
that a Probe that waits in the queue of its data holds no answer back (the bytes of a stream stay in order). A Probe has
the DSCP of its data, answers that of control.

In a stream everything waits for what was lost before it, and the kernel repeats that at longer and longer intervals;
through a full buffer, where two of three packets are lost, a host can come to a standstill for half a second. So a
frame goes over the connection on which least has had to be repeated. And the kernel's own packets, acknowledgements and
repetitions, take their time on the host's line: otherwise data would be sent into the line as if they were not there,
and a queue would stand at the host's port (docs/fidelity.md has what both make).

Both ends open with the same words (`gradwire.emu.wire.header.Opening`), and a connection counts as one when those of
the other end have come. To the kernel of the one that asked for it it is one earlier; but the last packet of TCP's
handshake can get lost, and then the other end knows of no connection until more arrives - too late for its first
answer.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from gradwire.emu.agent.base import Host, MessageRow
from gradwire.emu.agent.nic import Nic
from gradwire.emu.switches.base import TestbedError
from gradwire.emu.transports.door import Door
from gradwire.emu.transports.listening import allow_files
from gradwire.emu.wire.header import PROBE, Frames, Header, NotOurs, Opening
from gradwire.scenarios.wire import CONTROL_PORT, TCP_OVERHEAD, dscp

CONTROL_TOS = dscp(0) << 2
TCP_CONGESTION = getattr(socket, "TCP_CONGESTION", 13)
TCP_THIN_LINEAR_TIMEOUTS = 16
TCP_RTO_MIN_US = 45
RTO_MIN_US = 5000
READ_BYTES = 1 << 16
THIN = 3
"""segments on their way with which waits do not double yet [net/ipv4/tcp_timer.c: `tcp_stream_is_thin`]"""
CONNECTIONS = 4
"""between two hosts, each way (our choice: with 8 and 16 a job through a full buffer takes no less time)"""
WORD = struct.Struct("=I")
LONG = struct.Struct("=Q")
INFO_BYTES, AGAIN_AT, BACKOFF_AT, UNACKED_AT, SEGMENTS_AT, BYTES_AT = 232, 2, 4, 24, 136, 200
"""`struct tcp_info`: tcpi_retransmits, _backoff, _unacked, _segs_out, _bytes_sent (Linux 4.19) [linux/tcp.h]"""
FREE, STUCK = (0, 0), 1 << 16


class Connection:
    """A TCP connection that carries frames both ways, and never waits."""

    def __init__(
        self, host: Host, nic: Nic, link: socket.socket, take: Callable[[Connection, Header, bytes], None],
        opening: Opening | None = None, opened: Callable[[Connection], None] = lambda connection: None,
    ) -> None:  # fmt: skip
        """`opening`: what the other end still has to say, where it was we who asked for the connection; `opened` is
        called when it has."""
        self.host, self.nic, self.link, self.take = host, nic, link, take
        self._opening, self.opened = opening, opened
        self._frames = Frames()
        self._waiting = bytearray()
        self._tos = CONTROL_TOS  # `configure` has seen to that
        self._segments = self._bytes = self._unpaid = 0
        self._idle = False
        """nothing was on its way when the kernel was last asked, and nothing has been written since"""

    def begin(self) -> None:
        """It is established."""
        self.link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.host.loop.reader(self.link.fileno(), self._read)
        if self._opening is not None:
            self._put(self._opening.words)
        else:
            self.established()

    def established(self) -> None:
        """Both ends have opened. That is acknowledged now and not with the first packets of the run."""
        self.link.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)

    def look(self) -> tuple[int, int]:
        """How little it is to be preferred: how often in a row the kernel has sent again what is on its way, and how
        many segments that is, in steps of THIN. While nothing is, the kernel is not asked: many hosts may share a
        processor, and a call for each connection and Probe makes their timers late."""
        return FREE if self._idle else self.ask()

    def ask(self) -> tuple[int, int]:
        """The same, in any case as the kernel has it."""
        info = self.link.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, INFO_BYTES)
        (segments,), (sent,) = WORD.unpack_from(info, SEGMENTS_AT), LONG.unpack_from(info, BYTES_AT)
        self._unpaid += (segments - self._segments) * TCP_OVERHEAD + sent - self._bytes
        self._segments, self._bytes = segments, sent
        waits = STUCK if self._waiting else 0
        (unacked,) = WORD.unpack_from(info, UNACKED_AT)
        self._idle = not (waits or unacked)
        return waits + max(info[AGAIN_AT], info[BACKOFF_AT]), unacked // THIN

    def owed(self) -> int:
        """Bytes on the link since this was last asked: what was written, and what the kernel said when it was last
        asked: also acknowledgements, and what it has sent again."""
        owed = max(self._unpaid, 0)
        self._unpaid -= owed
        return owed

    def _with(self, tos: int) -> None:
        if tos != self._tos:
            self._tos = tos
            self.link.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, tos)

    def write(self, header: Header, content: bytes = b"", tos: int = CONTROL_TOS) -> None:
        """Send a frame."""
        data = header.pack() + content
        if self._waiting:
            self._waiting += data
        else:
            self._with(tos)
            self._put(data)
            self._with(CONTROL_TOS)

    def _put(self, data: bytes | bytearray) -> None:
        try:
            done = self.link.send(data)
        except BlockingIOError:
            done = 0
        except (BrokenPipeError, ConnectionResetError):  # the other host has ended: the controller sees to that
            return
        if done:  # a segment, as far as is known; when the kernel is asked next it is put right
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
                data = self._opened(data)
            for header, content in self._frames.feed(data):
                self.take(self, header, content)
            if read < READ_BYTES:
                break
        self.ask()
        if owed := self.owed():
            self.nic.took(owed)

    def _opened(self, data: bytes) -> bytes:
        assert self._opening is not None
        try:
            data = self._opening.feed(data)
        except NotOurs as error:
            address = ":".join(map(str, self.link.getpeername()))
            raise TestbedError(f"{error}", address, "that port free for gradwire's agent", usage=False) from None
        if not self._opening.lacking:
            self._opening = None
            self.established()
            self.opened(self)
        return data

    def close(self) -> None:
        """Close it."""
        if self.link.fileno() >= 0:
            self.host.loop.reader(self.link.fileno(), None)
            self.host.loop.writer(self.link.fileno(), None)
            self.link.close()


def configure(link: socket.socket) -> None:
    """Before it connects or listens: the class of control, for what the kernel sends by itself, too; a connection that
    has written nothing would acknowledge in the lowest class, behind all data, and the other end repeat what it takes
    for lost. DCTCP where there is any, because both ends then make every packet ECN-capable,
    whatever the sysctl says, and no switch drops it by choice. Where the kernel lets a socket say so (6.17), a lost
    segment is sent again after 5 ms instead of 200; elsewhere the route's `rto_min` decides. Waits do not double from
    one try to the next, six times [Documentation/networking/tcp-thin]: what is lost here is a few bytes in a full
    buffer, and a sender that waits for longer and longer asks less often than DLCP does."""
    link.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, CONTROL_TOS)
    for option, value in ((TCP_RTO_MIN_US, RTO_MIN_US), (TCP_THIN_LINEAR_TIMEOUTS, 1)):
        with contextlib.suppress(OSError):
            link.setsockopt(socket.IPPROTO_TCP, option, value)
    for name in (b"dctcp", b"reno"):
        with contextlib.suppress(OSError):
            link.setsockopt(socket.IPPROTO_TCP, TCP_CONGESTION, name)
            return


class SideChannel:
    """All side connections of a host; shared by its transports."""

    def __init__(self, host: Host, nic: Nic) -> None:
        self.host, self.nic = host, nic
        self._door: Door | None = None
        self.unknown = 0
        """Probes for messages that this host does not receive"""
        self._to: dict[int, list[Connection]] = {}  # by host that messages go to
        self._from: dict[str, list[Connection]] = {}  # by address of the host that they come from
        self._calls: dict[int, Callable[[Header, bytes], None]] = {}
        self.probed: Callable[[Header, bytes], None] | None = None
        """takes Probes, for messages that are received here"""
        self._pending: dict[Connection, None] = {}

    def open(self) -> None:
        """Listen; the second time nothing."""
        if self._door is not None:
            return
        allow_files()
        self._door = Door(self.host, CONTROL_PORT, self._let, configure)

    def strays(self) -> int:
        """What came and was none of this run's."""
        return self.unknown + (self._door.turned if self._door is not None else 0)

    def connect(self, peers: Sequence[int]) -> None:
        """Begin to connect to the hosts that messages go to; those that are connected stay so."""
        for node in peers:
            if node in self._to or node == self.host.node:
                continue
            self._to[node] = [self._begin(node) for _ in range(CONNECTIONS)]

    def _begin(self, node: int) -> Connection:
        link = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        configure(link)
        link.bind((self.host.address(self.host.node), 0))
        connection = Connection(self.host, self.nic, link, self._take, Opening(self.host.token), self._pending.pop)
        self._pending[connection] = None
        code = link.connect_ex((self.host.address(node), CONTROL_PORT))
        if code not in (0, 115):  # in progress
            raise TestbedError(f"cannot connect to {self.host.address(node)}: error {code}", "agent")
        self.host.loop.writer(link.fileno(), partial(self._connected, node, connection))
        return connection

    def _connected(self, node: int, connection: Connection) -> None:
        self.host.loop.writer(connection.link.fileno(), None)
        code = connection.link.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise TestbedError(f"cannot connect to {self.host.address(node)}: error {code}", "agent", usage=False)
        connection.begin()

    def connected(self) -> bool:
        """Whether every connection that was begun here is there, at both ends."""
        return not self._pending

    def begin(self) -> None:
        """The run begins. What was on the line before takes no time in it."""
        for connection in self._all():
            connection.ask()
            connection.owed()

    def _all(self) -> Iterator[Connection]:
        for connections in (*self._to.values(), *self._from.values()):
            yield from connections

    def _let(self, link: socket.socket, address: str) -> None:
        connection = Connection(self.host, self.nic, link, self._take)
        self._from.setdefault(address, []).append(connection)
        connection.begin()

    def _take(self, connection: Connection, header: Header, content: bytes) -> None:
        if header.kind != PROBE:
            call = self._calls.get(header.message)
        elif self._receives(header.message):
            call = self.probed
        else:
            call, self.unknown = None, self.unknown + 1
        if call is not None:
            call(header, content)

    def _receives(self, message: int) -> bool:
        try:
            return self.host.row(message).dst == self.host.node
        except KeyError:
            return False

    def listen_for(self, message: int, call: Callable[[Header, bytes], None]) -> None:
        """Who takes the answers about a message that is sent from here."""
        self._calls[message] = call

    def probe(self, row: MessageRow, number: int, part: int = 0) -> int:
        """Send a Probe in the class of its data, for one part of the Bitmap, counted from 1, or for everything. Returns
        its bytes on the link."""
        header = Header(row.number, part, sequence=number, kind=PROBE, important=True)
        return self._send(self._to[row.dst], header, tos=dscp(row.priority) << 2)

    def answer(self, row: MessageRow, header: Header, content: bytes = b"") -> None:
        """Send a Stop or a part of a Bitmap to the sender of a message."""
        connections = self._from.get(self.host.address(row.src))
        if connections is None:
            raise TestbedError(
                f"no connection from {self.host.address(row.src)} to answer on", "agent", usage=False
            )
        self.nic.took(self._send(connections, header, content))

    @staticmethod
    def _send(
        connections: Sequence[Connection], header: Header, content: bytes = b"", tos: int = CONTROL_TOS
    ) -> int:
        min(connections, key=Connection.look).write(header, content, tos)
        return sum(connection.owed() for connection in connections)

    def close(self) -> None:
        """Close everything."""
        for connection in self._all():
            connection.close()
        if self._door is not None:
            self._door.close()
            self._door = None
