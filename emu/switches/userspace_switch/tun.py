"""Makes a host's TUN device for the userspace switch, and sets up the host's address, route and TCP settings.

The namespace has no name and no file: it exists while a process holds it open, so nothing is left behind. The device
carries plain IPv4 packets, one per read and write; a sent packet stays in the device until it is read.
"""

from __future__ import annotations

import fcntl
import os
import struct
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from gradwire.emu.switches.backend_kind import TestbedError
from gradwire.emu.system.kernel_tcp import metric_words, metrics_shown
from gradwire.emu.system.namespaces import batch, inside, query_json

DEVICE = "/dev/net/tun"
QUEUE = 20_000
"""Packets that the kernel queues in the device (our choice: more than any window)."""

_SET_INTERFACE = 0x400454CA
_TUN_WITHOUT_HEADER = 0x0001 | 0x1000


def open_tun(namespace: int, name: str) -> int:
    """Return the file of a new TUN device in a namespace; every read is a packet sent by the host."""
    with inside(namespace):
        try:
            file = os.open(DEVICE, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise TestbedError(f"cannot open {DEVICE}: {error.strerror}", "userspace switch") from None
        try:
            fcntl.ioctl(file, _SET_INTERFACE, struct.pack("16sH22x", name.encode(), _TUN_WITHOUT_HEADER))
        except OSError as error:
            os.close(file)
            raise TestbedError(f"cannot make a TUN device: {error.strerror}", "userspace switch", "root") from None
        return file


def set_up(
    namespace: int,
    name: str,
    address: str,
    mtu: int,
    metrics: Mapping[str, int] | None = None,
    sysctls: Mapping[str, str] | None = None,
) -> None:
    """Set a host's address, MTU, route and TCP settings (`gradwire.emu.system.kernel_tcp`), and check the result."""
    metrics, sysctls = metrics or {}, sysctls or {}
    lines = [
        "link set dev lo up",
        f"address add {address}/32 dev {name}",
        f"link set dev {name} mtu {mtu} txqueuelen {QUEUE} multicast off up",
        f"route add default dev {name} src {address}{metric_words(metrics)}",
    ]
    with inside(namespace):
        with suppress(OSError):  # no IPv6 or no privilege: IPv6 packets are then ignored
            Path("/proc/sys/net/ipv6/conf/all/disable_ipv6").write_text("1")
        try:
            for key, value in sysctls.items():
                Path("/proc/sys", key).write_text(value)
        except OSError as error:
            raise TestbedError(f"cannot set {key}: {error.strerror}", f"host {address}") from None
        batch("ip", None, lines)
        (device,), routes = query_json("ip", None, [f"address show dev {name}", "route show default"])
        settings = {key: Path("/proc/sys", key).read_text().strip() for key in sysctls}
    actual = (device["mtu"], [entry["local"] for entry in device["addr_info"]], "UP" in device["flags"], settings)
    expected = (mtu, [address], True, dict(sysctls))
    if actual != expected:
        raise TestbedError(
            f"(mtu, addresses, up, sysctls) differ: the kernel has {actual}", f"host {address}", f"{expected}"
        )
    if [(entry.get("dev"), metrics_shown(entry)) for entry in routes] != [(name, metrics)]:
        raise TestbedError(f"routes differ: the kernel has {routes}", f"host {address}", f"one by {name}, {metrics}")


def lost_in_devices(namespace: int, name: str) -> int:
    """Return the packets that the kernel dropped between the host and the switch, in either direction."""
    with inside(namespace):
        text = Path("/proc/thread-self/net/dev").read_text()
    for line in text.splitlines():
        device, _, figures = line.partition(":")
        if device.strip() == name:
            columns = [int(figure) for figure in figures.split()]
            return columns[2] + columns[3] + columns[10] + columns[11]  # errors and drops, in and out
    raise TestbedError("no longer exists", f"device {name}", usage=False)
