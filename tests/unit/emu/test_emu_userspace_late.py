"""How late the userspace switch and hosts are, with real sockets: what counts, and what is said of it."""

from __future__ import annotations

import struct
import time

import pytest
from userspace_cases import MBPS, US, star
from userspace_network import labelled, needs_devices, networks, udp

from gradwire.emu.planning.base_rtt import base_round_trip_ns
from gradwire.emu.switches.userspace_switch.network import UserspaceSwitch
from gradwire.emu.switches.userspace_switch.process import EARLY_PS, Lateness
from gradwire.emu.wire.header import ACK
from gradwire.scenarios.wire import GRADWIRE_PORT


@pytest.fixture
def network():
    with networks() as made:
        yield made


@needs_devices
def test_late_answers_of_a_host_are_measured(network):
    """Every packet is acknowledged 20 ms after its arrival."""
    running = network(star(2, rate=20 * MBPS))
    asking, answering = udp(running, 0), udp(running, 1, GRADWIRE_PORT)
    for number in range(5):
        asking.sendto(labelled(7, number, 1000), ("10.0.0.2", GRADWIRE_PORT))
        data, where = answering.recvfrom(2000)
        assert struct.unpack("!IIHIH", data[:16])[3] == number
        time.sleep(0.02)
        answering.sendto(struct.pack("!IIHIH", 7, 0, 0, number, ACK), where)
        asking.recvfrom(2000)
    late = running.lateness()
    assert late.answers == 5
    assert 20e6 - EARLY_PS / 1000 <= late.answered_ns <= 200e6


@needs_devices
def test_lateness_counts_only_packets_during_the_run(network):
    """Packets during setup and reporting are excluded."""
    running = network(star(2))
    asking, answering = udp(running, 0), udp(running, 1, GRADWIRE_PORT)

    def exchange(many: int) -> None:
        for number in range(many):
            asking.sendto(labelled(7, number, 1000), ("10.0.0.2", GRADWIRE_PORT))
            where = answering.recvfrom(2000)[1]
            answering.sendto(struct.pack("!IIHIH", 7, 0, 0, number, ACK), where)
            asking.recvfrom(2000)

    exchange(3)
    assert running.lateness().count == 6
    begin = time.monotonic_ns() + 300_000_000
    running.begin(begin)
    exchange(3)
    late, now = running.lateness(), time.monotonic_ns()
    assert now >= begin or (late.count, late.answers, late.worst_ns) == (0, 0, 0)
    time.sleep(max(0, begin - now) / 1e9)
    exchange(4)
    late = running.lateness()
    assert (late.count, late.answers) == (8, 4) and late.worst_ns > 0
    running.end_run()
    exchange(2)
    assert running.lateness() == late
    assert sum(count.packets for count in running.counts() if count.port.startswith("s0")) == 24  # all are counted


def test_lateness_warning_depends_on_base_round_trip_and_clock():
    late = Lateness()
    for time_ns, many in ((900, 950), (3_000_000, 50)):
        late.buckets[time_ns.bit_length()] += many
    late.worst_ns = 3_000_000
    assert (late.count, late.count_later_than(1_000_000)) == (1000, 50)
    wall, virtual = (UserspaceSwitch(star(2, clock=clock)) for clock in ("wall", "virtual"))
    trip = base_round_trip_ns(wall.plan) / 1e6
    assert f"50 of 1,000 packets were delivered more than {trip:.3g} ms late (max 3.0 ms)" in wall._warnings(late)[0]
    assert UserspaceSwitch(star(2, latency=1000 * US, clock="wall"))._warnings(late) == [], "round trips of 4 ms"
    assert virtual._warnings(late) == []
    assert UserspaceSwitch(star(2, options={"late_ms": 10}))._warnings(late) == []
    late.refused = 2
    assert "did not accept 2 packets" in virtual._warnings(late)[0]
