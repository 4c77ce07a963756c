"""Parses and marks IPv4 packets for the userspace switch, and identifies the messages of lost and observed ones.
Compiled.

The class is in the DSCP (`gradwire.scenarios.wire.dscp`), the importance (ECN-capable) in the ECN bits. Marking changes
these bits and the header's checksum. The gradwire header is read only of lost and observed packets, to identify them.
"""

from __future__ import annotations

from typing import Any

from gradwire.emu.switches.userspace_switch.layout import PacketRow
from gradwire.jit.compiled import njit
from gradwire.scenarios.wire import ETHERNET, GRADWIRE_FLAGS, GRADWIRE_PORT, IPV4, MIN_FRAME, PACKET_KINDS, UDP

CE = 3
"""Congestion experienced [RFC 3168]; any value except 0 means that the sender is ECN-capable."""
UDP_PROTOCOL = 17
_KIND = GRADWIRE_FLAGS["kind"]
_ACK = PACKET_KINDS.index("ack")
_NEEDED = 16
"""Number of bytes read of `gradwire.scenarios.wire.HEADERS["gradwire"]`."""


CRC32 = 0xEDB88320
"""The polynomial of IEEE 802.3, lowest bit first."""


@njit
def _word(data: Any, i: int, count: int) -> int:
    """Return `count` bytes in network order as an integer."""
    value = 0
    for j in range(i, i + count):
        value = value << 8 | int(data[j])
    return value


@njit
def parse(data: Any, row: PacketRow, length: int, first_address: int, hosts: int) -> bool:
    """Parse `length` bytes from a host into a packet's row; return False unless it is an IPv4 packet for a host."""
    if length < IPV4 or data[0] >> 4 != 4:
        return False
    dst = _word(data, 16, 4) - first_address
    if dst < 0 or dst >= hosts:
        return False
    # fragments and headers with options have other bytes in place of ports, but no host sends any
    crc = int(data[9]) ^ 0xFFFFFFFF
    for i in range(12, min(24, length)):
        crc ^= int(data[i])
        for _ in range(8):
            crc = crc >> 1 ^ (CRC32 if crc & 1 else 0)
    tos = int(data[1])
    row.length = length
    row.size = max(length + ETHERNET, MIN_FRAME)
    row.dst = dst
    row.priority = 7 - (tos >> 5)
    row.is_important = tos & 3 != 0
    row.entropy = (crc ^ 0xFFFFFFFF) & 0xFFFF
    row.is_marked = 0
    return True


@njit
def mark(data: Any) -> None:
    """Set CE and update the checksum [RFC 1624, equation 3]."""
    tos = int(data[1])
    if tos & 3 == CE:
        return
    version = int(data[0]) << 8
    total = ~_word(data, 10, 2) & 0xFFFF
    total += (~(version | tos) & 0xFFFF) + (version | tos | CE)
    total = (total & 0xFFFF) + (total >> 16)
    total = ~((total & 0xFFFF) + (total >> 16)) & 0xFFFF
    data[1] = tos | CE
    data[10] = total >> 8
    data[11] = total & 0xFF


@njit
def _header(data: Any, length: int, which: int) -> int:
    """Return the offset of the gradwire header in a UDP packet, or -1 if it has none. The source (`which` 0) or
    destination (2) must be the port of gradwire."""
    i = (int(data[0]) & 15) * 4
    if data[9] != UDP_PROTOCOL or length < i + UDP + _NEEDED or _word(data, i + which, 2) != GRADWIRE_PORT:
        return -1
    return i + UDP


@njit
def whose(data: Any, length: int) -> tuple[int, int]:
    """Return (message, packet number) of a gradwire packet over UDP. The number is -1 unless it carries data; both are
    -1 for other packets."""
    i = _header(data, length, 2)
    if i < 0:
        return -1, -1
    return _word(data, i, 4), _word(data, i + 10, 4) if _word(data, i + 14, 2) & _KIND == 0 else -1


@njit
def acknowledged(data: Any, length: int) -> tuple[int, int]:
    """Return (message, packet number) that a packet acknowledges, or (-1, -1)."""
    i = _header(data, length, 0)
    if i < 0 or _word(data, i + 14, 2) & _KIND != _ACK:
        return -1, -1
    return _word(data, i, 4), _word(data, i + 10, 4)
