"""TCP sockets that listen, and room for as many files as a host's connections are."""

from __future__ import annotations

import resource
import socket
from collections.abc import Callable

from gradwire.emu.switches.base import TestbedError

BACKLOG = 4096
FILES = 1 << 16


def allow_files() -> None:
    """As many open files as this process may have, up to FILES: a connection is one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= soft < FILES:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(FILES, hard) if hard >= 0 else FILES, hard))


def listening(address: str, port: int, *, configure: Callable[[socket.socket], object] | None = None) -> socket.socket:
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
