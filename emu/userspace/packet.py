"""IPv4 packets as a switch sees them.

The class is in the DSCP (`scenarios.wire.dscp`), whether a packet is important (ECN-capable) in the ECN bits. A switch
that marks a packet changes these bits and, with them, the header's checksum. The gradwire header is read only of
packets that are lost, to say which message has lost what.
"""

from __future__ import annotations

from collections.abc import Mapping
from zlib import crc32

from scenarios.wire import ETHERNET, GRADWIRE_FLAGS, GRADWIRE_PORT, IPV4, MIN_FRAME, UDP

CE = 3
"""Congestion experienced [RFC 3168]; other values than 0 say that the sender understands it."""
UDP_PROTOCOL = 17
_KIND = GRADWIRE_FLAGS["kind"]


class Packet:
    """A packet on its way.

    data : the IPv4 packet. size : bytes on the link. dst : the host it is for. priority : 0 (served first) to 7.
    important : ECN-capable. entropy : 16 bits that all packets of one connection share. marked : on the way.
    """

    __slots__ = ("data", "dst", "entropy", "important", "marked", "priority", "size")

    def __init__(
        self, data: bytes, size: int, dst: int, priority: int, important: bool, entropy: int = 0
    ) -> None:
        self.data = data
        self.size = size
        self.dst = dst
        self.priority = priority
        self.important = important
        self.entropy = entropy
        self.marked = False


def parse(data: bytes, hosts: Mapping[bytes, int]) -> Packet | None:
    """What came out of a host, None if it is no IPv4 packet for one of `hosts` (by address, 4 bytes)."""
    if len(data) < IPV4 or data[0] >> 4 != 4:
        return None
    dst = hosts.get(data[16:20])
    if dst is None:
        return None
    size = len(data) + ETHERNET
    tos = data[1]
    # of a fragment or a header with options these are other bytes than the ports; nobody here sends any
    entropy = crc32(data[12:24], data[9]) & 0xFFFF
    return Packet(data, size if size > MIN_FRAME else MIN_FRAME, dst, 7 - (tos >> 5), tos & 3 != 0, entropy)


def with_mark(data: bytes) -> bytes:
    """The same packet with CE, and a checksum that fits [RFC 1624, equation 3]."""
    tos = data[1]
    if tos & 3 == CE:
        return data
    total = (~int.from_bytes(data[10:12], "big") & 0xFFFF) + (~(data[0] << 8 | tos) & 0xFFFF)
    total += data[0] << 8 | tos | CE
    total = (total & 0xFFFF) + (total >> 16)
    total = (total & 0xFFFF) + (total >> 16)
    marked = bytearray(data)
    marked[1] = tos | CE
    marked[10:12] = (~total & 0xFFFF).to_bytes(2, "big")
    return bytes(marked)


def message_and_number(data: bytes) -> tuple[int, int]:
    """(message, number of the packet) of a gradwire packet over UDP; the number is -1 unless it carries data, and both
    are for what is no such packet."""
    at = (data[0] & 15) * 4
    if data[9] != UDP_PROTOCOL or len(data) < at + UDP + 16:
        return -1, -1
    if data[at + 2 : at + 4] != GRADWIRE_PORT.to_bytes(2, "big"):
        return -1, -1
    header = data[at + UDP : at + UDP + 16]  # scenarios.wire.HEADERS["gradwire"]
    flags = int.from_bytes(header[14:16], "big")
    number = int.from_bytes(header[10:14], "big") if flags & _KIND == 0 else -1
    return int.from_bytes(header[0:4], "big"), number
