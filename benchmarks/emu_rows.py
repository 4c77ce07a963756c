"""`run_row` runs one row of the testbed's benchmark in this process and returns its packets, hops and times."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gradwire.scenarios.errors import ScenarioError
from gradwire.scenarios.inner_units import Bps, Bytes

if TYPE_CHECKING:
    from gradwire.emu.planning.plan import TestbedPlan
    from gradwire.emu.switches.userspace_switch.network import UserspaceSwitch
    from gradwire.scenarios.schema.scenario import Scenario
    from gradwire.workload.resolve import Resolved

WALL_S = 120
"""Maximum time of the testbed for one run."""
WINDOW = 256
"""Packets in flight between the sockets of `tun`: enough to keep the switch busy, fewer than devices buffer."""
QUIET_S = 5.0
"""Missing packets are lost if none has arrived for this long."""
RATE = 2_000_000_000
"""bit/s of the links of `agents`. `gradwire emulate` rejects rates above the machine's capacity, which is measured
here."""


def run_row(case: str, what: str, size: int, payload: int = 0, transport: str = "") -> dict[str, Any]:
    """Run one row once, in this process, which for `tun` must be in private namespaces. Times in seconds.

    what : the network (`core`), or the backend (`agents`, `virtual`); else a name only.
    size : packets per host (`core`), packets (`tun`), or bytes of a message.
    payload : payload bytes of UDP (`tun`).

    Returns the arguments; the figures or, if the machine cannot run it, "refused" with the reason; optionally a "note".
    """
    from gradwire.emu.switches.backend_kind import TestbedError

    row = {"case": case, "what": what, "size": size, "payload": payload, "transport": transport}
    try:
        if case == "core":
            figures = _core(what, size)
        elif case == "tun":
            figures = _tun(size, payload)
        elif case == "agents":
            figures = _emulated(_incast(2, "50Mbps", transport, size), "wall", what, RATE)
        else:
            figures = _emulated(_incast(5, "10Gbps", transport, size), "virtual", what)
    except TestbedError as error:  # errors in the benchmark's own scenarios are raised
        if not error.usage:
            raise
        return {**row, "refused": str(error)}
    for count in ("packets", "hops"):
        figures[f"{count}_per_s"] = round(figures[count] / figures["wall_s"]) if figures["wall_s"] else 0
    return {**row, **figures}


def _resolved(**tables: Any) -> tuple[Scenario, Resolved]:
    from gradwire.scenarios.loading.load import build_scenario
    from gradwire.workload.resolve import resolve

    scenario = build_scenario({"name": "bench", "seed": 1, **tables})
    return scenario, resolve(scenario)


def _incast(hosts: int, rate: str, transport: str, size: int) -> dict[str, Any]:
    """Return the tables of a scenario in which all hosts but the first send it a message at the same time."""
    return {
        "topology": {"kind": "star", "hosts": hosts},
        "link": {"rate": rate, "latency": "10us"},
        "host": {"software_latency": "50us"},
        "switch": {"queues": 8, "buffer": "512KiB", "ecn_threshold": "100KiB"},
        "transport": {"kind": transport, "payload": "1400B"},
        "traffic": [{"name": "bulk", "kind": "incast", "fan_in": hosts - 1, "receiver": "h0", "size": f"{size}B"}],
    }


def _switch_plan(topology: Mapping[str, Any], balancing: str) -> TestbedPlan:
    """Return a plan for the userspace switch alone: links of 100 Gbps, and buffers that do not overflow."""
    from gradwire.emu.planning.planner import make_plan

    scenario, resolved = _resolved(
        topology=topology,
        link={"rate": "100Gbps", "latency": "1us"},
        switch={"queues": 8, "buffer": "1GiB"},
        load_balancing=balancing,
        transport={"kind": "constant_rate", "payload": "1400B"},
        traffic=[{"name": "none", "kind": "incast", "fan_in": 1, "receiver": "h0", "size": "1B"}],
    )
    return make_plan(scenario, resolved, clock="wall", switch="userspace")


def _core(what: str, count: int) -> dict[str, Any]:
    """Let every host send `each` packets to the host four further on, as fast as its link allows."""
    from gradwire.benchmarks.emu_core import HOSTS, SIZE, driver
    from gradwire.emu.switches.userspace_switch.fabric import Fabric, port_counts
    from gradwire.scenarios.wire import serialisation_ps

    topologies = {
        "star": ({"kind": "star", "hosts": 8}, "ecmp"),
        "leaf-spine": ({"kind": "leaf_spine", "leaves": 4, "spines": 2, "hosts_per_leaf": 2}, "spray_random"),
    }
    plan, drive = _switch_plan(*topologies[what]), driver()["drive"]
    gap = serialisation_ps(Bytes(SIZE), plan.ports[0].rate)
    fabric = Fabric(plan)
    begin = time.perf_counter()
    arrived = drive(fabric.state.address, count, gap)
    wall = time.perf_counter() - begin
    assert arrived == HOSTS * count
    hops = sum(port.packets for port in port_counts(plan, fabric.counters()))
    return {"packets": arrived, "hops": hops, "wall_s": round(wall, 4)}


def _tun(count: int, payload: int) -> dict[str, Any]:
    """Measure the switch with TUN devices; `switch_cpu_s`: its process's CPU time, from its start to its end."""
    import resource

    from gradwire.emu.switches.backend_kind import TestbedError
    from gradwire.emu.switches.backends.userspace import Userspace
    from gradwire.emu.system.namespaces import set_up_private

    plan = _switch_plan({"kind": "star", "hosts": 2}, "ecmp")
    if missing := Userspace().missing(None, plan):
        raise TestbedError("; ".join(missing), "userspace switch")
    set_up_private()
    network = Userspace().make(plan)
    try:
        network.build()
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        network.start()
        arrived, wall = _through(network, count, payload)
        counts = network.counts()
    finally:
        network.close()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    if not arrived:
        raise TestbedError(f"none of {count:,} packets has arrived", "userspace switch", usage=False)
    figures: dict[str, Any] = {
        "packets": arrived,
        "hops": sum(port.packets for port in counts),
        "wall_s": round(wall, 4),
        "mbps": round(arrived * payload * 8 / wall / 1e6, 1),
        "switch_cpu_s": round(cpu, 3),
        "note": f"the switch takes {cpu / arrived * 1e6:.1f} us of processor time per packet",
    }
    if arrived < count:
        figures["note"] += f"; {count - arrived:,} of {count:,} packets are lost"
    return figures


def _through(network: UserspaceSwitch, count: int, payload: int) -> tuple[int, float]:
    """Send packets from the first host to the second; return arrivals, and the seconds from first to last."""
    import select
    import socket

    from gradwire.emu.planning.plan import host_address
    from gradwire.emu.system.namespaces import inside

    ends = []
    for host in (0, 1):
        with inside(network.namespace(host)):
            ends.append(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        ends[-1].setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
        ends[-1].bind((host_address(host), 9000))
        ends[-1].setblocking(False)
    sender, receiver = ends
    sender.connect((host_address(1), 9000))
    data, sent, arrived = bytes(payload), 0, 0
    begin = end = time.perf_counter()
    with sender, receiver:
        while arrived < count:
            while sent < count and sent - arrived < WINDOW:
                sender.send(data)
                sent += 1
            if not select.select([receiver], [], [], QUIET_S)[0]:
                break
            try:
                while True:
                    receiver.recv(2048)
                    arrived += 1
            except BlockingIOError:
                end = time.perf_counter()
    return arrived, end - begin


def _emulated(tables: Mapping[str, Any], clock: str, backend: str, rate: int | None = None) -> dict[str, Any]:
    """Run a scenario of traffic on the testbed, once, and verify it.

    Unlike `gradwire.emu.testbed.emulate`, it measures each phase. `rate`: bit/s of all links instead of the scenario's,
    even if this machine is too slow.
    """
    from gradwire.emu.control.supervisor import run
    from gradwire.emu.planning.planner import check_rates
    from gradwire.emu.switches.backend_kind import TestbedError
    from gradwire.emu.system.temporary_folders import temporary_folder
    from gradwire.emu.testbed import choose_backend, content_errors
    from gradwire.scenarios.interrupt import DeferredInterrupt

    scenario, resolved = _resolved(**tables)
    plan, notes = choose_backend(scenario, resolved, clock, backend).plan, []
    if rate is not None:
        plan = replace(plan, ports=tuple(replace(port, rate=Bps(rate)) for port in plan.ports))
        try:
            check_rates(plan, plan.options["kernel"].reachable_bps)
        except ScenarioError as error:
            notes.append(f"gradwire emulate would reject this: {error.what}")
    times: dict[str, list[float]] = {"building": [], "running": []}
    with DeferredInterrupt() as ctrl_c, temporary_folder("gradwire-bench-") as folder:
        begin = time.perf_counter()
        raw = run(plan, folder, WALL_S, lambda news: times[news["state"]].append(time.perf_counter()), ctrl_c)
    reports = raw.reports
    if reports.ended_by != "done":
        raise TestbedError(f"not finished after {WALL_S} s", f"{clock} clock, {backend}", usage=False)
    if wrong := content_errors(plan, raw, resolved):
        raise TestbedError(f"contents are wrong: {'; '.join(wrong[:3])}", "verification", usage=False)
    took = int(reports.end_ns.max() - reports.start_ns.min()) / 1e9
    wall = took if clock == "wall" else times["running"][-1] - times["running"][0]
    hosts = {port.name for port in plan.ports if port.src < plan.host_count}
    figures = {
        "packets": sum(count.packets for count in raw.counts if count.port in hosts),
        "hops": sum(count.packets for count in raw.counts),
        "wall_s": round(wall, 4),
        "sent_packets": int(reports.sent_packets.sum()),
        "received_bytes": int(reports.received.sum()),
        "mbps": round(int(reports.received.sum()) * 8 / took / 1e6, 1),
        "build_s": round(times["running"][0] - times["building"][0], 3),
    }
    if clock == "virtual":
        figures |= {
            "boot_s": round(times["building"][0] - begin, 3),
            "virtual_ms": round(took * 1000, 3),
            "virtual_ms_per_s": round(took * 1000 / wall, 3),
        }
    if raw.complaints:
        notes.append(f"disturbed: {'; '.join(raw.complaints[:2])}")
    return {**figures, "note": "; ".join(notes)} if notes else figures


if __name__ == "__main__":
    print(json.dumps(run_row(**json.loads(sys.argv[1]))))
