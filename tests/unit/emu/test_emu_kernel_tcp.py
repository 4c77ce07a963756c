"""What scenarios ask of the kernel's TCP by routes and sysctls, and that the kernel then does it."""

from __future__ import annotations

import socket
import struct
from dataclasses import replace

import pytest
from userspace_cases import MBPS, star

from gradwire.emu.planning.plan import TransportPlan
from gradwire.emu.planning.probe import probe
from gradwire.emu.switches.backend_kind import TestbedError
from gradwire.emu.switches.backends.userspace import Userspace
from gradwire.emu.switches.linux_network import devices
from gradwire.emu.switches.userspace_switch import host_nic, tun
from gradwire.emu.switches.userspace_switch.network import UserspaceSwitch
from gradwire.emu.system import kernel_tcp
from gradwire.emu.system.namespaces import inside
from gradwire.scenarios.wire import serialisation_ps

MS = 1_000_000
PAYLOAD = 1448
MEMINFO = 55
"""SO_MEMINFO [asm/socket.h]; its third word is what waits in the devices."""
ROOMS = (768, 832)
"""What a waiting packet takes beside its payload, on two kernels."""
missing = Userspace().missing(None, star(2))


def tcp(**options):
    plan = star(2, rate=5 * MBPS, options=options)
    return replace(plan, transports=(TransportPlan("cubic", PAYLOAD, 66, "tcp", {}, congestion="cubic"),))


@pytest.mark.parametrize("asked, tick, set_to", [(10, 1, 9), (10, 4, 6), (5, 10, 1), (1, 1, 1), (2.5, 1, 2)])
def test_rto_min_is_set_one_tick_below_the_requested_timeout(asked, tick, set_to):
    """The kernel adds one tick and the round trip."""
    plan = tcp(min_rto_ns=round(asked * MS), initcwnd=10)
    wanted = kernel_tcp.metrics(plan, tick * MS)
    assert wanted == {"initcwnd": 10, "rto_min": set_to}
    assert kernel_tcp.metric_words(wanted) == f" initcwnd 10 rto_min {set_to}ms"


def test_default_plan_sets_no_route_metrics_or_recovery_sysctls():
    plan = tcp()
    assert kernel_tcp.metrics(plan, MS) == {}
    assert kernel_tcp.metric_words({}) == ""
    assert kernel_tcp.sysctls(plan, plan.ports[0], 0) == {"net/ipv4/tcp_ecn": "2", "net/ipv4/tcp_no_metrics_save": "1"}
    classic = kernel_tcp.sysctls(tcp(loss_recovery="classic", tcp_ecn=1), plan.ports[0], 0)
    assert classic["net/ipv4/tcp_recovery"] == classic["net/ipv4/tcp_early_retrans"] == "0"
    assert classic["net/ipv4/tcp_ecn"] == "1"


def waits(values, room):
    """How many packets the kernel puts there before it stops."""
    waiting = 0
    while 1 + waiting * (PAYLOAD + room) <= int(values[kernel_tcp.LIMIT]):
        waiting += 1
    return waiting


@pytest.mark.parametrize("held, packets", [(0, 1), (0.1, 2), (1, 2), (1.9, 3), (7.5, 9)])
@pytest.mark.parametrize("room", ROOMS)
def test_tcp_limit_output_sysctl_bounds_queued_packets(held, packets, room):
    """The kernel adds packets until the queued bytes exceed the limit [net/ipv4/tcp_output.c,
    `tcp_small_queue_check`, where a socket counts one byte more]. `held` is in packet times after the first bit."""
    plan = tcp(host_queue="packet")
    port = plan.ports[0]
    ahead_ps = round(held * serialisation_ps(plan.largest_frame(), port.rate))
    assert waits(kernel_tcp.sysctls(plan, port, ahead_ps), room) == packets


@pytest.mark.parametrize("wired", [True, False])
def test_one_packet_queues_under_virtual_time_with_any_cabling(wired, monkeypatch):
    """A packet counts until its transmission begins, and under virtual time no port is ahead."""
    seen = {}

    class Spaces:
        def make(self, names):
            assert len(names) == 3 + wired

        def set_sysctls(self, name, values, may_miss):
            seen[name] = values

        def __getitem__(self, name):
            return name

    for does in ("batch", "without_offloads"):
        monkeypatch.setattr(devices, does, lambda *_: None)
    plan = replace(tcp(host_queue="packet"), clock="virtual")
    devices.make_devices(plan, Spaces(), wired, lambda node: [])
    limits = [values for values in seen.values() if kernel_tcp.LIMIT in values]
    assert len(limits) == 2
    assert {waits(values, room) for values in limits for room in ROOMS} == {1}


@pytest.mark.skipif(bool(missing), reason="; ".join(missing))
@pytest.mark.parametrize("queue, least, most", [("kernel", 20, 100), ("packet", 1, 4)])
def test_bytes_queued_at_the_nic_match_the_host_queue_option(queue, least, most):
    """An initial window of 100 packets leaves at 5 Mbit/s. On the wall clock, a port may be two packets ahead, so
    that three wait; a packet that was just released may still be counted."""
    if lacking := host_nic.missing_features(probe()):
        pytest.skip(f"this kernel has no {', '.join(lacking)}")
    plan = tcp(initcwnd=100, host_queue=queue)
    network = UserspaceSwitch(plan, cards=True)
    try:
        network.build()
        network.start()
        with inside(network.namespace(1)):
            server = socket.create_server(("10.0.0.2", 7118))
        with inside(network.namespace(0)):
            client = socket.socket()
        client.connect(("10.0.0.2", 7118))
        there = server.accept()[0]
        there.settimeout(20)
        client.sendall(bytes(144_800))
        got, waiting = 0, []
        while got < 144_800:
            waiting.append(struct.unpack("9I", client.getsockopt(socket.SOL_SOCKET, MEMINFO, 36))[2])
            got += len(there.recv(1 << 16))
        assert least * (PAYLOAD + ROOMS[0]) <= max(waiting) <= most * (PAYLOAD + ROOMS[1])
    finally:
        network.close()


@pytest.mark.skipif(bool(missing), reason="; ".join(missing))
def test_build_fails_if_the_kernel_changes_route_metrics(monkeypatch):
    plan = tcp(min_rto_ns=10 * MS)
    monkeypatch.setattr(tun, "metrics_shown", lambda route: {"rto_min": 200})
    with pytest.raises(TestbedError, match="routes differ: the kernel has"):
        UserspaceSwitch(plan).build()
