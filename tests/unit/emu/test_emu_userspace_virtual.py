"""The userspace switch under virtual time: real kernels' packets arrive when arithmetic says, to a few nanoseconds."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from gradwire.emu.native import code_cache
from gradwire.emu.switches.userspace_switch import compiled_switch
from gradwire.emu.virtual_time.kernel_build import find_kernel
from gradwire.emu.virtual_time.virtual_machine import run_inside
from gradwire.scenarios.cache import cache_folder

ROOT = Path(__file__).resolve().parents[3]
INSIDE = """
import json, os, socket, sys, time
from userspace_cases import Queues, star
from gradwire.emu.switches.backends.userspace import Userspace
from gradwire.emu.switches.userspace_switch.tun import inside

rate, many = int(sys.argv[1]), 100
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
for _ in range(many):
    sender.sendto(bytes(1500 - 14 - 28), ("10.0.0.2", 9000))
arrivals = []
for _ in range(many):
    receiver.recv(2000)
    arrivals.append(time.monotonic_ns() - begin)
late = network.lateness()
seen = {"arrivals": arrivals, "count": late.count, "worst_ns": late.worst_ns, "check": network.check()}
print("gradwire: " + json.dumps(seen), flush=True)
network.close()
"""

needs_kernel = pytest.mark.skipif(find_kernel() is None, reason="there is no virtual-time kernel (make uml)")


@needs_kernel
@pytest.mark.parametrize("rate", [10**9, 10**10])
def test_packets_arrive_at_computed_times_under_virtual_time(tmp_path, rate):
    """Packet k of a burst arrives after k + 2 transmissions and two link latencies. 1500 bytes take 12 us at 1 Gbps,
    and each link adds 5 us."""
    script, heard = tmp_path / "inside.py", []
    script.write_text(INSIDE, encoding="utf-8")
    code_cache.make_ready({compiled_switch.SWITCH: compiled_switch.work()})  # inside it takes far longer
    seen = {"PYTHONPATH": f"{ROOT}:{ROOT / 'tests' / 'support'}", "GRADWIRE_CACHE": str(cache_folder())}
    status = run_inside(
        [sys.executable, str(script), str(rate)], seed=1, limit_s=120, environment=seen, on_line=heard.append
    )
    assert status == 0
    seen = json.loads(heard[-1])
    wanted = [(k + 2) * 1500 * 8 * 10**9 // rate + 2 * 5000 for k in range(100)]
    assert all(0 <= found - when < 10 for found, when in zip(seen["arrivals"], wanted, strict=True))
    assert seen["count"] == 100 and seen["worst_ns"] < 10 and not seen["check"]
