"""Many datagrams per system call, each with its own TOS byte: sendmmsg(2) and recvmmsg(2).

Everything that a call needs is laid out once, in arenas of plain bytes at fixed places; per datagram only numbers are
written, by compiled code (`gradwire.emu.agent.core.datagrams`). The layouts are those of 64-bit Linux.
"""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import struct
import sys
from typing import Final

from gradwire.emu.agent import machine
from gradwire.emu.agent.core import layout as at
from gradwire.emu.agent.words import Block
from gradwire.emu.switches.base import TestbedError
from gradwire.emu.wire.header import HEADER

LIBC = ctypes.CDLL(None, use_errno=True)
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
HEADER_WORDS: Final = struct.Struct(">qq")
SEND_WAIT_MS: Final = 1000
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
    """Datagrams on their way out: `add` some, then `flush`. One for any number of sockets. `index`: where its words are
    (`gradwire.emu.agent.core.layout`: O_*), for compiled code that adds some."""

    def __init__(self, slots: int = 64, wait_ms: int = SEND_WAIT_MS) -> None:
        core = machine.core()
        self._add, self._flush = core["add"], core["flush"]
        messages, messages_at = _arena(slots * MESSAGE.size)
        vectors, vectors_at = _arena(slots * VECTORS.size)
        headers, headers_at = _arena(slots * HEADER_ROOM)
        controls, controls_at = _arena(256 * CONTROL.size)
        for tos in range(256):
            CONTROL.pack_into(controls, tos * CONTROL.size, 17, socket.IPPROTO_IP, socket.IP_TOS, tos)
        for slot in range(slots):  # all that is the same for every datagram
            VECTORS.pack_into(vectors, slot * VECTORS.size, headers_at + slot * HEADER_ROOM, 0, 0, 0)
            at_vectors = vectors_at + slot * VECTORS.size
            MESSAGE.pack_into(messages, slot * MESSAGE.size, 0, 16, at_vectors, 0, 0, CONTROL.size, 0, 0)
        self._files, self._poll, self._block = Block(slots), Block(1), Block(at.OUT_WORDS)
        self._kept = messages, vectors, headers, controls
        self.words, self.index = self._block.words, self._block.index
        self.words[at.O_MESSAGES], self.words[at.O_VECTORS] = messages_at, vectors_at
        self.words[at.O_HEADERS], self.words[at.O_CONTROLS] = headers_at, controls_at
        self.words[at.O_FILES], self.words[at.O_SLOTS] = self._files.address, slots
        self.words[at.O_POLL], self.words[at.O_WAIT_MS] = self._poll.address, wait_ms

    @property
    def empty(self) -> bool:
        """Whether everything has been handed over."""
        return self.words[at.O_COUNT] == 0

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
        first, second = HEADER_WORDS.unpack(HEADER.pack(*header))
        if self._add(self._block.address, file, name, tos, first, second, payload, length, fill):
            self._refused()

    def flush(self) -> None:
        """Hand everything to the kernel.

        Raises
        ------
        OSError
            The kernel refuses, or a socket stayed full for a second.
        """
        if self._flush(self._block.address):
            self._refused()

    def _refused(self) -> None:
        code = self.words[at.O_ERRNO]
        if code == errno.EAGAIN:
            raise OSError(code, "sendmmsg: the socket stayed full")
        raise OSError(code, f"sendmmsg: {os.strerror(code)}")


class Receiver:
    """Datagrams that have arrived: `receive` some, look at them, before the next `receive`. What is looked at for every
    packet are words at fixed places. `index`: as of `Sender` (I_*).

    data : of datagram i, `lengths[LENGTH * i + LENGTH_AT]` bytes, header included, from `i * room` on.
    addresses : the IPv4 address that it came from is `addresses[ADDRESS * i + ADDRESS_AT]`, as `address_word` has it.
    control : the TOS byte that it came with is `control[CONTROL_ROOM * i + TOS_AT]`.
    """

    def __init__(self, largest: int, slots: int = 128) -> None:
        self._receive = machine.core()["receive"]
        self.room = -(-max(largest, 64) // 64) * 64
        self.data, data_at = _arena(slots * self.room)
        self._names, self._names_at = _arena(slots * 16)
        self.control, control_at = _arena(slots * CONTROL_ROOM)
        vectors, vectors_at = _arena(slots * 16)
        self._messages, messages_at = _arena(slots * MESSAGE.size)
        for slot in range(slots):
            struct.pack_into("=QQ", vectors, slot * 16, data_at + slot * self.room, self.room)
            MESSAGE.pack_into(
                self._messages, slot * 64, self._names_at + slot * 16, 16, vectors_at + slot * 16, 1,
                control_at + slot * CONTROL_ROOM, CONTROL_ROOM, 0, 0,
            )  # fmt: skip
        self._vectors = vectors
        self.lengths = self._messages.cast("I")
        self.addresses = self._names.cast("I")
        self._block = Block(at.IN_WORDS)
        self.words, self.index = self._block.words, self._block.index
        self.words[at.I_MESSAGES], self.words[at.I_DATA] = messages_at, data_at
        self.words[at.I_NAMES], self.words[at.I_CONTROL] = self._names_at, control_at
        self.words[at.I_SLOTS], self.words[at.I_ROOM] = slots, self.room

    def receive(self, file: int) -> int:
        """Take what is there, without waiting. Returns how many."""
        got = self._receive(self._block.address, file)
        if got < 0:
            code = self.words[at.I_ERRNO]
            raise OSError(code, f"recvmmsg: {os.strerror(code)}")
        return got

    def datagram(self, slot: int) -> memoryview:
        """The bytes of a datagram."""
        start = slot * self.room
        return self.data[start : start + self.lengths[slot * LENGTH + LENGTH_AT]]

    def name(self, slot: int) -> int:
        """The address of the sockaddr_in that it came from, until the next `receive`."""
        return self._names_at + slot * 16
