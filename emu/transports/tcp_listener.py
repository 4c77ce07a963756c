"""`OpeningListener` listens at a host's TCP port and accepts only connections that begin with this run's token.

On real machines other programs always connect: a port scan, a browser, a run that has not ended. Connections with a
different opening are rejected and counted; silent ones wait, and the oldest of too many is rejected.
"""

from __future__ import annotations

import contextlib
import errno
import resource
import socket
from collections.abc import Callable
from functools import partial

from gradwire.emu.agent.base import CarrierHost
from gradwire.emu.switches.backend_kind import TestbedError
from gradwire.emu.wire.header import ForeignDataError, Opening

MAX_UNOPENED = 1024
"""Limit on connections without an opening; those of the run open at once; our choice."""

BACKLOG = 4096
FILES = 1 << 16
"""Limit on open files that is needed: every connection is one."""

AcceptCallback = Callable[[socket.socket, str], None]


def acknowledge_now(link: socket.socket) -> None:
    """Acknowledge the opening at once, not with the first packets of the run."""
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)


def take_opening(opening: Opening, link: socket.socket, data: bytes) -> bytes:
    """Check received bytes of the other end's opening; return those behind it."""
    try:
        data = opening.feed(data)
    except ForeignDataError as error:
        where = ":".join(map(str, link.getpeername()))
        raise TestbedError(f"{error}", where, "a port reserved for gradwire's agent", usage=False) from None
    if not opening.missing_bytes:
        acknowledge_now(link)
    return data


def connect(
    host: CarrierHost, node: int, port: int, configure: Callable[[socket.socket], object], ready: Callable[[], None]
) -> socket.socket:
    """Begin to connect to a port of a host; return the socket. `ready` is called when it is connected.

    Raises TestbedError, here or in the loop: the connection fails.
    """
    link = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    configure(link)
    link.bind((host.address(host.node), 0))

    def check(code: int) -> None:
        if code:
            what = f"cannot connect to {host.address(node)}: {errno.errorcode.get(code, code)}"
            raise TestbedError(what, "agent", usage=False)

    def on_writable() -> None:
        host.loop.writer(link.fileno(), None)
        check(link.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
        ready()

    code = link.connect_ex((host.address(node), port))
    check(0 if code == errno.EINPROGRESS else code)
    host.loop.writer(link.fileno(), on_writable)
    return link


def close(host: CarrierHost, link: socket.socket) -> None:
    """Close a connection; no effect if it is closed."""
    if link.fileno() >= 0:
        host.loop.reader(link.fileno(), None)
        host.loop.writer(link.fileno(), None)
        link.close()


class OpeningListener:
    """Listener at a port of a host.

    let : called as let(link, address) with every connection that has opened correctly, after the reply.
    configure : called with the socket before it listens.
    turned : number of rejected connections.
    """

    def __init__(
        self, host: CarrierHost, port: int, let: AcceptCallback, configure: Callable[[socket.socket], object]
    ) -> None:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if 0 <= soft < FILES:
            resource.setrlimit(resource.RLIMIT_NOFILE, (min(FILES, hard) if hard >= 0 else FILES, hard))
        self.host, self.turned, self._let = host, 0, let
        self._unopened: dict[socket.socket, tuple[str, Opening]] = {}
        address = host.address(host.node)
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        configure(self._socket)
        try:
            self._socket.bind((address, port))
        except OSError as error:
            self._socket.close()
            what = f"cannot listen on TCP port {port} of {address}: {error.strerror}"
            raise TestbedError(what, "agent", "a free port") from None
        self._socket.listen(BACKLOG)
        host.loop.reader(self._socket.fileno(), self._accept)

    def address(self) -> tuple[str, int]:
        host, port = self._socket.getsockname()
        return host, port

    def _accept(self) -> None:
        while True:
            try:
                link, (address, _) = self._socket.accept()
            except BlockingIOError:
                return
            except OSError:  # the connection has ended, or there are no more file descriptors
                self.turned += 1
                return
            link.setblocking(False)
            self._unopened[link] = address, Opening(self.host.token)
            self.host.loop.reader(link.fileno(), partial(self._read_opening, link))
            if len(self._unopened) > MAX_UNOPENED:
                self._reject(next(iter(self._unopened)))

    def _read_opening(self, link: socket.socket) -> None:
        address, opening = self._unopened[link]
        try:
            data = link.recv(opening.missing_bytes)
            if not data:
                raise ForeignDataError("no opening")
            opening.feed(data)
            if opening.missing_bytes:
                return
            link.send(opening.words)
            acknowledge_now(link)  # after a reply the kernel would delay acknowledgements until the next one
        except BlockingIOError:
            return
        except (ForeignDataError, OSError):
            self._reject(link)
            return
        del self._unopened[link]
        self.host.loop.reader(link.fileno(), None)
        self._let(link, address)

    def _reject(self, link: socket.socket) -> None:
        self.turned += 1
        self._forget(link)

    def _forget(self, link: socket.socket) -> None:
        del self._unopened[link]
        self.host.loop.reader(link.fileno(), None)
        with contextlib.suppress(OSError):
            link.close()

    def close(self) -> None:
        """Stop listening and close unopened connections."""
        for link in list(self._unopened):
            self._forget(link)
        self.host.loop.reader(self._socket.fileno(), None)
        self._socket.close()
