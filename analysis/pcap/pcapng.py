"""Writes frames to pcapng files, the capture format of Wireshark, tshark and tcpdump [draft-ietf-opsawg-pcapng].

A file is a sequence of blocks; each has a type, its length, a body padded to whole words, and its length again:

    section header               once; its magic number gives the byte order, little-endian here
    interface description        one per port, with its name, in nanoseconds
    name resolution              names of hosts, which readers show instead of addresses
    enhanced packet              one per frame: interface, time, captured length, original length, captured bytes

Frames are written in blocks, as arrays.
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
    """A block of n frames, in the order of the file.

    interface, time_ns, length, captured : int64[n]; `length` is that on the link, `captured` of these bytes are stored.
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
    """Write a whole file; return the number of frames.

    ports : names of the interfaces, by number.
    hosts : IPv4 addresses by name.
    snap : largest number of bytes captured per frame.
    """
    section = struct.pack("<IHHq", BYTE_ORDER, 1, 0, -1)
    file.write(_block(SECTION, section + _option(OPTION_APPLICATION, b"gradwire") + _option(OPTION_END)))
    for name in ports:
        options = _option(OPTION_NAME, name.encode()) + _option(OPTION_RESOLUTION, bytes([NANOSECONDS]))
        file.write(_block(INTERFACE, struct.pack("<HHI", LINK_ETHERNET, 0, snap) + options + _option(OPTION_END)))
    if hosts:
        records = b"".join(
            _option(RECORD_IPV4, address.to_bytes(4, "big") + name.encode() + b"\0") for name, address in hosts.items()
        )
        file.write(_block(NAMES, records + _option(RECORD_END)))
    count = 0
    for block in frames:
        file.write(_packets(block))
        count += len(block.length)
    return count


def _block(kind: int, body: bytes) -> bytes:
    length = 12 + len(body)
    return struct.pack("<II", kind, length) + body + struct.pack("<I", length)


def _option(code: int, value: bytes = b"") -> bytes:
    """Encode an option or a name record, which share a format: code, length, value, padding to whole words."""
    return struct.pack("<HH", code, len(value)) + value + bytes(-len(value) % 4)


def _packets(frames: Frames) -> bytes:
    """Encode one enhanced packet block per frame, as rows that are cut to the block's length."""
    count, width = frames.data.shape
    padded = (frames.captured + 3) // 4 * 4
    total = PACKET_HEAD + padded + BLOCK_TAIL
    rows = np.zeros((count, PACKET_HEAD + (width + 3) // 4 * 4 + BLOCK_TAIL), dtype=np.uint8)
    words = (
        np.full(count, PACKET),
        total,
        frames.interface,
        frames.time_ns >> 32,
        frames.time_ns & 0xFFFFFFFF,
        frames.captured,
        frames.length,
    )
    rows[:, :PACKET_HEAD] = np.column_stack(words).astype("<u4").view(np.uint8)
    captured = np.where(np.arange(width) < frames.captured[:, None], frames.data, 0)
    rows[:, PACKET_HEAD : PACKET_HEAD + width] = captured
    tail = total.astype("<u4").reshape(-1, 1).view(np.uint8)
    at = (total - BLOCK_TAIL)[:, None] + np.arange(BLOCK_TAIL)
    np.put_along_axis(rows, at, tail, axis=1)
    return rows[np.arange(rows.shape[1]) < total[:, None]].tobytes()
