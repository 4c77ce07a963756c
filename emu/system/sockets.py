"""Many datagrams per system call, each with its own TOS byte: sendmmsg(2) and recvmmsg(2), by ctypes.

Python's own `sendmsg` takes one datagram; at 100 000 packets a second it is the largest part of the work. Everything
that a call needs is laid out once, in arenas of plain bytes at fixed places; per datagram only numbers are written.
The layouts are those of 64-bit Linux.
"""

from __future__ import annotations

import ctypes
import errno
import os
import select
import socket
import struct
import sys
from typing import Final

from gradwire.emu.switches.base import TestbedError
from gradwire.emu.wire.header import HEADER

LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.sendmmsg.argtypes = ctypes.c_int, ctypes.c_void_p, ctypes.c_uint, ctypes.c_int
LIBC.recvmmsg.argtypes = ctypes.c_int, ctypes.c_void_p, ctypes.c_uint, ctypes.c_int, ctypes.c_void_p
IP_RECVTOS: Final = 13
SO_RCVBUFFORCE: Final = 33
SO_SNDBUFFORCE: Final = 32
SO_MEMINFO: Final = 55
MEMINFO_DROPS: Final = 8
MESSAGE: Final = struct.Struct("=QI4xQQQQi4xI4x")
"""struct mmsghdr: name, its length, vectors, how many, control, its length, flags; bytes received"""
VECTORS: Final = struct.Struct("=QQQQ")
CONTROL: Final = struct.Struct("=QiiB7x")
"""struct cmsghdr and a TOS byte, as large as CMSG_SPACE(1)"""
LENGTH: Final = MESSAGE.size // 4
LENGTH_AT: Final = 56 // 4
ADDRESS: Final = 16 // 4
ADDRESS_AT: Final = 1  # behind family and port
CONTROL_ROOM: Final = 64
TOS_AT: Final = 16
HEADER_ROOM: Final = 32
SEND_WAIT_MS: Final = 1000
MSG_DONTWAIT: Final = 0x40
BUFFER_BYTES: Final = 16 << 20

Arena = "ctypes.Array[ctypes.c_char]"


def _arena(size: int) -> tuple[memoryview, int]:
    """Zeroed bytes that stay where they are: (to write to, their address)."""
    made = ctypes.create_string_buffer(size)
    return memoryview(made).cast("B"), ctypes.addressof(made)


def socket_address(host: str, port: int) -> bytes:
    """struct sockaddr_in."""
    return struct.pack("=H", socket.AF_INET) + struct.pack(">H", port) + socket.inet_aton(host) + bytes(8)


def address_word(host: str) -> int:
    """An IPv4 address as the kernel's words have it, in network order."""
    return int(struct.unpack("=I", socket.inet_aton(host))[0])


def address_of(data: memoryview) -> int:
    """Where bytes are in memory; they must be contiguous and outlive the use of the address."""
    import numpy as np

    return int(np.frombuffer(data, dtype=np.uint8).ctypes.data) if len(data) else 0


def receive_buffer(made: socket.socket, size: int) -> None:
    """Bytes that may wait to be read, whatever the machine allows everybody, if we may say so."""
    _buffer(made, SO_RCVBUFFORCE, socket.SO_RCVBUF, size)


def send_buffer(made: socket.socket, size: int) -> None:
    """Bytes that may wait to be sent, likewise."""
    _buffer(made, SO_SNDBUFFORCE, socket.SO_SNDBUF, size)


def _buffer(made: socket.socket, forced: int, plain: int, size: int) -> None:
    try:
        made.setsockopt(socket.SOL_SOCKET, forced, size)
    except PermissionError:  # root in a namespace of users only: as much as everybody may have
        made.setsockopt(socket.SOL_SOCKET, plain, size)


def open_datagrams(host: str, port: int) -> socket.socket:
    """A bound UDP socket that does not wait, tells the TOS byte of what it receives, and has a large buffer.

    Raises
    ------
    TestbedError
        The address cannot be bound.
    """
    if sys.maxsize < 1 << 32:
        raise TestbedError("sockets need 64-bit Linux", "gradwire.emu.system.sockets", "a 64-bit machine")
    made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
    made.setsockopt(socket.IPPROTO_IP, IP_RECVTOS, 1)
    receive_buffer(made, BUFFER_BYTES)
    send_buffer(made, BUFFER_BYTES)
    try:
        made.bind((host, port))
    except OSError as error:
        made.close()
        raise TestbedError(
            f"UDP port {port} of {host} cannot be used: {error.strerror}", "agent", "a free port and the host's address"
        ) from None
    return made


def overflowed(datagrams: socket.socket) -> int:
    """Datagrams that the kernel threw away because this socket was not read fast enough."""
    words = datagrams.getsockopt(socket.SOL_SOCKET, SO_MEMINFO, 4 * (MEMINFO_DROPS + 1))
    return struct.unpack(f"={len(words) // 4}I", words)[MEMINFO_DROPS]


class Sender:
    """Datagrams on their way out: `add` some, then `flush`. One for any number of sockets."""

    def __init__(self, slots: int = 64) -> None:
        self._slots = slots
        self._messages, self._messages_at = _arena(slots * MESSAGE.size)
        self._vectors, self._vectors_at = _arena(slots * VECTORS.size)
        self._headers, self._headers_at = _arena(slots * HEADER_ROOM)
        controls, self._controls_at = _arena(256 * CONTROL.size)
        for tos in range(256):
            CONTROL.pack_into(controls, tos * CONTROL.size, 17, socket.IPPROTO_IP, socket.IP_TOS, tos)
        self._controls = controls
        self._files: list[int] = []
        for slot in range(slots):  # all that is the same for every datagram
            VECTORS.pack_into(self._vectors, slot * VECTORS.size, self._headers_at + slot * HEADER_ROOM, 0, 0, 0)
            vectors = self._vectors_at + slot * VECTORS.size
            MESSAGE.pack_into(self._messages, slot * MESSAGE.size, 0, 16, vectors, 0, 0, CONTROL.size, 0, 0)
        self._vector_words, self._message_words = self._vectors.cast("Q"), self._messages.cast("Q")

    def add(
        self,
        file: int,
        name: int,
        tos: int,
        header: tuple[int, int, int, int, int],
        payload: int = 0,
        length: int = 0,
        fill: int = 0,
    ) -> None:
        """One datagram: a gradwire header (message, offset, length, sequence, flags) and `length` bytes at the address
        `payload`, or `fill` zeros. `name` is the address of a sockaddr_in that stays until `flush`."""
        slot = len(self._files)
        if slot == self._slots:
            self.flush()
            slot = 0
        HEADER.pack_into(self._headers, slot * HEADER_ROOM, *header)
        words, at = self._vector_words, slot * 4
        words[at + 1] = 16 + fill
        words[at + 2] = payload
        words[at + 3] = length
        words, at = self._message_words, slot * 8
        words[at] = name
        words[at + 3] = 2 if length else 1
        words[at + 4] = self._controls_at + tos * 24
        self._files.append(file)

    def flush(self) -> None:
        """Hand everything to the kernel.

        Raises
        ------
        OSError
            The kernel refuses, or a socket stayed full for a second.
        """
        files, first = self._files, 0
        count = len(files)
        while first < count:
            file, end = files[first], first + 1
            while end < count and files[end] == file:
                end += 1
            done = LIBC.sendmmsg(file, self._messages_at + first * 64, end - first, MSG_DONTWAIT)
            if done < 0:
                code = ctypes.get_errno()
                if code in (errno.EAGAIN, errno.ENOBUFS):
                    _wait_writable(file)
                elif code != errno.EINTR:
                    files.clear()
                    raise OSError(code, f"sendmmsg: {os.strerror(code)}")
                continue
            first += done
        files.clear()


def _wait_writable(file: int) -> None:
    waiting = select.poll()
    waiting.register(file, select.POLLOUT)
    if not waiting.poll(SEND_WAIT_MS):
        raise OSError(errno.EAGAIN, f"sendmmsg: the socket stayed full for {SEND_WAIT_MS} ms")


class Receiver:
    """Datagrams that have arrived: `receive` some, look at them, before the next `receive`. What is looked at for every
    packet are words at fixed places.

    data : of datagram i, `lengths[LENGTH * i + LENGTH_AT]` bytes, header included, from `i * room` on.
    addresses : the IPv4 address that it came from is `addresses[ADDRESS * i + ADDRESS_AT]`, as `address_word` has it.
    control : the TOS byte that it came with is `control[CONTROL_ROOM * i + TOS_AT]`.
    """

    def __init__(self, largest: int, slots: int = 128) -> None:
        self._slots = slots
        self.room = -(-max(largest, 64) // 64) * 64
        self.data, at = _arena(slots * self.room)
        self._names, self._names_at = _arena(slots * 16)
        self.control, control_at = _arena(slots * CONTROL_ROOM)
        vectors, vectors_at = _arena(slots * 16)
        self._messages, self._messages_at = _arena(slots * MESSAGE.size)
        for slot in range(slots):
            struct.pack_into("=QQ", vectors, slot * 16, at + slot * self.room, self.room)
            MESSAGE.pack_into(
                self._messages, slot * 64, self._names_at + slot * 16, 16, vectors_at + slot * 16, 1,
                control_at + slot * CONTROL_ROOM, CONTROL_ROOM, 0, 0,
            )  # fmt: skip
        self._vectors = vectors
        self.lengths = self._messages.cast("I")
        self.addresses = self._names.cast("I")

    def receive(self, file: int) -> int:
        """Take what is there, without waiting. Returns how many."""
        got: int = LIBC.recvmmsg(file, self._messages_at, self._slots, MSG_DONTWAIT, None)
        if got < 0:
            code = ctypes.get_errno()
            if code in (errno.EAGAIN, errno.EINTR, errno.ECONNREFUSED):
                return 0
            raise OSError(code, f"recvmmsg: {os.strerror(code)}")
        # the kernel has written how long names and control data are: as long as they are each time
        return got

    def full(self, got: int) -> bool:
        """Whether there may be more than the last call has returned."""
        return got == self._slots

    def name(self, slot: int) -> int:
        """The address of the sockaddr_in that it came from, until the next `receive`."""
        return self._names_at + slot * 16
