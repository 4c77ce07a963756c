"""A host's namespace and the TUN device in it, through which its packets come and go.

The namespace has no name and no file: it is there as long as somebody holds it open, so nothing can be left behind.
The device carries bare IPv4 packets, one per read and write; a packet that a host sends without waiting for anybody
lies in the device until it is read.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import struct
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from gradwire.emu.switches.base import TestbedError
from gradwire.emu.system.kernel_tcp import metric_words, metrics_shown
from gradwire.emu.system.namespaces import find_tool

DEVICE = "/dev/net/tun"
QUEUE = 20_000
"""Packets that the kernel keeps for us (our choice: more than any window)."""
PATIENCE_S = 20.0

_NEWNET = 0x40000000
_SET_INTERFACE = 0x400454CA
_TUN_WITHOUT_HEADER = 0x0001 | 0x1000
_libc = ctypes.CDLL(None, use_errno=True)


def new_namespace() -> int:
    """File descriptor of a fresh network namespace."""
    with _returning():
        if _libc.unshare(_NEWNET):
            raise _refused("cannot make a network namespace")
        return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


@contextmanager
def inside(namespace: int) -> Iterator[None]:
    """This thread, and processes that it starts, in a network namespace."""
    with _returning():
        if _libc.setns(namespace, _NEWNET):
            raise _refused("cannot enter a network namespace")
        yield


def open_tun(namespace: int, name: str) -> int:
    """A new TUN device in a namespace: a file of which every read is a packet that left the host."""
    with inside(namespace):
        try:
            file = os.open(DEVICE, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise TestbedError(f"cannot open {DEVICE}: {error.strerror}", "userspace switch") from None
        try:
            fcntl.ioctl(file, _SET_INTERFACE, struct.pack("16sH22x", name.encode(), _TUN_WITHOUT_HEADER))
        except OSError as error:
            os.close(file)
            raise TestbedError(
                f"cannot make a TUN device: {error.strerror}", "userspace switch", "root"
            ) from None
        return file


def set_up(
    namespace: int,
    name: str,
    address: str,
    mtu: int,
    metrics: Mapping[str, int] | None = None,
    sysctls: Mapping[str, str] | None = None,
) -> None:
    """Address, size and route of a host, and how its kernel's TCP is set (`gradwire.emu.system.kernel_tcp`); compared
    with what the kernel then says."""
    metrics, sysctls = metrics or {}, sysctls or {}
    route = f"route add default dev {name} src {address}{metric_words(metrics)}"
    lines = [
        "link set dev lo up",
        f"address add {address}/32 dev {name}",
        f"link set dev {name} mtu {mtu} txqueuelen {QUEUE} multicast off up",
        route,
    ]
    with inside(namespace):
        with suppress(
            OSError
        ):  # a kernel without IPv6, or a user who may not: its packets are for nobody then
            Path("/proc/sys/net/ipv6/conf/all/disable_ipv6").write_text("1")
        try:
            for key, value in sysctls.items():
                Path("/proc/sys", key).write_text(value)
        except OSError as error:
            raise TestbedError(f"cannot set {key}: {error.strerror}", f"host {address}") from None
        _ip("-batch", "-", text="\n".join(lines))
        found = json.loads(_ip("-j", "address", "show", "dev", name))[0]
        routes = json.loads(_ip("-j", "route", "show", "default"))
        settings = {key: Path("/proc/sys", key).read_text().strip() for key in sysctls}
    got = (found["mtu"], [each["local"] for each in found["addr_info"]], "UP" in found["flags"], settings)
    wanted = (mtu, [address], True, dict(sysctls))
    if got != wanted:
        raise TestbedError(
            f"the kernel has {got} as (mtu, addresses, up, sysctls)", f"host {address}", f"{wanted}"
        )
    if [(each.get("dev"), metrics_shown(each)) for each in routes] != [(name, metrics)]:
        raise TestbedError(f"the kernel has the routes {routes}", f"host {address}", f"one by {name}, {metrics}")


def lost_in_devices(namespace: int, name: str) -> int:
    """Packets that the kernel dropped between the host and the switch, in either direction."""
    with inside(namespace):
        text = Path("/proc/thread-self/net/dev").read_text()
    for line in text.splitlines():
        device, _, figures = line.partition(":")
        if device.strip() == name:
            columns = [int(figure) for figure in figures.split()]
            return columns[2] + columns[3] + columns[10] + columns[11]  # errors and drops, in and out
    raise TestbedError("is gone", f"device {name}", usage=False)


def _ip(*arguments: str, text: str = "") -> str:
    try:
        done = subprocess.run(
            [find_tool("ip") or "ip", *arguments],
            input=text,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
    except FileNotFoundError:
        raise TestbedError("is not installed", "the command ip", "iproute2") from None
    except subprocess.TimeoutExpired:
        raise TestbedError(
            f"did not end within {PATIENCE_S:g} s: ip {' '.join(arguments)}", "userspace switch"
        ) from None
    if done.returncode or done.stderr.strip():
        raise TestbedError(f"ip {' '.join(arguments)}: {done.stderr.strip()}", "userspace switch")
    return done.stdout


@contextmanager
def _returning() -> Iterator[None]:
    """Whatever happens to this thread's network namespace, it is the same again afterwards."""
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield
    finally:
        failed = _libc.setns(home, _NEWNET)
        os.close(home)
        if failed:
            raise _refused("cannot return to the network namespace")


def _refused(what: str) -> TestbedError:
    return TestbedError(f"{what}: {os.strerror(ctypes.get_errno())}", "userspace switch", "root")
