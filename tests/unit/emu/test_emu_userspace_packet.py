"""What the userspace switch reads in packets, and what it writes into them."""

from __future__ import annotations

import socket
import struct
import zlib
from dataclasses import dataclass

import numpy as np
import pytest

from gradwire.emu.native.calls import bytes_at, words_at
from gradwire.emu.switches.userspace_switch import frames
from gradwire.emu.switches.userspace_switch.layout import PacketRow
from gradwire.jit.compiled import njit
from gradwire.scenarios.wire import GRADWIRE_FLAGS, GRADWIRE_PORT, HEADERS, PACKET_KINDS, dscp

FIRST = int.from_bytes(socket.inet_aton("10.0.0.1"), "big")


def checksum(header: bytes) -> int:
    """RFC 1071, from the definition."""
    total = sum(struct.unpack(f"!{len(header) // 2}H", header))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def ipv4(
    payload: bytes = bytes(20), tos: int = 0, dst: str = "10.0.0.2", protocol: int = 17, identification: int = 1
) -> bytes:
    header = struct.pack(
        "!BBHHHBBH4s4s", 0x45, tos, 20 + len(payload), identification, 0x4000, 64, protocol, 0,
        socket.inet_aton("10.0.0.1"), socket.inet_aton(dst),
    )  # fmt: skip
    return header[:10] + struct.pack("!H", checksum(header)) + header[12:] + payload


def gradwire(message: int, number: int, kind: str, port: int = GRADWIRE_PORT, source: int = 7000) -> bytes:
    flags = PACKET_KINDS.index(kind) | GRADWIRE_FLAGS["important"]
    fields = dict(zip((name for name, _ in HEADERS["gradwire"]), (message, 4096, 100, number, flags), strict=True))
    header = b"".join(fields[name].to_bytes(size, "big") for name, size in HEADERS["gradwire"])
    return struct.pack("!HHHH", source, port, 8 + len(header), 0) + header


@dataclass(frozen=True)
class Read:
    length: int
    size: int
    dst: int
    priority: int
    important: int
    entropy: int
    marked: int


@njit
def enter(frame, row, length):
    return frames.parse(bytes_at(frame), PacketRow(words_at(row), 0), length, FIRST, 3)


@njit
def set_mark(frame):
    frames.mark(bytes_at(frame))


@njit
def answer_to(frame, length):
    return frames.acknowledged(bytes_at(frame), length)


@njit
def owner(frame, length):
    return frames.whose(bytes_at(frame), length)


def in_memory(data: bytes) -> np.ndarray:
    """The bytes, and behind them what a packet before has left."""
    return np.frombuffer(data + bytes([0x47]) * 2000, dtype=np.uint8).copy()


def parse(data: bytes) -> Read | None:
    """What the switch makes of bytes."""
    row, frame = np.full(PacketRow.WORDS, -1, dtype=np.int64), in_memory(data)
    if not enter(frame.ctypes.data, row.ctypes.data, len(data)):
        return None
    return Read(*row[: PacketRow.next.offset].tolist())


def with_mark(data: bytes) -> bytes:
    frame = in_memory(data)
    set_mark(frame.ctypes.data)
    return frame[: len(data)].tobytes()


def message_and_number(data: bytes) -> tuple[int, int]:
    frame = in_memory(data)
    return owner(frame.ctypes.data, len(data))


@pytest.mark.parametrize("priority", range(8))
def test_priority_is_read_from_the_dscp(priority):
    assert parse(ipv4(tos=dscp(priority) << 2)).priority == priority


@pytest.mark.parametrize(("ecn", "important"), [(0, False), (1, True), (2, True), (3, True)])
def test_importance_is_read_from_the_ecn_bits(ecn, important):
    assert parse(ipv4(tos=dscp(3) << 2 | ecn)).important == important


def test_packet_size_is_the_ethernet_frame_size():
    assert parse(ipv4(bytes(26))).size == 60
    assert parse(ipv4(bytes(27))).size == 61
    assert parse(ipv4(bytes(5))).size == 60
    assert parse(ipv4(bytes(1480))).size == 1514


def test_destination_host_is_read_from_the_ip_address():
    assert [parse(ipv4(dst=f"10.0.0.{n}")).dst for n in (1, 2, 3)] == [0, 1, 2]


@pytest.mark.parametrize("data", [b"", b"\x45", ipv4(dst="224.0.0.22"), b"\x60" + bytes(60)])
def test_packets_without_a_destination_host_are_ignored(data):
    assert parse(data) is None


def test_entropy_is_a_hash_of_addresses_ports_and_protocol():
    def entropy(source: int, protocol: int = 17, **more: int) -> int:
        return parse(ipv4(struct.pack("!HH", source, 7117) + bytes(30), protocol=protocol, **more)).entropy

    data = ipv4(struct.pack("!HH", 1000, 7117) + bytes(30))
    assert entropy(1000) == zlib.crc32(data[12:24], 17) & 0xFFFF == entropy(1000, identification=99, tos=3)
    assert len({entropy(1000 + n) for n in range(32)}) == 32
    assert entropy(1000) != entropy(1000, protocol=6)


@pytest.mark.parametrize("tos", [0, 1, 2, dscp(0) << 2 | 2, dscp(5) << 2 | 1, 0xFE])
def test_ecn_mark_updates_the_ip_checksum(tos):
    for identification in range(0, 65536, 97):
        before = ipv4(tos=tos, identification=identification)
        after = with_mark(before)
        assert after[1] == tos | 3 and checksum(after[:20]) == 0
        assert after[:1] + after[2:10] + after[12:] == before[:1] + before[2:10] + before[12:]


def test_marked_packet_stays_unchanged():
    data = ipv4(tos=3)
    assert with_mark(data) == data


def test_message_and_packet_number_are_read_from_gradwire_headers():
    assert message_and_number(ipv4(gradwire(70_000, 123_456, "data"))) == (70_000, 123_456)
    assert message_and_number(ipv4(gradwire(3, 9, "ack"))) == (3, -1)
    assert message_and_number(ipv4(gradwire(3, 9, "data", port=53))) == (-1, -1)
    assert message_and_number(ipv4(gradwire(3, 9, "data"), protocol=6)) == (-1, -1)
    assert message_and_number(ipv4(gradwire(3, 9, "data")[:20])) == (-1, -1)


def acknowledged(data: bytes) -> tuple[int, int]:
    frame = in_memory(data)
    return answer_to(frame.ctypes.data, len(data))


def test_acknowledged_packet_is_read_from_gradwire_acks():
    """Acknowledgements come from the port that receives data."""

    def answer(kind: str = "ack", source: int = GRADWIRE_PORT) -> bytes:
        return gradwire(70_000, 123_456, kind, port=7000, source=source)

    assert acknowledged(ipv4(answer())) == (70_000, 123_456)
    assert acknowledged(ipv4(answer("data"))) == acknowledged(ipv4(answer("stop"))) == (-1, -1)
    assert acknowledged(ipv4(answer(source=53))) == (-1, -1)
    assert acknowledged(ipv4(gradwire(3, 9, "ack"))) == (-1, -1)
    assert acknowledged(ipv4(answer(), protocol=6)) == (-1, -1)
    assert acknowledged(ipv4(answer()[:20])) == (-1, -1)
