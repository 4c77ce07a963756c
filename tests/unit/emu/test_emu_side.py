"""The side channel between two hosts on loopback addresses, each with a loop that only runs when it is told to."""

from __future__ import annotations

import ctypes
import socket
import struct
from types import SimpleNamespace

import pytest

from gradwire.emu.agent.loop import EpollLoop
from gradwire.emu.switches.backend_kind import TestbedError
from gradwire.emu.transports.datagrams import DatagramCarrier
from gradwire.emu.transports.dlcp import DlcpBySide
from gradwire.emu.transports.side_channel import BACKOFF_AT, CONNECTIONS, INFO_BYTES, SideChannel
from gradwire.emu.wire.header import ACK, PROBE, STOP, Header
from gradwire.scenarios.wire import dscp

MS = 1_000_000
NOTHING = Header((1 << 32) - 1, kind=ACK)
MESSAGE = SimpleNamespace(number=7, src=0, dst=1, priority=3)


class FakeHost:
    def __init__(self, node):
        self.node, self.loop, self.token = node, EpollLoop(), bytes(range(16))

    def address(self, node):
        return f"127.77.0.{node + 1}"

    def row(self, message):
        return {7: MESSAGE, 8: MESSAGE}[message]

    def run(self, ms=30):
        self.loop.at(self.loop.now() + ms * MS, self.loop.stop)
        self.loop.run()


class FakeNic:
    def __init__(self):
        self.bytes = 0

    def restart(self):
        self.bytes = 0

    def add_control_bytes(self, nbytes, count=1):
        self.bytes += nbytes * count


@pytest.fixture
def pair():
    """Host 0 sends messages to host 1."""
    hosts = [FakeHost(node) for node in (0, 1)]
    sides = [SideChannel(host, FakeNic()) for host in hosts]
    for side in sides:
        side.open()
    yield hosts, sides
    for host, side in zip(hosts, sides, strict=True):
        side.close()
        host.loop.close()


def greet(hosts, sides):
    sides[0].connect([1])
    for host in (*hosts, hosts[0]):
        host.run()
    begin(sides)


def begin(sides):
    """As carriers do."""
    for side in sides:
        side.nic.restart()
        side.begin()


def asked(sides):
    """From now on, how often the kernel is asked: a list that grows."""
    calls = []
    for connection in (each for side in sides for each in side._all()):

        def ask(real=connection.query_kernel):
            calls.append(real)
            return real()

        connection.query_kernel = ask
    return calls


def deaf(link):
    """Whatever comes in is dropped before it is acknowledged, by a program that keeps no byte of it."""
    program = ctypes.create_string_buffer(struct.pack("=HBBI", 0x06, 0, 0, 0))  # BPF_RET | BPF_K [linux/filter.h]
    link.setsockopt(socket.SOL_SOCKET, 26, struct.pack("@HP", 1, ctypes.addressof(program)))  # SO_ATTACH_FILTER


def test_side_channel_is_connected_only_after_both_ends_accept(pair):
    """The kernel of the connecting host reports a connection earlier, when the other end cannot answer yet."""
    hosts, sides = pair
    sides[0].connect([1])
    assert not sides[0].connected()
    hosts[0].run()  # the kernel has a connection now; nobody has accepted it
    assert not sides[0].connected()
    with pytest.raises(TestbedError, match=r"no connection from 127\.77\.0\.1"):
        sides[1].answer(MESSAGE, Header(7, kind=STOP))
    hosts[1].run()
    hosts[0].run()
    assert sides[0].connected() and sides[1].connected()
    links = [each.link for each in (*sides[0]._to[1], *sides[1]._from["127.77.0.1"])]
    assert len(links) == 2 * CONNECTIONS
    assert {each.getsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK) for each in links} == {1}, "as fresh as ever"
    classes = {each.getsockopt(socket.IPPROTO_IP, socket.IP_TOS) >> 2 for each in links}
    assert classes == {dscp(0)}, "what only acknowledges does not wait behind data"


def test_side_channel_carries_probes_and_answers(pair):
    hosts, sides = pair
    probed, answered = [], []
    sides[1].probed = lambda header, content: probed.append((header.kind, header.message, header.sequence))
    sides[0].listen_for(7, lambda header, content: answered.append((header.kind, header.message, content)))
    greet(hosts, sides)
    assert probed == answered == []  # openings are nobody's business
    assert sides[0].probe(MESSAGE, 3) == 66 + 16
    hosts[1].run()
    assert probed == [(PROBE, 7, 3)]
    sides[1].answer(MESSAGE, Header(7, length=2, kind=STOP), b"xy")
    hosts[0].run()
    assert answered == [(STOP, 7, b"xy")]
    acknowledgements = [sides[0].nic.bytes / 66, (sides[1].nic.bytes - (66 + 16 + 2)) / 66]
    assert acknowledgements[0] in (0, 1) and acknowledgements[1] in (0, 1)


def test_retransmitting_connection_does_not_delay_other_probes(pair):
    """All data behind a lost segment of a stream waits, and the waits double."""
    hosts, sides = pair
    probed = []
    sides[1].probed = lambda header, content: probed.append(header.message)
    greet(hosts, sides)
    used, *free = sides[0]._to[1]
    (there,) = (each for each in sides[1]._from["127.77.0.1"] if each.link.getpeername() == used.link.getsockname())
    deaf(there.link)
    sides[0].probe(MESSAGE, 1)
    for _ in range(100):
        hosts[1].run(5)
        if used.poll() > max(each.poll() for each in free):
            break
    assert probed == [] and used.poll() > max(each.poll() for each in free)
    info = used.link.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, INFO_BYTES)
    assert info[BACKOFF_AT] == 0, "noticed with the first repetition, before waits double"
    sides[0].probe(SimpleNamespace(number=8, src=0, dst=1, priority=3), 1)
    hosts[1].run()
    assert probed == [8]


def test_bytes_sent_before_the_run_are_not_charged_to_the_link(pair):
    hosts, sides = pair
    sides[0].connect([1])
    for host in (*hosts, hosts[0]):
        host.run()
    for connection in sides[0]._to[1]:
        connection.write(NOTHING)
    begin(sides)
    assert sides[0].probe(MESSAGE, 5) == 66 + 16, "and nothing of before"


def test_idle_connections_cause_no_kernel_queries(pair):
    """One system call per connection and Probe delayed the timers of hosts that share two processors."""
    hosts, sides = pair
    sides[1].probed = lambda header, content: None
    greet(hosts, sides)
    for number in range(20):
        sides[0].probe(MESSAGE, number)
        hosts[1].run(5)
        if number == 9:  # those that were last used at the greeting have been asked about
            calls = asked(sides[:1])
    assert len(calls) <= 10, "the one that the Probe before went over"


def test_tcp_acknowledgements_are_charged_to_the_link(pair):
    hosts, sides = pair
    sides[1].probed = lambda header, content: None
    greet(hosts, sides)
    for number in range(4):
        sides[0].probe(MESSAGE, number)
        hosts[1].run(60)
    assert sides[1].nic.bytes in [66 * count for count in range(1, 5)]


def test_kernel_retransmissions_are_charged_to_the_link(pair):
    hosts, sides = pair
    greet(hosts, sides)
    for each in sides[1]._from["127.77.0.1"]:
        deaf(each.link)
    sides[0].probe(MESSAGE, 1)
    hosts[1].run(500)
    spent = sides[0].probe(MESSAGE, 2) / (66 + 16)
    assert spent == int(spent) >= 2
    assert sides[0].nic.bytes == 0, "its caller says so"


def test_carriers_reset_nic_and_side_channel_at_the_start():
    calls = []
    parts = SimpleNamespace(clock="wall")
    constant, dlcp = (
        SimpleNamespace(kind=kind, folder=None, parameters={}, payload=1400) for kind in ("constant_rate", "dlcp")
    )
    endpoint = SimpleNamespace(nic=SimpleNamespace(restart=lambda: calls.append("nic")))
    side = SimpleNamespace(begin=lambda: calls.append("side"))
    DatagramCarrier(parts, constant, endpoint).begin()
    assert calls == ["nic"]
    DlcpBySide(parts, dlcp, endpoint, side).begin()
    assert calls == ["nic", "nic", "side"]
