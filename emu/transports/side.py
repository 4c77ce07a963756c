"""The reliable side channel of a host: Stop, Probe and Bitmap over TCP.

One connection for every host that this one sends messages to: Probes go one way, answers come back the other, so that
a Probe that waits in the queue of its data holds no answer back (the bytes of a stream stay in order). A Probe has the
DSCP of its data, answers that of control.

Both ends greet each other, with an acknowledgement of nothing, and a connection counts as one when the greeting of the
other end has come. To the kernel of the one that asked for it it is one earlier; but the last packet of TCP's handshake
can get lost, and then the other end knows of no connection until more arrives - too late for its first answer.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from emu.agent.base import Host, MessageRow
from emu.agent.nic import Nic
from emu.switches.base import TestbedError
from emu.wire import ACK, PROBE, WORD, Frames, Header
from scenarios.wire import CONTROL_PORT, GRADWIRE, TCP_OVERHEAD, dscp

CONTROL_TOS = dscp(0) << 2
TCP_CONGESTION = getattr(socket, "TCP_CONGESTION", 13)
TCP_THIN_LINEAR_TIMEOUTS = 16
TCP_RTO_MIN_US = 45
RTO_MIN_US = 5000
BACKLOG = 4096
READ_BYTES = 1 << 16
GREETING = Header(WORD, kind=ACK, important=True)


class Connection:
    """A TCP connection that carries frames both ways, and never waits."""

    def __init__(self, host: Host, link: socket.socket, take: Callable[[Connection, Header, bytes], None]) -> None:
        self.host, self.link, self.take = host, link, take
        self._frames = Frames()
        self._waiting = bytearray()
        self._tos = -1

    def begin(self) -> None:
        """It is established."""
        self.link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.host.loop.reader(self.link.fileno(), self._read)
        self.write(GREETING)

    def _with(self, tos: int) -> None:
        if tos != self._tos:
            self._tos = tos
            self.link.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, tos)

    def write(self, header: Header, content: bytes = b"", tos: int = CONTROL_TOS) -> int:
        """Send a frame. Returns the bytes that it takes on the link."""
        data = header.pack() + content
        if self._waiting:
            self._waiting += data
        else:
            self._with(tos)
            self._put(data)
            self._with(CONTROL_TOS)
        return TCP_OVERHEAD + len(data)

    def _put(self, data: bytes | bytearray) -> None:
        try:
            done = self.link.send(data)
        except BlockingIOError:
            done = 0
        except (BrokenPipeError, ConnectionResetError):  # the other host has ended: the controller sees to that
            return
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
                return
            except OSError:
                data = b""
            if not data:  # the other host has ended
                self.host.loop.reader(self.link.fileno(), None)
                return
            for header, content in self._frames.feed(data):
                self.take(self, header, content)
            if len(data) < READ_BYTES:
                return

    def close(self) -> None:
        """Close it."""
        if self.link.fileno() >= 0:
            self.host.loop.reader(self.link.fileno(), None)
            self.host.loop.writer(self.link.fileno(), None)
            self.link.close()


def configure(link: socket.socket) -> None:
    """Before it connects or listens: DCTCP where there is any, because both ends then make every packet ECN-capable,
    whatever the sysctl says, and no switch drops it by choice. Where the kernel lets a socket say so (6.17), a lost
    segment is sent again after 5 ms instead of 200; elsewhere the route's `rto_min` decides. Waits do not double from
    one try to the next, six times [Documentation/networking/tcp-thin]: what is lost here is a few bytes in a full
    buffer, and a sender that waits for longer and longer asks less often than DLCP does."""
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
        self._listening: socket.socket | None = None
        self._to: dict[int, Connection] = {}  # by host that messages go to
        self._from: dict[str, Connection] = {}  # by address of the host that they come from
        self._calls: dict[int, Callable[[Header, bytes], None]] = {}
        self.probed: Callable[[Header, bytes], None] | None = None
        """takes Probes, for messages that are received here"""
        self._pending: set[Connection] = set()

    def open(self) -> None:
        """Listen; the second time nothing."""
        if self._listening is not None:
            return
        address = self.host.address(self.host.node)
        self._listening = listening(address, CONTROL_PORT, configure=configure)
        self.host.loop.reader(self._listening.fileno(), self._accept)

    def connect(self, peers: Sequence[int]) -> None:
        """Begin to connect to the hosts that messages go to; those that are connected stay so."""
        for node in peers:
            if node in self._to or node == self.host.node:
                continue
            link = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
            configure(link)
            link.bind((self.host.address(self.host.node), 0))
            self._to[node] = connection = Connection(self.host, link, self._take)
            self._pending.add(connection)
            code = link.connect_ex((self.host.address(node), CONTROL_PORT))
            if code not in (0, 115):  # in progress
                raise TestbedError(f"cannot connect to {self.host.address(node)}: error {code}", "agent")
            self.host.loop.writer(link.fileno(), partial(self._connected, node, connection))

    def _connected(self, node: int, connection: Connection) -> None:
        self.host.loop.writer(connection.link.fileno(), None)
        code = connection.link.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise TestbedError(f"cannot connect to {self.host.address(node)}: error {code}", "agent", usage=False)
        connection.begin()

    def connected(self) -> bool:
        """Whether every connection that was begun here is there, at both ends."""
        return not self._pending

    def _accept(self) -> None:
        assert self._listening is not None
        while True:
            try:
                link, (address, _) = self._listening.accept()
            except BlockingIOError:
                return
            link.setblocking(False)
            self._from[address] = connection = Connection(self.host, link, self._take)
            connection.begin()

    def _take(self, connection: Connection, header: Header, content: bytes) -> None:
        if header == GREETING:
            # so that it is acknowledged now and not with the first packets of the run
            connection.link.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
            self._pending.discard(connection)
            return
        call = self.probed if header.kind == PROBE else self._calls.get(header.message)
        if call is not None:
            call(header, content)

    def listen_for(self, message: int, call: Callable[[Header, bytes], None]) -> None:
        """Who takes the answers about a message that is sent from here."""
        self._calls[message] = call

    def probe(self, row: MessageRow, number: int) -> int:
        """Send a Probe in the class of its data. Returns its bytes on the link."""
        header = Header(row.number, sequence=number, kind=PROBE, important=True)
        return self._to[row.dst].write(header, tos=dscp(row.priority) << 2)

    def answer(self, row: MessageRow, header: Header, content: bytes = b"") -> None:
        """Send a Stop or a part of a Bitmap to the sender of a message."""
        connection = self._from.get(self.host.address(row.src))
        if connection is None:
            raise TestbedError(
                f"no connection from {self.host.address(row.src)} to answer on", "agent", usage=False
            )
        connection.write(header, content)
        self.nic.took(TCP_OVERHEAD + GRADWIRE + len(content))

    def close(self) -> None:
        """Close everything."""
        for connection in [*self._to.values(), *self._from.values()]:
            connection.close()
        if self._listening is not None:
            self.host.loop.reader(self._listening.fileno(), None)
            self._listening.close()
            self._listening = None


def listening(address: str, port: int, *, configure: Callable[[socket.socket], Any] | None = None) -> socket.socket:
    """A TCP socket that listens; TestbedError if the port is taken."""
    made = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if configure is not None:
        configure(made)
    try:
        made.bind((address, port))
    except OSError as error:
        made.close()
        raise TestbedError(
            f"TCP port {port} of {address} cannot be used: {error.strerror}", "agent", "a free port of the host's own"
        ) from None
    made.listen(BACKLOG)
    return made
