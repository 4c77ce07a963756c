"""A writer of pcapng files, the format of Wireshark, tshark and tcpdump [draft-ietf-opsawg-pcapng].

A file is a sequence of blocks, each of a type, its length, a body padded to whole words, and its length again:

    section header               once; its magic number tells the byte order, little-endian here
    interface description        one per port, with its name, in nanoseconds
    name resolution              the names of hosts, so that readers show them instead of addresses
    enhanced packet              one per frame: interface, time, bytes captured, bytes there were, the captured ones

Frames are written many at a time, as arrays.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import IO

import numpy as np
from numpy.typing import NDArray

SECTION, INTERFACE, NAMES, PACKET = 0x0A0D0D0A, 1, 4, 6
BYTE_ORDER = 0x1A2B3C4D
LINK_ETHERNET = 1
OPTION_END, OPTION_NAME, OPTION_RESOLUTION, OPTION_APPLICATION = 0, 2, 9, 4
NANOSECONDS = 9
RECORD_END, RECORD_IPV4 = 0, 1
PACKET_HEAD, BLOCK_TAIL = 28, 4


@dataclass(frozen=True)
class Frames:
    """Some frames, n of them, in the order of the file.

    Attributes
    ----------
    interface, time_ns, length, captured : int64[n]; `length` is that on the link, of which `captured` bytes are here.
    data : uint8[n, at least the largest of `captured`].
    """

    interface: NDArray[np.int64]
    time_ns: NDArray[np.int64]
    length: NDArray[np.int64]
    captured: NDArray[np.int64]
    data: NDArray[np.uint8]


def write_pcapng(
    file: IO[bytes], ports: Sequence[str], hosts: Mapping[str, int], frames: Iterable[Frames], snap: int
) -> int:
    """Write a whole file. Returns the number of frames.

    Parameters
    ----------
    ports : names of the interfaces, by number.
    hosts : IPv4 addresses by name.
    snap : no more than so many bytes of a frame are captured.
    """
    section = struct.pack("<IHHq", BYTE_ORDER, 1, 0, -1)
    file.write(_block(SECTION, section + _option(OPTION_APPLICATION, b"gradwire") + _option(OPTION_END)))
    for name in ports:
        options = _option(OPTION_NAME, name.encode()) + _option(OPTION_RESOLUTION, bytes([NANOSECONDS]))
        file.write(
            _block(INTERFACE, struct.pack("<HHI", LINK_ETHERNET, 0, snap) + options + _option(OPTION_END))
        )
    if hosts:
        records = b"".join(
            _option(RECORD_IPV4, address.to_bytes(4, "big") + name.encode() + b"\0")
            for name, address in hosts.items()
        )
        file.write(_block(NAMES, records + _option(RECORD_END)))
    count = 0
    for some in frames:
        file.write(_packets(some))
        count += len(some.length)
    return count


def _block(kind: int, body: bytes) -> bytes:
    length = 12 + len(body)
    return struct.pack("<II", kind, length) + body + struct.pack("<I", length)


def _option(code: int, value: bytes = b"") -> bytes:
    """An option, or a record of names, which look alike: code, length, value, padding to whole words."""
    return struct.pack("<HH", code, len(value)) + value + bytes(-len(value) % 4)


def _packets(frames: Frames) -> bytes:
    """One enhanced packet block per frame: a row each, of which as much is kept as belongs to the block."""
    many, most = frames.data.shape
    padded = (frames.captured + 3) // 4 * 4
    total = PACKET_HEAD + padded + BLOCK_TAIL
    rows = np.zeros((many, PACKET_HEAD + (most + 3) // 4 * 4 + BLOCK_TAIL), dtype=np.uint8)
    words = (
        np.full(many, PACKET), total, frames.interface, frames.time_ns >> 32, frames.time_ns & 0xFFFFFFFF,
        frames.captured, frames.length,
    )  # fmt: skip
    rows[:, :PACKET_HEAD] = np.column_stack(words).astype("<u4").view(np.uint8)
    kept = np.where(np.arange(most) < frames.captured[:, None], frames.data, 0)
    rows[:, PACKET_HEAD : PACKET_HEAD + most] = kept
    tail = total.astype("<u4").reshape(-1, 1).view(np.uint8)
    at = (total - BLOCK_TAIL)[:, None] + np.arange(BLOCK_TAIL)
    np.put_along_axis(rows, at, tail, axis=1)
    return rows[np.arange(rows.shape[1]) < total[:, None]].tobytes()
