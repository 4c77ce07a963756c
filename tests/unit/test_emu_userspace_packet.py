"""What the userspace switch reads in packets, and what it writes into them."""

from __future__ import annotations

import socket
import struct

import pytest

from emu.userspace.packet import message_and_number, parse, with_mark
from scenarios.wire import GRADWIRE_FLAGS, GRADWIRE_PORT, HEADERS, PACKET_KINDS, dscp

HOSTS = {socket.inet_aton(f"10.0.0.{n + 1}"): n for n in range(3)}


def checksum(header: bytes) -> int:
    """RFC 1071, from the definition."""
    total = sum(struct.unpack(f"!{len(header) // 2}H", header))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def ipv4(payload: bytes = bytes(20), tos: int = 0, dst: str = "10.0.0.2", protocol: int = 17, identification: int = 1) -> bytes:
    header = struct.pack(
        "!BBHHHBBH4s4s", 0x45, tos, 20 + len(payload), identification, 0x4000, 64, protocol, 0,
        socket.inet_aton("10.0.0.1"), socket.inet_aton(dst),
    )  # fmt: skip
    return header[:10] + struct.pack("!H", checksum(header)) + header[12:] + payload


def gradwire(message: int, number: int, kind: str, port: int = GRADWIRE_PORT) -> bytes:
    flags = PACKET_KINDS.index(kind) | GRADWIRE_FLAGS["important"]
    fields = dict(zip((name for name, _ in HEADERS["gradwire"]), (message, 4096, 100, number, flags), strict=True))
    header = b"".join(fields[name].to_bytes(size, "big") for name, size in HEADERS["gradwire"])
    return struct.pack("!HHHH", 7000, port, 8 + len(header), 0) + header


@pytest.mark.parametrize("priority", range(8))
def test_the_class_is_in_the_dscp(priority):
    assert parse(ipv4(tos=dscp(priority) << 2), HOSTS).priority == priority


@pytest.mark.parametrize(("ecn", "important"), [(0, False), (1, True), (2, True), (3, True)])
def test_importance_is_in_the_ecn_bits(ecn, important):
    assert parse(ipv4(tos=dscp(3) << 2 | ecn), HOSTS).important is important


def test_sizes_are_those_of_frames():
    assert parse(ipv4(bytes(26)), HOSTS).size == 60
    assert parse(ipv4(bytes(27)), HOSTS).size == 61
    assert parse(ipv4(bytes(5)), HOSTS).size == 60
    assert parse(ipv4(bytes(1480)), HOSTS).size == 1514


def test_destinations():
    assert [parse(ipv4(dst=f"10.0.0.{n}"), HOSTS).dst for n in (1, 2, 3)] == [0, 1, 2]


@pytest.mark.parametrize("data", [b"", b"\x45", ipv4(dst="224.0.0.22"), b"\x60" + bytes(60)])
def test_what_is_for_nobody(data):
    assert parse(data, HOSTS) is None


def test_entropy_is_that_of_the_connection():
    def entropy(source: int, protocol: int = 17, **more: int) -> int:
        return parse(ipv4(struct.pack("!HH", source, 7117) + bytes(30), protocol=protocol, **more), HOSTS).entropy

    assert entropy(1000) == entropy(1000, identification=99, tos=3)
    assert len({entropy(1000 + n) for n in range(32)}) == 32
    assert entropy(1000) != entropy(1000, protocol=6)


@pytest.mark.parametrize("tos", [0, 1, 2, dscp(0) << 2 | 2, dscp(5) << 2 | 1, 0xFE])
def test_a_mark_keeps_the_checksum_right(tos):
    for identification in range(0, 65536, 97):
        before = ipv4(tos=tos, identification=identification)
        after = with_mark(before)
        assert after[1] == tos | 3 and checksum(after[:20]) == 0
        assert after[:1] + after[2:10] + after[12:] == before[:1] + before[2:10] + before[12:]


def test_what_is_marked_stays_as_it_is():
    data = ipv4(tos=3)
    assert with_mark(data) == data


def test_whose_packet_it_is():
    assert message_and_number(ipv4(gradwire(70_000, 123_456, "data"))) == (70_000, 123_456)
    assert message_and_number(ipv4(gradwire(3, 9, "ack"))) == (3, -1)
    assert message_and_number(ipv4(gradwire(3, 9, "data", port=53))) == (-1, -1)
    assert message_and_number(ipv4(gradwire(3, 9, "data"), protocol=6)) == (-1, -1)
    assert message_and_number(ipv4(gradwire(3, 9, "data")[:20])) == (-1, -1)
