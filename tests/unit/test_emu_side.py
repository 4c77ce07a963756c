"""The side channel between two hosts on loopback addresses, each with a loop that only runs when it is told to."""

from __future__ import annotations

import socket
from types import SimpleNamespace

import pytest

from emu.agent.loop import EpollLoop
from emu.switches.base import TestbedError
from emu.transports.side import SideChannel
from emu.wire import PROBE, STOP, Header

MS = 1_000_000
MESSAGE = SimpleNamespace(number=7, src=0, dst=1, priority=3)


class FakeHost:
    def __init__(self, node):
        self.node, self.loop = node, EpollLoop()

    def address(self, node):
        return f"127.77.0.{node + 1}"

    def run(self, ms=30):
        self.loop.at(self.loop.now() + ms * MS, self.loop.stop)
        self.loop.run()


class FakeNic:
    def __init__(self):
        self.bytes = 0

    def took(self, nbytes, count=1):
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


def test_connected_means_at_both_ends(pair):
    """The kernel of the one that asks thinks so earlier, and the other end could not answer yet."""
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
    links = [sides[0]._to[1].link, sides[1]._from["127.77.0.1"].link]
    assert [each.getsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK) for each in links] == [1, 1], "as fresh as ever"


def test_probes_go_one_way_and_answers_come_back(pair):
    hosts, sides = pair
    probed, answered = [], []
    sides[1].probed = lambda header, content: probed.append((header.kind, header.message, header.sequence))
    sides[0].listen_for(7, lambda header, content: answered.append((header.kind, header.message, content)))
    sides[0].connect([1])
    for host in (*hosts, hosts[0]):
        host.run()
    assert probed == answered == []  # greetings are nobody's business
    sides[0].probe(MESSAGE, 3)
    hosts[1].run()
    assert probed == [(PROBE, 7, 3)]
    sides[1].answer(MESSAGE, Header(7, length=2, kind=STOP), b"xy")
    hosts[0].run()
    assert answered == [(STOP, 7, b"xy")]
    assert sides[0].nic.bytes == 0 and sides[1].nic.bytes == 66 + 16 + 2
