"""The userspace switch with real sockets: kernels' packets through TUN devices, and a process that ends when it should."""

from __future__ import annotations

import errno
import os
import signal
import socket
import struct
import subprocess
import time
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from userspace_cases import MBPS, Queues, diamond, star
from userspace_network import labelled, needs_devices, networks, udp

from gradwire.emu.planning.kernel_features import KernelFeatures
from gradwire.emu.planning.plan import TransportPlan
from gradwire.emu.planning.probe import probe
from gradwire.emu.switches.backend_kind import TestbedError
from gradwire.emu.switches.backends.userspace import Userspace
from gradwire.emu.switches.userspace_switch import host_nic, tun
from gradwire.emu.switches.userspace_switch.network import UserspaceSwitch
from gradwire.emu.system.kernel_tcp import tick_ns
from gradwire.emu.system.namespaces import inside
from gradwire.scenarios.wire import GRADWIRE_PORT, dscp

WAIT_S = 20


@pytest.fixture
def network():
    with networks() as made:
        yield made


def until(what, limit_s: float = WAIT_S):
    """Wait until `what()` is true."""
    end = time.monotonic() + limit_s
    while not what():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.01)


@needs_devices
def test_packets_arrive_or_are_counted_as_drops_and_marks_are_visible(network):
    """Two hosts at 20 Mbps send to one host, and the important packets alone exceed its link. Every third packet is
    droppable. The message number is the host, plus 10 for droppable packets."""
    plan = star(3, rate=20 * MBPS, queues=Queues(8, 30_000, (8_000,) * 8, True))
    running = network(plan)
    receiver = udp(running, 2, GRADWIRE_PORT)
    receiver.setsockopt(socket.IPPROTO_IP, socket.IP_RECVTOS, 1)
    sent, arrived = ({message: set() for message in (0, 1, 10, 11)} for _ in range(2))
    marked = 0
    senders = [[udp(running, host) for _ in range(2)] for host in range(2)]
    for pair in senders:
        for ecn, each in zip((2, 0), pair, strict=True):
            each.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, dscp(3) << 2 | ecn)
    for number in range(150):
        for host, pair in enumerate(senders):
            droppable = number % 3 == 0
            sent[host + 10 * droppable].add(number)
            pair[droppable].sendto(labelled(host + 10 * droppable, number, 1400), ("10.0.0.3", GRADWIRE_PORT))
    while True:
        try:
            data, control, _, _ = receiver.recvmsg(2000, 64)
        except TimeoutError:
            break
        tos = control[0][2][0]
        message, _, _, number, _ = struct.unpack("!IIHIH", data[:16])
        assert tos >> 2 == dscp(3) and number not in arrived[message]
        assert (tos & 3 == 0) == (message >= 10)
        arrived[message].add(number)
        marked += tos & 3 == 3
    counts = {count.port: count for count in running.counts()}
    down = counts["s0->h2"]
    assert counts["h0->s0"].packets == counts["h1->s0"].packets == 150
    assert counts["h0->s0"].bytes == 150 * (14 + 20 + 8 + 16 + 1400)
    assert down.packets == sum(map(len, arrived.values()))
    assert down.marks == down.by_queue[3]["marks"] == marked > 0
    drops = running.drops()
    assert len(drops) == down.drops_tail + down.drops_selective
    assert down.drops_tail > 0 and down.drops_selective > 0
    for message, numbers in sent.items():
        assert {drop.packet for drop in drops if drop.message == message} == numbers - arrived[message]
    assert {drop.port for drop in drops} == {"s0->h2"}
    assert all(drop.important == (drop.message < 10) and drop.priority == 3 for drop in drops)
    assert all(drop.message >= 10 for drop in drops if drop.cause == "selective")
    now = time.monotonic_ns()
    assert all(now - 60 * 10**9 < drop.time_ns < now for drop in drops)
    assert len(running.drops()) == down.drops_tail + down.drops_selective  # asked again: nothing twice
    assert down.peak_queue_bytes <= 30_000 and down.queue_bytes == 0
    assert not [line for line in running.check() if "late" not in line]
    assert running.lateness().count == down.packets


@needs_devices
def test_switch_captures_hold_arrivals_and_departures_with_marks(network, tmp_path, monkeypatch):
    """A capture holds more packets than its buffer, excludes other packets and ends when stopped."""
    scapy = pytest.importorskip("scapy.all")
    monkeypatch.setattr("gradwire.emu.switches.userspace_switch.layout.PACKETS", 64)
    plan = diamond(1, rate=20 * MBPS, queues=Queues(8, 60_000, (8_000,) * 8, True), rates={7: 10 * MBPS})
    running = network(plan)
    leaf, spine = plan.names.index("leaf1"), plan.names.index("spine0")
    capture = running.capture({leaf: tmp_path / "leaf1.pcapng", spine: tmp_path / "spine0.pcapng"})
    receiver, sender = udp(running, 1, GRADWIRE_PORT), udp(running, 0)
    sender.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, dscp(3) << 2 | 2)
    many, size = 200, 14 + 20 + 8 + 16 + 1000
    for number in range(many):
        sender.sendto(labelled(7, number, 1000), ("10.0.0.2", GRADWIRE_PORT))
    arrived = 0
    with suppress(TimeoutError):
        while True:
            receiver.recv(2000)
            arrived += 1
    assert capture.stop() == []
    sender.sendto(labelled(7, many, 1000), ("10.0.0.2", GRADWIRE_PORT))
    receiver.recv(2000)
    counts = {count.port: count for count in running.counts()}
    seen = {}
    for node in ("leaf1", "spine0"):
        for data, meta in scapy.RawPcapNgReader(str(tmp_path / f"{node}.pcapng")):
            name = meta.ifname.decode() if isinstance(meta.ifname, bytes) else meta.ifname
            assert meta.wirelen == size and len(data) == 256 and data[30:34] == socket.inet_aton("10.0.0.2")
            number = int.from_bytes(data[14 + 20 + 8 + 10 :][:4], "big")
            seen.setdefault((node, name), []).append((meta.tshigh << 32 | meta.tslow, number, data[15] & 3))
    into, between = seen["spine0", "leaf0->spine0"], seen["leaf1", "spine0->leaf1"]
    assert seen.keys() == {
        ("spine0", "leaf0->spine0"), ("spine0", "spine0->leaf1"), ("leaf1", "spine0->leaf1"), ("leaf1", "leaf1->h1")
    }  # fmt: skip
    assert [number for _, number, _ in into] == list(range(many))
    slow = counts["spine0->leaf1"]
    assert slow.marks > 0 and slow.drops_tail > 0 and arrived == many - slow.drops_tail == len(between)
    assert [ecn for _, _, ecn in into] == [2] * many
    assert (
        sum(ecn == 3 for _, _, ecn in between)
        == slow.marks
        == sum(ecn == 3 for _, _, ecn in seen["leaf1", "leaf1->h1"])
    )
    taken = size * 8 * 100  # ns at 10 Mbps
    starts, ends = ([time for time, _, _ in seen[node, "spine0->leaf1"]] for node in ("spine0", "leaf1"))
    assert all(abs(end - start - taken - 1000) <= 1 for start, end in zip(starts, ends, strict=True))
    assert all(after - before >= taken - 1 for before, after in pairwise(starts))
    assert abs(starts[0] - time.time_ns()) < 60 * 10**9


@needs_devices
def test_unwritable_or_duplicate_captures_are_rejected(network, tmp_path, monkeypatch):
    monkeypatch.setattr("gradwire.emu.switches.userspace_switch.layout.PACKETS", 32)
    running = network(star(2))
    with pytest.raises(FileNotFoundError):
        running.capture({2: tmp_path / "none" / "s0.pcapng"})
    capture = running.capture({2: tmp_path / "s0.pcapng"})
    with pytest.raises(OSError, match="captured already"):
        running.capture({2: tmp_path / "other.pcapng"})
    assert capture.stop() == []
    with pytest.raises(FileExistsError):
        running.capture({2: tmp_path / "s0.pcapng"})
    sender, receiver = udp(running, 0), udp(running, 1, 9000)
    for _ in range(200):
        sender.sendto(bytes(100), ("10.0.0.2", 9000))
        receiver.recv(2000)  # it goes on, and writes nothing down


@needs_devices
def test_full_disk_during_capture_is_reported_at_the_end(network, tmp_path, monkeypatch):
    """Packets are forwarded nevertheless."""

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("gradwire.emu.switches.userspace_switch.layout.PACKETS", 32)
    monkeypatch.setattr("gradwire.emu.system.capture.PacketFile.write", full)
    running = network(star(2))
    capture = running.capture({2: tmp_path / "s0.pcapng"})
    sender, receiver = udp(running, 0), udp(running, 1, 9000)
    for _ in range(200):
        sender.sendto(bytes(1000), ("10.0.0.2", 9000))
        receiver.recv(2000)
    with pytest.raises(OSError, match=f"No space left on device: '{tmp_path}/s0.pcapng'"):
        capture.stop()
    assert running.lateness().count == 200 and not running.exit_reason()


@needs_devices
def test_packets_refused_by_the_kernel_are_counted(network):
    running = network(star(2))
    sender = udp(running, 0)
    with inside(running.namespace(1)):
        subprocess.run(["ip", "link", "set", "p2", "down"], check=True)
    for _ in range(3):
        sender.sendto(bytes(100), ("10.0.0.2", 9000))
    until(lambda: running.lateness().count == 3)
    assert running.lateness().refused == 3
    assert any("did not accept 3 packets" in line for line in running.check())


@needs_devices
def test_userspace_switch_sends_at_the_link_rate(network):
    """1000 packets of 1500 bytes at 10 Mbps take 1.2 s."""
    running = network(star(2, rate=10 * MBPS))
    sender, receiver = udp(running, 0), udp(running, 1, 9000)
    for _ in range(1000):
        sender.sendto(bytes(1500 - 14 - 28), ("10.0.0.2", 9000))
    receiver.recv(2000)
    begin = time.monotonic()
    for _ in range(999):
        receiver.recv(2000)
    assert 999 * 0.0012 - 0.25 < time.monotonic() - begin < 999 * 0.0012 + 0.5


@needs_devices
def test_tcp_delivers_all_bytes_despite_marks_and_losses(network):
    plan = diamond(2, rate=50 * MBPS, latency=10**9, loss=0.005, balancing="ecmp", queues=Queues(8, 40_000, (15_000,) * 8, True))  # fmt: skip
    running = network(plan)
    with inside(running.namespace(1)):
        server = socket.create_server(("10.0.0.2", 7118))
    with inside(running.namespace(0)):
        client = socket.socket()
    server.settimeout(WAIT_S)
    client.settimeout(WAIT_S)
    client.connect(("10.0.0.2", 7118))
    there = server.accept()[0]
    there.settimeout(WAIT_S)
    sent = os.urandom(300_000)
    if not os.fork():
        client.sendall(sent)
        os._exit(0)
    got = b""
    while len(got) < len(sent):
        got += there.recv(1 << 16)
    os.wait()
    assert got == sent
    counts = running.counts()
    assert sum(count.drops_loss for count in counts) > 0
    ways = [count.packets for count in counts if count.port in ("leaf0->spine0", "leaf0->spine1")]
    assert min(ways) == 0 and max(ways) >= 300_000 // 1448  # one connection, one way


@needs_devices
@pytest.mark.parametrize("cards", [False, True])
def test_host_nic_limits_the_queue_of_tcp(network, cards):
    """Without a NIC, the initial window of 100 packets queues at the host's port at once. With a NIC, at most the
    slack (queueing.slack_bytes: two frames at this rate) and a packet that is being released queue there."""
    if cards and (lacking := host_nic.missing_features(probe())):
        pytest.skip(f"this kernel has no {', '.join(lacking)}")
    plan = star(2, rate=50 * MBPS, options={"initcwnd": 100})
    plan = replace(plan, transports=(TransportPlan("cubic", 1448, 66, "tcp", {}, congestion="cubic"),))
    running = network(plan, UserspaceSwitch(plan, cards=cards))
    with inside(running.namespace(1)):
        server = socket.create_server(("10.0.0.2", 7118))
    with inside(running.namespace(0)):
        client = socket.socket()
    client.connect(("10.0.0.2", 7118))
    there = server.accept()[0]
    there.settimeout(WAIT_S)
    client.sendall(bytes(144_800))
    got = 0
    while got < 144_800:
        got += len(there.recv(1 << 16))
    port = next(count for count in running.counts() if count.port == "h0->s0")
    assert port.drops_tail == 0
    if cards:
        assert port.peak_queue_bytes <= 4 * 1514
        with inside(running.namespace(0)):
            classes = subprocess.check_output(["tc", "class", "show", "dev", "p0"], text=True)
        assert "overhead 14 " in classes  # of a header that a TUN does not have, and the cable does
    else:
        assert port.peak_queue_bytes > 50 * 1514


@needs_devices
def test_round_robin_spraying_splits_packets_evenly(network):
    running = network(diamond(2, rate=100 * MBPS, balancing="spray_round_robin"))
    sender, receiver = udp(running, 0), udp(running, 1, 9000)
    for _ in range(100):
        sender.sendto(bytes(1000), ("10.0.0.2", 9000))
        receiver.recv(2000)
    counts = {count.port: count.packets for count in running.counts()}
    assert counts["leaf0->spine0"] == counts["leaf0->spine1"] == 50
    late = running.lateness()
    assert late.count == 100 and late.count_later_than(50_000_000) < 50  # they were waited for, not found by chance


@needs_devices
def test_each_host_has_its_namespace_routes_and_sysctls(network):
    plan = star(3, options={"initcwnd": 4, "min_rto_ns": 90_000_000})
    running = network(plan)
    with inside(running.namespace(1)):
        routes = os.popen("ip route show default").read()
        devices = os.popen("ip -br link").read().split("\n")
        ecn = Path("/proc/sys/net/ipv4/tcp_ecn").read_text()
    assert "initcwnd 4" in routes and f"rto_min lock {90 - tick_ns() // 10**6}ms" in routes and "dev p2" in routes
    assert {line.split()[0] for line in devices if line} == {"lo", "p2"}
    assert ecn.strip() == "2"
    assert len({os.fstat(running.namespace(host)).st_ino for host in range(3)}) == 3


@needs_devices
def test_switch_process_ends_with_its_parent(network):
    """The parent is killed without closing anything, and no process is left."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        running = Userspace().make(star(2))
        running.build()
        running.start()
        os.write(writing, str(running.process).encode())
        signal.pause()
    number = int(os.read(reading, 20))
    assert Path(f"/proc/{number}").exists()
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    until(lambda: not Path(f"/proc/{number}").exists() or " Z " in Path(f"/proc/{number}/stat").read_text())
    os.close(reading)
    os.close(writing)


@needs_devices
def test_death_of_the_switch_process_is_reported(network):
    running = network(star(2))
    assert not running.check()
    os.kill(running.process, signal.SIGKILL)
    with pytest.raises(TestbedError, match="process ended") as caught:
        running.counts()
    assert not caught.value.usage
    assert running.check() == ["the process of the userspace switch ended"]
    running.close()
    running.close()  # twice does no harm


@needs_devices
def test_close_leaves_no_process_or_open_files(network):
    running = network(star(2))
    number, files = running.process, len(os.listdir("/proc/self/fd"))
    begin = time.monotonic()
    running.close()
    assert time.monotonic() - begin < 2  # it ended by itself
    assert not Path(f"/proc/{number}").exists()
    assert len(os.listdir("/proc/self/fd")) == files - 5  # two devices, two namespaces, the socket
    with pytest.raises(TestbedError, match="not running"):
        running.counts()


@needs_devices
def test_build_error_is_one_line_and_leaves_no_open_files():
    before = len(os.listdir("/proc/self/fd"))
    switch = Userspace().make(star(2, options={"initcwnd": -3}))
    with pytest.raises(TestbedError, match="initcwnd") as caught:
        switch.build()
    assert "\n" not in caught.value.what
    assert len(os.listdir("/proc/self/fd")) == before


def test_userspace_switch_lists_missing_requirements(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(tun, "DEVICE", "/dev/net/none")
    monkeypatch.setattr("gradwire.emu.system.namespaces.find_tool", lambda name: None)
    found = Userspace().missing(None, star(2, balancing="flowlet"))
    for word in ("root", "/dev/net/none does not exist", "iproute2", "load balancing flowlet"):
        assert any(word in line for line in found)
    assert len(found) == 4


def test_userspace_switch_lists_missing_features_of_a_probed_kernel():
    kind, good = Userspace(), KernelFeatures(namespaces="", tun="", tools={"ip": "iproute2"})
    assert kind.missing(good, star(2)) == []
    assert kind.missing(replace(good, namespaces="not permitted"), star(2)) == ["no network namespaces: not permitted"]
    assert kind.missing(replace(good, tun="no device"), star(2)) == ["no TUN devices: no device"]
    assert "command not found: ip" in kind.missing(replace(good, tools={}), star(2))[0]


def test_userspace_switch_lists_its_substitutions():
    kind, virtual = Userspace(), "virtual"
    assert kind.substitutions(None, star(8, rate=10 * MBPS, clock=virtual, captures=("h0",))) == []
    assert kind.substitutions(None, star(8, rate=1000 * MBPS, clock=virtual)) == []
    (early,) = kind.substitutions(None, star(8, rate=10 * MBPS, captures=("h0", "s0"), latency=30_000_000))
    assert "up to 30 us early" in early
    (early, fast) = kind.substitutions(None, star(8, rate=1000 * MBPS, latency=500_000_000))
    assert "up to 100 us early" in early and "more than" in fast
    tcp = replace(star(2, clock=virtual), transports=(TransportPlan("cubic", 1448, 66, "tcp", {}, congestion="cubic"),))
    whole = KernelFeatures(qdiscs={"htb": "", "bfifo": ""}, classifiers={"u32": ""}, tools={"tc": "6.1"})
    assert kind.substitutions(whole, tcp) == []
    (said,) = kind.substitutions(replace(whole, classifiers={"u32": "not known"}), tcp)
    assert "TCP" in said and said.endswith("missing on this kernel: u32")
