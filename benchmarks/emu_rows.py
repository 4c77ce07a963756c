"""One row of the testbed's benchmark, run once in this process: what was sent, across how many links, in what time."""

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
    from gradwire.emu.planning.plan import Plan
    from gradwire.emu.switches.userspace import UserspaceSwitch
    from gradwire.experiment.resolve import Resolved
    from gradwire.scenarios.schema.scenario import Scenario

WALL_S = 120
"""The longest that the testbed may take for one run."""
WINDOW = 256
"""Packets under way between the sockets of `tun`: enough to keep the switch busy, fewer than devices hold."""
QUIET_S = 5.0
"""When no packet has come for so long, those that are missing are lost."""
RATE = 2_000_000_000
"""bit/s of the links of `agents`. `gradwire emulate` refuses what a machine does not keep up with; here, that is what
is measured."""


def run_row(case: str, what: str, size: int, payload: int = 0, transport: str = "") -> dict[str, Any]:
    """Run one row once, in this process, which for `tun` must be in private namespaces. Times in seconds.

    Parameters
    ----------
    what : the network (`core`), or the backend (`agents`, `virtual`); else a name only.
    size : packets per host (`core`), packets (`tun`), or bytes of a message.
    payload : bytes behind the UDP header (`tun`).

    Returns
    -------
    dict
        The arguments; the figures or, if the machine cannot run it, "refused", which says why; perhaps a "note".
    """
    from gradwire.emu.switches.base import TestbedError

    row = {"case": case, "what": what, "size": size, "payload": payload, "transport": transport}
    try:
        if case == "core":
            found = _core(what, size)
        elif case == "tun":
            found = _tun(size, payload)
        elif case == "agents":
            found = _emulated(_incast(2, "50Mbps", transport, size), "wall", what, RATE)
        else:
            found = _emulated(_incast(5, "10Gbps", transport, size), "virtual", what)
    except TestbedError as error:  # not what is wrong with the scenarios, which are ours
        if not error.usage:
            raise
        return {**row, "refused": str(error)}
    for many in ("packets", "hops"):
        found[f"{many}_per_s"] = round(found[many] / found["wall_s"]) if found["wall_s"] else 0
    return {**row, **found}


def _resolved(**tables: Any) -> tuple[Scenario, Resolved]:
    """A scenario from its tables, and what the simulator's code makes of it."""
    from gradwire.experiment.resolve import resolve
    from gradwire.scenarios.load import build_scenario

    scenario = build_scenario({"name": "bench", "seed": 1, **tables})
    return scenario, resolve(scenario)


def _incast(hosts: int, rate: str, transport: str, size: int) -> dict[str, Any]:
    """All hosts but the first send it a message at the same time."""
    return {
        "topology": {"kind": "star", "hosts": hosts},
        "link": {"rate": rate, "latency": "10us"},
        "host": {"software_latency": "50us"},
        "switch": {"queues": 8, "buffer": "512KiB", "ecn_threshold": "100KiB"},
        "transport": {"kind": transport, "payload": "1400B"},
        "traffic": [{"name": "bulk", "kind": "incast", "fan_in": hosts - 1, "receiver": "h0", "size": f"{size}B"}],
    }  # fmt: skip


def _switch_plan(topology: Mapping[str, Any], balancing: str) -> Plan:
    """For the userspace switch alone: links of 100 Gbps, and buffers that nothing overflows."""
    from gradwire.emu.planning.prepare import make_plan

    scenario, resolved = _resolved(
        topology=topology, link={"rate": "100Gbps", "latency": "1us"}, switch={"queues": 8, "buffer": "1GiB"},
        load_balancing=balancing, transport={"kind": "constant_rate", "payload": "1400B"},
        traffic=[{"name": "none", "kind": "incast", "fan_in": 1, "receiver": "h0", "size": "1B"}],
    )  # fmt: skip
    return make_plan(scenario, resolved, clock="wall", switch="userspace")


def _core(what: str, each: int) -> dict[str, Any]:
    """Every host sends `each` packets to the host four further on, as fast as its link takes them."""
    from gradwire.benchmarks.emu_core import HOSTS, SIZE, driver
    from gradwire.emu.userspace.fabric import Fabric, port_counts
    from gradwire.scenarios.wire import serialisation_ps

    topologies = {
        "star": ({"kind": "star", "hosts": 8}, "ecmp"),
        "leaf-spine": ({"kind": "leaf_spine", "leaves": 4, "spines": 2, "hosts_per_leaf": 2}, "spray_random"),
    }
    plan, drive = _switch_plan(*topologies[what]), driver()["drive"]
    gap = serialisation_ps(Bytes(SIZE), plan.ports[0].rate)
    fabric = Fabric(plan)
    begin = time.perf_counter()
    arrived = drive(fabric.state.address, each, gap)
    wall = time.perf_counter() - begin
    assert arrived == HOSTS * each
    hops = sum(port.packets for port in port_counts(plan, fabric.counters()))
    return {"packets": arrived, "hops": hops, "wall_s": round(wall, 4)}


def _tun(count: int, payload: int) -> dict[str, Any]:
    """`switch_cpu_s`: processor time of the switch's process, from its start to its end."""
    import resource

    from gradwire.emu.switches.base import TestbedError
    from gradwire.emu.switches.userspace import Userspace
    from gradwire.emu.system.namespaces import settle

    plan = _switch_plan({"kind": "star", "hosts": 2}, "ecmp")
    if missing := Userspace().missing(None, plan):
        raise TestbedError("; ".join(missing), "userspace switch")
    settle()
    network = Userspace().make(plan)
    try:
        network.build()
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        network.start()
        got, wall = _through(network, count, payload)
        counts = network.counts()
    finally:
        network.close()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    if not got:
        raise TestbedError(f"none of {count:,} packets has arrived", "userspace switch", usage=False)
    found: dict[str, Any] = {
        "packets": got, "hops": sum(port.packets for port in counts), "wall_s": round(wall, 4),
        "mbps": round(got * payload * 8 / wall / 1e6, 1), "switch_cpu_s": round(cpu, 3),
        "note": f"the switch takes {cpu / got * 1e6:.1f} us of processor time per packet",
    }  # fmt: skip
    if got < count:
        found["note"] += f"; {count - got:,} of {count:,} packets are lost"
    return found


def _through(network: UserspaceSwitch, count: int, payload: int) -> tuple[int, float]:
    """Send packets from the first host to the second: how many have come, and the seconds from first to last."""
    import select
    import socket

    from gradwire.emu.planning.plan import host_address
    from gradwire.emu.userspace import tun

    ends = []
    for host in (0, 1):
        with tun.inside(network.namespace(host)):
            ends.append(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        ends[-1].setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
        ends[-1].bind((host_address(host), 9000))
        ends[-1].setblocking(False)
    sender, receiver = ends
    sender.connect((host_address(1), 9000))
    data, sent, got = bytes(payload), 0, 0
    begin = end = time.perf_counter()
    with sender, receiver:
        while got < count:
            while sent < count and sent - got < WINDOW:
                sender.send(data)
                sent += 1
            if not select.select([receiver], [], [], QUIET_S)[0]:
                break
            try:
                while True:
                    receiver.recv(2048)
                    got += 1
            except BlockingIOError:
                end = time.perf_counter()
    return got, end - begin


def _emulated(tables: Mapping[str, Any], clock: str, backend: str, rate: int | None = None) -> dict[str, Any]:
    """Run a scenario of traffic on the testbed, once, and verify it; `gradwire.emu.testbed.emulate` would not tell how
    long each part took. `rate`: bit/s of all links instead of the scenario's, whether this machine keeps up or not."""
    from gradwire.emu.control.supervise import run
    from gradwire.emu.planning.prepare import check_rates
    from gradwire.emu.switches.base import TestbedError
    from gradwire.emu.system.scratch import scratch
    from gradwire.emu.testbed import choose_backend, contents_wrong
    from gradwire.scenarios.interrupt import CtrlC

    scenario, resolved = _resolved(**tables)
    plan, notes = choose_backend(scenario, resolved, clock, backend).plan, []
    if rate is not None:
        plan = replace(plan, ports=tuple(replace(port, rate=Bps(rate)) for port in plan.ports))
        try:
            check_rates(plan, plan.options["kernel"].reachable_bps)
        except ScenarioError as error:
            notes.append(f"gradwire emulate would refuse this: {error.what}")
    heard: dict[str, list[float]] = {"building": [], "running": []}
    with CtrlC() as ctrl_c, scratch("gradwire-bench-") as folder:
        begin = time.perf_counter()
        raw = run(plan, folder, WALL_S, lambda news: heard[news["state"]].append(time.perf_counter()), ctrl_c)
    reports = raw.reports
    if reports.ended_by != "done":
        raise TestbedError(f"not over after {WALL_S} s", f"{clock} clock, {backend}", usage=False)
    if wrong := contents_wrong(plan, raw, resolved):
        raise TestbedError(f"contents are wrong: {'; '.join(wrong[:3])}", "verification", usage=False)
    took = int(reports.end_ns.max() - reports.start_ns.min()) / 1e9
    wall = took if clock == "wall" else heard["running"][-1] - heard["running"][0]
    hosts = {port.name for port in plan.ports if port.src < plan.host_count}
    found = {
        "packets": sum(count.packets for count in raw.counts if count.port in hosts),
        "hops": sum(count.packets for count in raw.counts),
        "wall_s": round(wall, 4),
        "sent_packets": int(reports.sent_packets.sum()),
        "received_bytes": int(reports.received.sum()),
        "mbps": round(int(reports.received.sum()) * 8 / took / 1e6, 1),
        "build_s": round(heard["running"][0] - heard["building"][0], 3),
    }
    if clock == "virtual":
        found |= {
            "boot_s": round(heard["building"][0] - begin, 3),
            "virtual_ms": round(took * 1000, 3),
            "virtual_ms_per_s": round(took * 1000 / wall, 3),
        }
    if raw.complaints:
        notes.append(f"disturbed: {'; '.join(raw.complaints[:2])}")
    return {**found, "note": "; ".join(notes)} if notes else found


if __name__ == "__main__":
    print(json.dumps(run_row(**json.loads(sys.argv[1]))))
