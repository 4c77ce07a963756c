"""The userspace switch under virtual time: real kernels' packets arrive when arithmetic says, to a few nanoseconds."""

from __future__ import annotations

import socket
import time
from typing import Any

import pytest
from emu_cases import TaskResult, in_virtual_each, needs
from shared import computed_once
from userspace_cases import star

from gradwire.emu.native import code_cache
from gradwire.emu.switches.backends.userspace import Userspace
from gradwire.emu.switches.userspace_switch import compiled_switch
from gradwire.emu.switches.userspace_switch.tun import inside

RATES = (10**9, 10**10)
PACKETS = 100


def burst(rate: int) -> dict[str, Any]:
    """Send packets of 1500 bytes at once; when each has arrived, in ns, and what the switch says of itself."""
    network = Userspace().make(star(2, rate=rate, latency=5_000_000, clock="virtual"))
    network.build()
    network.start()
    ends = []
    for host in range(2):
        with inside(network.namespace(host)):
            ends.append(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        ends[-1].bind((f"10.0.0.{host + 1}", 9000))
        ends[-1].settimeout(2)
    sender, receiver = ends
    begin = time.monotonic_ns()
    for _ in range(PACKETS):
        sender.sendto(bytes(1500 - 14 - 28), ("10.0.0.2", 9000))
    arrivals = []
    for _ in range(PACKETS):
        receiver.recv(2000)
        arrivals.append(time.monotonic_ns() - begin)
    late = network.lateness()
    seen = {"arrivals": arrivals, "count": late.count, "worst_ns": late.worst_ns, "check": network.check()}
    network.close()
    return seen


@pytest.fixture(scope="module")
def bursts(tmp_path_factory: pytest.TempPathFactory) -> dict[int, TaskResult]:
    """A burst at each rate, one after the other in one virtual machine."""

    def run() -> list[TaskResult]:
        code_cache.make_ready({compiled_switch.SWITCH: compiled_switch.work()})  # inside it takes far longer
        return in_virtual_each([(burst, (rate,)) for rate in RATES], seconds=120)

    return dict(zip(RATES, computed_once(tmp_path_factory, __name__, run), strict=True))


@needs("uml")
@pytest.mark.parametrize("rate", RATES)
def test_packets_arrive_at_computed_times_under_virtual_time(rate: int, bursts: dict[int, TaskResult]) -> None:
    """Packet k of a burst arrives after k + 2 transmissions and two link latencies. 1500 bytes take 12 us at 1 Gbps,
    and each link adds 5 us."""
    seen = bursts[rate].get()
    wanted = [(k + 2) * 1500 * 8 * 10**9 // rate + 2 * 5000 for k in range(PACKETS)]
    assert all(0 <= found - when < 10 for found, when in zip(seen["arrivals"], wanted, strict=True))
    assert seen["count"] == PACKETS and seen["worst_ns"] < 10 and not seen["check"]
