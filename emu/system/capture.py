"""Captures packets at all ports of a node in a separate process, as pcapng files for Wireshark.

A process per node listens at all its ports (AF_PACKET). As in captures of simulated packets, the file has an interface
per direction of a cable, named "a->b": sent packets appear when their transmission begins, after the queue and with
their mark; received ones when they have arrived. Times are nanoseconds of the kernel's time stamps. Checksums are those
in memory, left to devices that do not exist, so Wireshark should not check them.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import BinaryIO
from urllib.parse import quote

from gradwire.emu.planning.plan import Port, TestbedPlan, host_address
from gradwire.emu.switches.backend_kind import TestbedError
from gradwire.emu.system.namespaces import inside
from gradwire.emu.system.processes import fork
from gradwire.emu.system.sockets import receive_buffer

SNAP = 256
"""Bytes stored of a frame; its full length is recorded."""
BUFFER = 64 << 20
EVERYTHING = 0x0003
OUTGOING = 4
NO_HARDWARE = 65534
"""A device without hardware addresses, such as TUN [ARPHRD_NONE in if_arp.h]."""
NO_ADDRESSES = bytes(12) + b"\x08\x00"
"""The Ethernet header with zero addresses that is written for its packets, so that all captures are alike."""
SO_TIMESTAMPNS, SOL_PACKET, PACKET_STATISTICS = 35, 263, 6
STOP_SECONDS = 30.0
LONGEST_NAME = 200
_SECTION = struct.pack("<IIIHHqI", 0x0A0D0D0A, 28, 0x1A2B3C4D, 1, 0, -1, 28)


def file_name(plan: TestbedPlan, node: int) -> str:
    """Return the name of a node's file: the node's name with special characters written as %XX."""
    name = quote(plan.names[node], safe="() ,:@+=")
    # file names have at most 255 bytes; longer names are truncated and numbered
    return f"{name if len(name) <= LONGEST_NAME else f'{name[:LONGEST_NAME]}~{node}'}.pcapng"


class PacketFile:
    """A pcapng file: interfaces first, then frames [IETF draft-ietf-opsawg-pcapng]."""

    def __init__(self, file: BinaryIO, interfaces: Sequence[str], hosts: Mapping[str, str], snap: int = SNAP) -> None:
        self._file, self._snap = file, snap
        file.write(_SECTION)
        for name in interfaces:
            options = _option(2, name.encode()) + _option(9, b"\x09") + _option(0, b"")  # name; 10**-9 s
            file.write(_block(1, struct.pack("<HHI", 1, 0, snap) + options))
        if hosts:
            records = b"".join(
                _option(1, socket.inet_aton(address) + name.encode() + b"\0") for name, address in hosts.items()
            )
            file.write(_block(4, records + _option(0, b"")))

    def write(self, interface: int, time_ns: int, data: bytes, *, outgoing: bool, length: int | None = None) -> None:
        """Write a frame; `data` may be the first bytes of `length`."""
        stored = data[: self._snap]
        full_length = len(data) if length is None else length
        head = struct.pack("<IIIII", interface, time_ns >> 32, time_ns & 0xFFFFFFFF, len(stored), full_length)
        flags = _option(2, struct.pack("<I", 2 if outgoing else 1)) + _option(0, b"")
        self._file.write(_block(6, head + _padded(stored) + flags))


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 4)


def _option(code: int, value: bytes) -> bytes:
    return struct.pack("<HH", code, len(value)) + _padded(value)


def _block(kind: int, body: bytes) -> bytes:
    length = struct.pack("<I", 12 + len(body))
    return struct.pack("<I", kind) + length + body + length


class Capture:
    """Capture of packets at the ports of one node, from `start` to `stop`.

    zero_ns : nanoseconds of CLOCK_REALTIME that are written as 0.
    """

    def __init__(self, plan: TestbedPlan, node: int, path: Path, *, snap: int = SNAP, zero_ns: int = 0) -> None:
        self.plan, self.node, self.path = plan, node, path
        self.snap, self.zero_ns = snap, zero_ns
        self.written = 0
        """frames in the file, after its end"""
        self._child = 0
        self._connection: Connection | None = None

    def start(self, namespace: int) -> None:
        """Start to listen in the network namespace of this descriptor; raise TestbedError if that fails."""
        ports = self.plan.ports_of_node(self.node)
        try:
            file = self.path.open("xb")
        except OSError as error:
            raise TestbedError(f"cannot write a capture: {error.strerror}", str(self.path), "a new file") from None
        with inside(namespace):
            try:
                sockets = [_listen(port.device) for port in ports]
            except OSError as error:
                raise TestbedError(
                    f"cannot capture packets: {error.strerror}", self.plan.names[self.node], "root"
                ) from None
        self._connection, child_end = Pipe()
        connection = self._connection

        def run() -> int:
            connection.close()
            try:
                with file:
                    answer: object = self._record(sockets, ports, file, child_end.fileno())
            except OSError as error:
                answer = error
            child_end.send(answer)
            return 0

        self._child = fork(run)
        file.close()
        child_end.close()
        for listening in sockets:
            listening.close()

    def stop(self) -> list[str]:
        """End the capture; return messages about missed packets. Raises OSError if the file could not be written."""
        assert self._connection is not None
        reason, answer = "ended early", None
        with self._connection as connection, suppress(OSError, EOFError):
            with suppress(OSError):  # it has ended
                connection.send(None)
            if connection.poll(STOP_SECONDS):
                answer = connection.recv()
            else:
                reason = f"did not end within {STOP_SECONDS:g} s"
                os.kill(self._child, 9)
        os.waitpid(self._child, 0)
        if answer is None:
            raise TestbedError(f"the capture at {self.plan.names[self.node]} {reason}", str(self.path), usage=False)
        if isinstance(answer, OSError):
            raise OSError(answer.errno, answer.strerror, str(self.path))
        self.written, missed = answer
        return [f"the capture at {self.plan.names[self.node]} missed {missed} packets"] if missed else []

    def _record(
        self, sockets: Sequence[socket.socket], ports: Sequence[Port], file: BinaryIO, stop: int
    ) -> tuple[int, int]:
        """Record packets in the child process until the other end of `stop` is closed or has sent something."""
        names = [name for port in ports for name in (port.name, self.plan.ports[port.number ^ 1].name)]
        hosts = {self.plan.names[host]: host_address(host) for host in range(self.plan.host_count)}
        packets = PacketFile(file, names, hosts, self.snap)
        written = 0
        poll = select.epoll()
        for opened in sockets:
            poll.register(opened.fileno(), select.EPOLLIN)
        poll.register(stop, select.EPOLLIN | select.EPOLLHUP)
        ends = False
        while not ends:
            ends = any(fd == stop for fd, _ in poll.poll())
            frames = [
                (time_ns, 2 * number + (not outgoing), data, outgoing)
                for number, opened in enumerate(sockets)
                for time_ns, data, outgoing in _waiting(opened)
            ]
            for time_ns, interface, data, outgoing in sorted(frames, key=lambda frame: frame[0]):
                packets.write(interface, max(0, time_ns - self.zero_ns), data, outgoing=outgoing)
            written += len(frames)
        lost = sum(struct.unpack("II", opened.getsockopt(SOL_PACKET, PACKET_STATISTICS, 8))[1] for opened in sockets)
        return written, lost


def _listen(device: str) -> socket.socket:
    opened = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(EVERYTHING))
    receive_buffer(opened, BUFFER)
    opened.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    opened.bind((device, EVERYTHING))
    opened.setblocking(False)
    return opened


def _waiting(opened: socket.socket) -> Iterable[tuple[int, bytes, bool]]:
    """Yield available frames as (time, data, True if the node sends it)."""
    while True:
        try:
            data, ancillary, _, address = opened.recvmsg(65536, 64)
        except BlockingIOError:
            return
        stamp = next((value for level, kind, value in ancillary if kind == SO_TIMESTAMPNS), None)
        seconds, nanoseconds = struct.unpack("qq", stamp) if stamp else divmod(time.time_ns(), 10**9)
        if address[3] == NO_HARDWARE:
            data = NO_ADDRESSES + data
        yield seconds * 10**9 + nanoseconds, data, address[2] == OUTGOING
