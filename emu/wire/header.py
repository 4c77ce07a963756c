"""The gradwire header in bytes, from the one table that says what it looks like (`gradwire.scenarios.wire.HEADERS`).

Captures of simulated packets (`gradwire.analysis.capture`), the scapy layer (`gradwire.emu.wire.scapy_layer`) and
docs/wire.md are made from the same table.
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
"""Of the TOS byte: the two bits of ECN, and what they are when a switch has marked the packet [RFC 3168]."""

assert HEADER.size == GRADWIRE
assert PACKET_KINDS[:6] == ("data", "ack", "stop", "bitmap", "probe", "nack")


class NotOurs(ValueError):
    """Something has come that nobody of this run sends; in one line what."""


class Header(NamedTuple):
    """A gradwire header; `gradwire.scenarios.wire.GRADWIRE_FIELDS` says what the numbers mean for each kind of
    packet."""

    message: int
    offset: int = 0
    length: int = 0
    sequence: int = 0
    kind: int = DATA
    important: bool = False
    trimmed: bool = False
    echo: bool = False

    def pack(self) -> bytes:
        """Its 16 bytes; numbers that do not fit are taken modulo what does."""
        flags = sum(
            int(getattr(self, name)) * (mask & -mask) for name, mask in GRADWIRE_FLAGS.items()
        )  # to where its mask begins
        return HEADER.pack(
            self.message & WORD, self.offset & WORD, self.length & 0xFFFF, self.sequence & WORD, flags
        )


def unpack(data: bytes | bytearray | memoryview, at: int = 0) -> Header:
    """The header at some place of some bytes; struct.error if there are fewer than it takes."""
    message, offset, length, sequence, flags = HEADER.unpack_from(data, at)
    values = {name: (flags & mask) // (mask & -mask) for name, mask in GRADWIRE_FLAGS.items()}
    return Header(
        message, offset, length, sequence, values["kind"],
        bool(values["important"]), bool(values["trimmed"]), bool(values["echo"]),
    )  # fmt: skip


OPENING: Final = struct.Struct(">8sHxx16s")
"""magic, version, token: what both ends of every TCP connection say first, in a frame that acknowledges no message. A
port is open to everybody who finds it."""
OPENING_MAGIC: Final = b"gradwire"
OPENING_VERSION: Final = 1
OPENING_BYTES: Final = GRADWIRE + OPENING.size


class Opening:
    """What a connection has to begin with, as far as it has not come yet. `words`: the same, to be said."""

    def __init__(self, token: bytes) -> None:
        head = Header(WORD, length=OPENING.size, kind=ACK, important=True).pack()
        self.words = self._left = head + OPENING.pack(OPENING_MAGIC, OPENING_VERSION, token)

    @property
    def lacking(self) -> int:
        """Bytes of it that are still to come."""
        return len(self._left)

    def feed(self, data: bytes) -> bytes:
        """Take what has come; what of it lies behind the opening. NotOurs if it is another one."""
        known = min(len(data), len(self._left))
        if data[:known] != self._left[:known]:
            raise NotOurs(f"it says {data[:40]!r}, and is no agent of this run")
        self._left = self._left[known:]
        return data[known:]


class Frames:
    """Takes a stream of bytes apart into headers and what follows each: the side channel over TCP."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[Header, bytes]]:
        """Add what has arrived; gives every frame that is complete now."""
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
