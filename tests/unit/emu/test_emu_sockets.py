"""Batches of datagrams over the loopback device: contents, TOS bytes, order, limits. No privileges needed."""

from __future__ import annotations

import errno
import socket
import struct

import numpy as np
import pytest

from gradwire.emu.agent.core.datagrams import CONTROL_SPACE, TOS_AT
from gradwire.emu.switches.backend_kind import TestbedError
from gradwire.emu.system.sockets import (
    Receiver,
    Sender,
    address_of,
    address_word,
    open_datagrams,
    overflowed,
    socket_address,
)
from gradwire.emu.wire.header import HEADER

HOST = "127.0.0.1"


class Pair:
    """A socket that sends, one that receives."""

    def __init__(self, largest: int = 2048, slots: int = 128) -> None:
        self.there, self.here = open_datagrams(HOST, 0), open_datagrams(HOST, 0)
        self.name = np.frombuffer(socket_address(HOST, self.there.getsockname()[1]), dtype=np.uint8).copy()
        self.sender, self.receiver = Sender(slots), Receiver(largest, slots)

    def add(self, tos: int, header: tuple[int, ...], content: bytes = b"", fill: int = 0) -> None:
        self.kept = np.frombuffer(content, dtype=np.uint8).copy() if content else None
        at = int(self.kept.ctypes.data) if self.kept is not None else 0
        self.sender.add(self.here.fileno(), int(self.name.ctypes.data), tos, header, at, len(content), fill)
        self.sender.flush()

    def take(self) -> list[tuple[int, bytes]]:
        found = []
        while got := self.receiver.receive(self.there.fileno()):
            for slot in range(got):
                assert self.receiver.source(slot) == address_word(HOST)
                tos = self.receiver._controls.words[slot * CONTROL_SPACE // 8 + TOS_AT // 8] & 0xFF
                found.append((tos, bytes(self.receiver.datagram(slot))))
        return found

    def close(self) -> None:
        self.there.close()
        self.here.close()


@pytest.fixture
def pair():
    made = Pair()
    yield made
    made.close()


def test_each_packet_of_a_batch_has_its_own_tos_and_content(pair):
    for tos in range(256):
        pair.add(tos, (tos, 2, 3, 4, 5), bytes([tos]) * (tos * 5))
    found = pair.take()
    assert [tos for tos, _ in found] == list(range(256))
    assert [data for _, data in found] == [HEADER.pack(t, 2, 3, 4, 5) + bytes([t]) * (t * 5) for t in range(256)]


def test_fill_pads_packets_with_zeros(pair):
    pair.add(0xE2, (7, 0, 0, 1, 9), fill=2)
    assert pair.take() == [(0xE2, HEADER.pack(7, 0, 0, 1, 9) + bytes(2))]


def test_batch_larger_than_one_system_call_arrives_in_order(pair):
    content = np.arange(100, dtype=np.uint8)
    for number in range(1000):
        pair.sender.add(
            pair.here.fileno(), int(pair.name.ctypes.data), 0, (number, 0, 0, 0, 0), int(content.ctypes.data), 100
        )
    pair.sender.flush()
    found = pair.take()
    assert [struct.unpack_from(">I", data)[0] for _, data in found] == list(range(1000))
    assert {data[16:] for _, data in found} == {content.tobytes()}


def test_one_flush_sends_over_several_sockets(pair):
    other = open_datagrams(HOST, 0)
    for number in range(10):
        file = (pair.here, other)[number // 2 % 2].fileno()
        pair.sender.add(file, int(pair.name.ctypes.data), 4 * number, (number, 0, 0, 0, 0))
    pair.sender.flush()
    assert [(tos, data[3]) for tos, data in pair.take()] == [(4 * n, n) for n in range(10)]
    other.close()


def test_answers_are_sent_to_the_source_of_a_packet(pair):
    pair.add(0, (1, 0, 0, 0, 0))
    assert pair.receiver.receive(pair.there.fileno()) == 1
    pair.sender.add(pair.there.fileno(), pair.receiver.name(0), 8, (2, 0, 0, 0, 0))
    pair.sender.flush()
    assert pair.here.recv(100) == HEADER.pack(2, 0, 0, 0, 0)


def test_batches_do_not_reuse_lengths_or_tos_of_earlier_ones(pair):
    pair.add(0xFC, (1, 0, 0, 0, 0), bytes(1000))
    pair.take()
    pair.add(0x04, (1, 0, 0, 0, 0))
    assert pair.take() == [(0x04, HEADER.pack(1, 0, 0, 0, 0))]


def test_receive_returns_zero_on_an_empty_socket(pair):
    assert pair.receiver.receive(pair.there.fileno()) == 0


def test_receive_buffer_overflows_are_counted():
    made = Pair()
    made.there.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    for _ in range(200):
        made.add(0, (1, 0, 0, 0, 0), bytes(1000))
    arrived = len(made.take())
    assert 0 < arrived < 200 and overflowed(made.there) == 200 - arrived
    made.close()


def test_flush_fails_if_a_socket_stays_full():
    """No process reads the peer of this socket pair, and its packets need no address."""
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    sender = Sender(wait_ms=50)
    with pytest.raises(OSError, match="stayed full") as caught:
        for _ in range(100_000):
            sender.add(here.fileno(), 0, 0, (1, 0, 0, 0, 0))
            sender.flush()
    assert caught.value.errno == errno.EAGAIN
    there.recv(100)
    sender.add(here.fileno(), 0, 0, (2, 0, 0, 0, 0))
    sender.flush()
    here.close()
    there.close()


def test_failed_system_calls_raise_oserror_and_later_packets_are_sent(pair):
    pair.sender.add(-1, int(pair.name.ctypes.data), 0, (1, 0, 0, 0, 0))
    with pytest.raises(OSError, match="sendmmsg: Bad file descriptor"):
        pair.sender.flush()
    with pytest.raises(OSError, match="recvmmsg: Bad file descriptor"):
        pair.receiver.receive(-1)
    pair.add(4, (7, 0, 0, 0, 0))  # and what comes later is not held back
    assert pair.take() == [(4, HEADER.pack(7, 0, 0, 0, 0))]


def test_occupied_udp_port_is_reported(pair):
    with pytest.raises(TestbedError, match=r"cannot bind UDP port \d+ of 127\.0\.0\.1: Address already in use"):
        open_datagrams(HOST, pair.there.getsockname()[1])


def test_address_of_returns_the_address_of_a_buffer():
    data = bytearray(b"abc")
    assert address_of(memoryview(b"")) == 0
    at = address_of(memoryview(data))
    import ctypes

    assert ctypes.string_at(at, 3) == b"abc"
