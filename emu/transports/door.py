"""The door of a host: a TCP port that is open to everybody, and lets in who opens with the words of this run.

On real machines somebody always knocks: a port scan, a browser, a run that has not ended. Whoever says anything else is
turned away and counted; whoever says nothing waits outside, and the longest of too many such is turned away.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable
from functools import partial

from gradwire.emu.agent.base import Host
from gradwire.emu.transports.listening import listening
from gradwire.emu.wire.header import NotOurs, Opening

OUTSIDE = 1024
"""Connections that may stand outside, beside those of the run, which open at once; our choice."""

Letting = Callable[[socket.socket, str], None]


class Door:
    """Listens at a port of a host.

    `let(link, address)` gets every connection that has opened rightly, when it has been answered in the same words.
    `configure(socket)` is called before it listens. `turned`: how many were turned away.
    """

    def __init__(self, host: Host, port: int, let: Letting, configure: Callable[[socket.socket], object]) -> None:
        self.host, self.turned, self._let = host, 0, let
        self._outside: dict[socket.socket, tuple[str, Opening]] = {}
        self._socket = listening(host.address(host.node), port, configure=configure)
        host.loop.reader(self._socket.fileno(), self._accept)

    def address(self) -> tuple[str, int]:
        """Where it listens."""
        host, port = self._socket.getsockname()
        return host, port

    def _accept(self) -> None:
        while True:
            try:
                link, (address, _) = self._socket.accept()
            except BlockingIOError:
                return
            except OSError:  # it has gone already, or there are no more files for such
                self.turned += 1
                return
            link.setblocking(False)
            self._outside[link] = address, Opening(self.host.token)
            self.host.loop.reader(link.fileno(), partial(self._hear, link))
            if len(self._outside) > OUTSIDE:
                self._turn_away(next(iter(self._outside)))

    def _hear(self, link: socket.socket) -> None:
        address, opening = self._outside[link]
        try:
            data = link.recv(opening.lacking)
            if not data:
                raise NotOurs("it says nothing")
            opening.feed(data)
            if opening.lacking:
                return
            link.send(opening.words)
            # whoever answers on the spot acknowledges together with his next answer, from then on; not here
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
        except BlockingIOError:
            return
        except (NotOurs, OSError):
            self._turn_away(link)
            return
        del self._outside[link]
        self.host.loop.reader(link.fileno(), None)
        self._let(link, address)

    def _turn_away(self, link: socket.socket) -> None:
        self.turned += 1
        self._forget(link)

    def _forget(self, link: socket.socket) -> None:
        del self._outside[link]
        self.host.loop.reader(link.fileno(), None)
        with contextlib.suppress(OSError):
            link.close()

    def close(self) -> None:
        """Listen no more; whoever stands outside is not needed."""
        for link in list(self._outside):
            self._forget(link)
        self.host.loop.reader(self._socket.fileno(), None)
        self._socket.close()
