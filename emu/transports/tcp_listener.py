"""A TCP port of a host that accepts only connections with this run's opening.

On real machines other programs always connect: a port scan, a browser, a run that has not ended. Connections with a
different opening are rejected and counted; silent ones wait, and the oldest of too many is rejected.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable
from functools import partial

from gradwire.emu.agent.base import CarrierHost
from gradwire.emu.transports.listening_sockets import listening
from gradwire.emu.wire.header import ForeignDataError, Opening

MAX_UNOPENED = 1024
"""Limit on connections without an opening; those of the run open at once; our choice."""

AcceptCallback = Callable[[socket.socket, str], None]


class OpeningListener:
    """Listener at a port of a host.

    let : called as let(link, address) with every connection that has opened correctly, after the reply.
    configure : called with the socket before it listens.
    turned : number of rejected connections.
    """

    def __init__(
        self, host: CarrierHost, port: int, let: AcceptCallback, configure: Callable[[socket.socket], object]
    ) -> None:
        self.host, self.turned, self._let = host, 0, let
        self._unopened: dict[socket.socket, tuple[str, Opening]] = {}
        self._socket = listening(host.address(host.node), port, configure=configure)
        host.loop.reader(self._socket.fileno(), self._accept)

    def address(self) -> tuple[str, int]:
        """Return the address at which it listens."""
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
            data = link.recv(opening.lacking)
            if not data:
                raise ForeignDataError("no opening")
            opening.feed(data)
            if opening.lacking:
                return
            link.send(opening.words)
            # acknowledge now: after an immediate reply the kernel would delay acknowledgements until the next one
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
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
