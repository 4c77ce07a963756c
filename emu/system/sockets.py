"""Prepares UDP sockets and the buffers by which compiled code (`gradwire.emu.agent.core.datagrams`) sends and receives
many datagrams per call.

The structures of a call are laid out once, in arenas of bytes at fixed addresses; compiled code
(`gradwire.emu.agent.core.datagrams`) writes only numbers per datagram. The layouts are those of 64-bit Linux.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
import sys
from typing import Final

from gradwire.emu.agent import compiled_agent
from gradwire.emu.agent.core import datagrams as at
from gradwire.emu.agent.core.layout import IncomingDatagrams, MessageHeader, OutgoingDatagrams, Vectors
from gradwire.emu.agent.shared_words import WordBlock
from gradwire.emu.switches.backend_kind import TestbedError
from gradwire.emu.wire.header import HEADER

IP_RECVTOS: Final = 13
SO_RCVBUFFORCE: Final = 33
SO_SNDBUFFORCE: Final = 32
SO_MEMINFO: Final = 55
MEMINFO_DROPS: Final = 8
CONTROL: Final = struct.Struct("=QiiB7x")
"""struct cmsghdr and a TOS byte, as large as CMSG_SPACE(1)"""
HEADER_WORDS: Final = struct.Struct(">qq")
SEND_WAIT_MS: Final = 1000
BUFFER_BYTES: Final = 16 << 20


def socket_address(host: str, port: int) -> bytes:
    return struct.pack("=H", socket.AF_INET) + struct.pack(">H", port) + socket.inet_aton(host) + bytes(8)


def address_word(host: str) -> int:
    """Return an IPv4 address as a kernel word in network order."""
    return int(struct.unpack("=I", socket.inet_aton(host))[0])


def address_of(data: memoryview) -> int:
    """Return the memory address of contiguous bytes, which must outlive its use."""
    import numpy as np

    return int(np.frombuffer(data, dtype=np.uint8).ctypes.data) if len(data) else 0


def receive_buffer(connection: socket.socket, size: int) -> None:
    """Set the receive buffer size, beyond the machine's limit if privileged."""
    _buffer(connection, SO_RCVBUFFORCE, socket.SO_RCVBUF, size)


def send_buffer(connection: socket.socket, size: int) -> None:
    """Set the send buffer size, beyond the machine's limit if privileged."""
    _buffer(connection, SO_SNDBUFFORCE, socket.SO_SNDBUF, size)


def _buffer(opened: socket.socket, forced: int, plain: int, size: int) -> None:
    try:
        opened.setsockopt(socket.SOL_SOCKET, forced, size)
    except PermissionError:  # root only in a user namespace: the machine's limit applies
        opened.setsockopt(socket.SOL_SOCKET, plain, size)


def open_datagrams(host: str, port: int) -> socket.socket:
    """Return a bound non-blocking UDP socket with a large buffer that reports TOS bytes. Raises TestbedError: the
    address cannot be bound."""
    if sys.maxsize < 1 << 32:
        raise TestbedError("sockets need 64-bit Linux", "gradwire.emu.system.sockets", "a 64-bit machine")
    opened = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
    opened.setsockopt(socket.IPPROTO_IP, IP_RECVTOS, 1)
    receive_buffer(opened, BUFFER_BYTES)
    send_buffer(opened, BUFFER_BYTES)
    try:
        opened.bind((host, port))
    except OSError as error:
        opened.close()
        raise TestbedError(
            f"cannot bind UDP port {port} of {host}: {error.strerror}", "agent", "a free port and the host's address"
        ) from None
    return opened


def overflowed(datagrams: socket.socket) -> int:
    """Return the number of datagrams dropped because this socket was not read fast enough."""
    words = datagrams.getsockopt(socket.SOL_SOCKET, SO_MEMINFO, 4 * (MEMINFO_DROPS + 1))
    return struct.unpack(f"={len(words) // 4}I", words)[MEMINFO_DROPS]


class Sender:
    """Outgoing datagrams of any number of sockets: `add` some, then `flush`.

    index : of its record (`gradwire.emu.agent.core.layout.OutgoingDatagrams`), for compiled code.
    """

    def __init__(self, slots: int = 64, wait_ms: int = SEND_WAIT_MS) -> None:
        core = compiled_agent.core()
        self._add, self._flush = core["add"], core["flush"]
        messages, vectors = WordBlock(slots * MessageHeader.WORDS), WordBlock(slots * Vectors.WORDS)
        headers, controls = WordBlock(slots * at.HEADER_SPACE // 8), WordBlock(256 * CONTROL.size // 8)
        for tos in range(256):
            CONTROL.pack_into(controls.words, tos * CONTROL.size, 17, socket.IPPROTO_IP, socket.IP_TOS, tos)
        for slot in range(slots):  # constant parts of all datagrams
            Vectors(vectors.words, slot * Vectors.WORDS).header = headers.address + slot * at.HEADER_SPACE
            message = MessageHeader(messages.words, slot * MessageHeader.WORDS)
            message.name_bytes, message.control_bytes = at.NAME_BYTES, CONTROL.size
            message.vectors = vectors.address + slot * 8 * Vectors.WORDS
        self._files, self._poll, self._block = WordBlock(slots), WordBlock(1), WordBlock(OutgoingDatagrams.WORDS)
        self._arenas = messages, vectors, headers, controls
        self.index = self._block.index
        self._batch = batch = OutgoingDatagrams(self._block.words, 0)
        batch.messages, batch.vectors = messages.address, vectors.address
        batch.headers, batch.controls = headers.address, controls.address
        batch.files, batch.slots = self._files.address, slots
        batch.poll, batch.wait_ms = self._poll.address, wait_ms

    @property
    def empty(self) -> bool:
        return self._batch.count == 0

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
        """Add a datagram: a gradwire header (message, offset, length, sequence, flags) and data.

        The data are `length` bytes at address `payload`, or `fill` zeros. `name` is the address of a sockaddr_in that
        must stay valid until `flush`.
        """
        first, second = HEADER_WORDS.unpack(HEADER.pack(*header))
        if self._add(self._block.address, file, name, tos, first, second, payload, length, fill):
            self._raise_error()

    def flush(self) -> None:
        """Pass all datagrams to the kernel. Raises OSError: the kernel rejects one, or a socket stayed full for a
        second."""
        if self._flush(self._block.address):
            self._raise_error()

    def _raise_error(self) -> None:
        code = self._batch.error
        if code == errno.EAGAIN:
            raise OSError(code, "sendmmsg: the socket stayed full")
        raise OSError(code, f"sendmmsg: {os.strerror(code)}")


class Receiver:
    """Incoming datagrams, valid until the next `receive`. index : of its record. data : from `i * room` on, of datagram
    i, with its header."""

    def __init__(self, largest: int, slots: int = 128) -> None:
        self._receive = compiled_agent.core()["receive"]
        self.room = -(-max(largest, 64) // 64) * 64
        data, self._vectors = WordBlock(slots * self.room // 8), WordBlock(2 * slots)
        self._names, self._controls = WordBlock(slots * at.NAME_BYTES // 8), WordBlock(slots * at.CONTROL_SPACE // 8)
        self._messages = WordBlock(slots * MessageHeader.WORDS)
        self.data = data.words.cast("B")
        for slot in range(slots):
            self._vectors.words[2 * slot] = data.address + slot * self.room
            self._vectors.words[2 * slot + 1] = self.room
            message = self._message(slot)
            message.name, message.name_bytes = self.name(slot), at.NAME_BYTES
            message.vectors, message.vector_count = self._vectors.address + slot * 16, 1
            message.control, message.control_bytes = self._controls.address + slot * at.CONTROL_SPACE, at.CONTROL_SPACE
        self._block = WordBlock(IncomingDatagrams.WORDS)
        self.index = self._block.index
        self._batch = batch = IncomingDatagrams(self._block.words, 0)
        batch.messages, batch.data = self._messages.address, data.address
        batch.names, batch.controls = self._names.address, self._controls.address
        batch.slots, batch.slot_bytes = slots, self.room

    def receive(self, file: int) -> int:
        """Receive available datagrams without waiting; return their number."""
        count = self._receive(self._block.address, file)
        if count < 0:
            code = self._batch.error
            raise OSError(code, f"recvmmsg: {os.strerror(code)}")
        return count

    def _message(self, slot: int) -> MessageHeader:
        return MessageHeader(self._messages.words, slot * MessageHeader.WORDS)

    def datagram(self, slot: int) -> memoryview:
        start = slot * self.room
        return self.data[start : start + (self._message(slot).length & 0xFFFFFFFF)]

    def name(self, slot: int) -> int:
        """Return the address of its source sockaddr_in, valid until the next `receive`."""
        return self._names.address + slot * at.NAME_BYTES

    def source(self, slot: int) -> int:
        """Return its IPv4 source address, as in `address_word`."""
        return self._names.words[slot * at.NAME_BYTES // 8] >> 32 & 0xFFFFFFFF
