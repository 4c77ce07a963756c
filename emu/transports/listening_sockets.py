"""Listening TCP sockets, and the limit on open files that their connections need."""

from __future__ import annotations

import resource
import socket
from collections.abc import Callable

from gradwire.emu.switches.backend_kind import TestbedError

BACKLOG = 4096
FILES = 1 << 16


def allow_files() -> None:
    """Raise the limit on open files to at most FILES: every connection is one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= soft < FILES:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(FILES, hard) if hard >= 0 else FILES, hard))


def listening(address: str, port: int, *, configure: Callable[[socket.socket], object] | None = None) -> socket.socket:
    """Return a listening TCP socket; raise TestbedError if the port is taken."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if configure is not None:
        configure(listener)
    try:
        listener.bind((address, port))
    except OSError as error:
        listener.close()
        raise TestbedError(
            f"cannot listen on TCP port {port} of {address}: {error.strerror}", "agent", "a free port"
        ) from None
    listener.listen(BACKLOG)
    return listener
