"""Running networks of the userspace switch, and sockets of their hosts."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from userspace_cases import star

from gradwire.emu.planning.plan import TestbedPlan
from gradwire.emu.switches.backends.userspace import Userspace
from gradwire.emu.switches.userspace_switch.network import UserspaceSwitch
from gradwire.emu.system.namespaces import inside

missing = Userspace().missing(None, star(2))
needs_devices = pytest.mark.skipif(bool(missing), reason="; ".join(missing))


@contextmanager
def networks() -> Iterator[Callable[..., UserspaceSwitch]]:
    """A function that makes a running network of a plan; everything is gone afterwards."""
    made = []

    def run(plan: TestbedPlan, switch: UserspaceSwitch | None = None) -> UserspaceSwitch:
        made.append(switch or Userspace().make(plan))
        made[-1].build()
        made[-1].start()
        return made[-1]

    try:
        yield run
    finally:
        for each in made:
            each.close()


def udp(network: UserspaceSwitch, host: int, port: int = 0) -> socket.socket:
    with inside(network.namespace(host)):
        made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    made.bind((f"10.0.0.{host + 1}", port))
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
    made.settimeout(1.0)
    return made


def labelled(message: int, number: int, size: int) -> bytes:
    return struct.pack("!IIHIH", message, 0, size, number, 0) + bytes(size)
