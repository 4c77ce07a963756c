"""Encodes and decodes gradwire's packet header, connection openings and side-channel frames, from the table
`gradwire.scenarios.wire.HEADERS`.

Captures of simulated packets (`gradwire.analysis.pcap.packet_capture`), the scapy layer
(`gradwire.emu.wire.scapy_layer`) and docs/wire.md are made from the same table.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from gradwire.scenarios.wire import GRADWIRE, GRADWIRE_FLAGS, HEADERS, PACKET_KINDS

LETTERS: Final = {1: "B", 2: "H", 4: "I", 8: "Q"}
FORMAT: Final = ">" + "".join(LETTERS[size] for _, size in HEADERS["gradwire"])
HEADER: Final = struct.Struct(FORMAT)
"""message, offset, length, sequence, flags"""
DATA, ACK, STOP, BITMAP, PROBE, NACK = range(6)
KIND: Final = GRADWIRE_FLAGS["kind"]
IMPORTANT: Final = GRADWIRE_FLAGS["important"]
ECHO: Final = GRADWIRE_FLAGS["echo"]
WORD: Final = 0xFFFFFFFF
ECN, CE = 3, 3
"""The ECN bits of the TOS byte, and their value after a switch has marked the packet [RFC 3168]."""

assert HEADER.size == GRADWIRE
assert PACKET_KINDS[:6] == ("data", "ack", "stop", "bitmap", "probe", "nack")


class ForeignDataError(ValueError):
    """Received data that does not belong to this run; the message describes it in one line."""


class Header(NamedTuple):
    """A gradwire header; `gradwire.scenarios.wire.GRADWIRE_FIELDS` defines the numbers for each kind of packet."""

    message: int
    offset: int = 0
    length: int = 0
    sequence: int = 0
    kind: int = DATA
    important: bool = False
    trimmed: bool = False
    echo: bool = False

    def pack(self) -> bytes:
        """Return its 16 bytes; numbers are reduced modulo the sizes of their fields."""
        flags = sum(
            int(getattr(self, name)) * (mask & -mask) for name, mask in GRADWIRE_FLAGS.items()
        )  # shifts each flag to its mask
        return HEADER.pack(self.message & WORD, self.offset & WORD, self.length & 0xFFFF, self.sequence & WORD, flags)


def unpack(data: bytes | bytearray | memoryview, at: int = 0) -> Header:
    """Return the header at a position; raise struct.error if there are too few bytes."""
    message, offset, length, sequence, flags = HEADER.unpack_from(data, at)
    values = {name: (flags & mask) // (mask & -mask) for name, mask in GRADWIRE_FLAGS.items()}
    important, trimmed, echo = (bool(values[name]) for name in ("important", "trimmed", "echo"))
    return Header(message, offset, length, sequence, values["kind"], important, trimmed, echo)


OPENING: Final = struct.Struct(">8sHxx16s")
"""magic, version, token: the first frame of both ends of every TCP connection, an acknowledgement of no message; other
programs could connect to the port."""
OPENING_MAGIC: Final = b"gradwire"
OPENING_VERSION: Final = 1
OPENING_BYTES: Final = GRADWIRE + OPENING.size


class Opening:
    """The expected opening of a connection, as far as it has not arrived yet.

    words : the opening's bytes, to be sent.
    """

    def __init__(self, token: bytes) -> None:
        head = Header(WORD, length=OPENING.size, kind=ACK, important=True).pack()
        self.words = self._left = head + OPENING.pack(OPENING_MAGIC, OPENING_VERSION, token)

    @property
    def missing_bytes(self) -> int:
        return len(self._left)

    def feed(self, data: bytes) -> bytes:
        """Consume received bytes; return those after the opening, or raise ForeignDataError if it differs."""
        count = min(len(data), len(self._left))
        if data[:count] != self._left[:count]:
            raise ForeignDataError(f"not an agent of this run: got {data[:40]!r}")
        self._left = self._left[count:]
        return data[count:]


class Frames:
    """Decoder of a stream of headers with data: the side channel over TCP."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[Header, bytes]]:
        """Add received bytes; yield every complete frame."""
        self._data += data
        at = 0
        while len(self._data) - at >= GRADWIRE:
            header = unpack(self._data, at)
            end = at + GRADWIRE + header.length
            if end > len(self._data):
                break
            yield header, bytes(self._data[at + GRADWIRE : end])
            at = end
        del self._data[:at]
