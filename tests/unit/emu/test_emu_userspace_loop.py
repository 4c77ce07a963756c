"""The loop of the switch's process, with sockets in place of devices."""

from __future__ import annotations

import select
import socket
import struct
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
from userspace_cases import star

from gradwire.emu.switches.userspace_switch import layout as at
from gradwire.emu.switches.userspace_switch import loop
from gradwire.emu.system.processes import new_timer
from gradwire.scenarios.wire import dscp

RATE = 10**5
"""bit/s: a packet of 1000 bytes takes 0.08 s to the switch and as long to its host."""

COUNT = """
import socket, sys
host, parent = (socket.socket(fileno=int(number)) for number in sys.argv[1:])
host.settimeout(5)
arrived = 0
try:
    for _ in range(2):
        host.recv(2000)
        arrived += 1
finally:
    parent.send(b"%d" % arrived)
"""
"""A process of its own, because the loop lets no other thread run: says to the switch how many of two packets came."""


def datagram(src: int, dst: int, size: int) -> bytes:
    """An IPv4 packet as it comes from a TUN device."""
    addresses = socket.inet_aton(f"10.0.0.{src + 1}") + socket.inet_aton(f"10.0.0.{dst + 1}")
    ip = struct.pack("!BBHHHBBH", 0x45, dscp(0) << 2, size, 0, 0, 64, socket.IPPROTO_UDP, 0) + addresses
    return ip + struct.pack("!HHHH", 5000, 5001, size - 20, 0) + bytes(size - 28)


@pytest.fixture
def switch():
    """Two hosts, room for two packets. `ends`: what the hosts read and write; `parent`: the other end of the control."""
    devices = [socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(2)]
    parent, control = socket.socketpair()
    state = at.state_of(star(2, rate=RATE), packets=2)
    epoll, timer = select.epoll(), new_timer()
    for inner, _ in devices:
        inner.setblocking(False)
        epoll.register(inner, select.EPOLLIN)
    epoll.register(control, select.EPOLLIN)
    epoll.register(timer, select.EPOLLIN | select.EPOLLET)
    files = loop.Files(state, epoll.fileno(), timer, control.fileno(), [inner.fileno() for inner, _ in devices])
    state.network.origin_ns = time.monotonic_ns()
    made = SimpleNamespace(
        ends=[end for _, end in devices], inner=[inner for inner, _ in devices], parent=parent, control=control,
        state=state, files=files, serve=lambda: loop.serve(state.address),
    )  # fmt: skip
    yield made
    for each in (*made.ends, *made.inner, parent, control):
        each.close()
    epoll.close()


def test_timer_event_is_not_lost_if_the_packet_table_is_full(switch):
    """The timer event is edge-triggered, and here it coincides with a packet that finds no free slot. That packet is
    then gone, and only a timer can deliver the other packets."""
    for size in (1000, 900):
        switch.ends[0].send(datagram(0, 1, size))
        switch.parent.send(b"?")
        assert switch.serve() == (loop.ASKED if size == 1000 else loop.FULL)
        switch.control.recv(1)
    switch.ends[0].send(datagram(0, 1, 500))  # both are on their way, and the timer of the first is set
    time.sleep(0.4)
    assert switch.serve() == loop.FULL
    assert len(switch.inner[0].recv(2000)) == 500
    files = [switch.ends[1].fileno(), switch.parent.fileno()]
    waiting = subprocess.Popen([sys.executable, "-c", COUNT, *map(str, files)], pass_fds=files)
    assert switch.serve() == loop.ASKED
    assert waiting.wait() == 0
    assert switch.control.recv(1) == b"2"
