"""Speed of the testbed: `gradwire bench emu`.

* `core`: the rules of the userspace switch alone (`gradwire.emu.userspace.fabric`), without input or output: eight
  hosts that all send, around one switch and on a leaf-spine with packets sprayed.
* `tun`: the userspace switch with real TUN devices, in private namespaces: packets of one host to another, of which
  never more than `WINDOW` are under way. The links are much faster than the switch.
* `agents`: one large DLCP message between two hosts over real UDP sockets, on the wall clock. The links are faster than
  the agents, and than what `gradwire emulate` would accept; the row says so.
* `virtual`: four hosts send to one at the same time inside the kernel for virtual time, over links of 10 Gbps.

`packets` are what hosts send, acknowledgements included; `hops` are packets crossing a link, as all ports count them.
`wall s` is the time that this took, without starting processes, networks or kernels; `boot s` is the time from the
start of the virtual machine until its runner, a Python program, says its first word, and `build_s` (in JSON) that until
all agents are connected. `Mbit/s` is the payload delivered over the message's own time, on the clock that counts there.
Every row runs three times, each in a process of its own, by turns with the other rows of its case; the run of median
wall time counts. What was delivered is verified as in every run of the testbed.

What this machine cannot run is said below the table, as is what disturbed a run.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gradwire
from gradwire.benchmarks.fabric import BenchmarkError, machine
from gradwire.scenarios.errors import GradwireError, ScenarioError
from gradwire.scenarios.units import Bps, Bytes

if TYPE_CHECKING:
    from gradwire.emu.planning.plan import Plan
    from gradwire.emu.switches.userspace import UserspaceSwitch
    from gradwire.experiment.resolve import Resolved
    from gradwire.scenarios.schema.scenario import Scenario

CASES = ("core", "tun", "agents", "virtual")
REPEATS = 3
ROW_TIMEOUT_S = 300
WALL_S = 120
"""The longest that the testbed may take for one run."""
CORE_PACKETS = 200_000
"""Per host."""
TUN_PACKETS, TUN_PAYLOADS = 100_000, (100, 1400)
"""Bytes behind the UDP header."""
WINDOW = 256
"""Packets under way between the sockets of `tun`: enough to keep the switch busy, fewer than devices hold."""
QUIET_S = 5.0
"""When no packet has come for so long, those that are missing are lost."""
MESSAGE, INCAST_MESSAGE = 40_000_000, 1_000_000
RATE = 2_000_000_000
"""bit/s of the links of `agents`. `gradwire emulate` refuses what a machine does not keep up with; here, that is what
is measured."""
WALL_BACKENDS, VIRTUAL_BACKENDS = ("bpf", "userspace"), ("red", "bpf", "userspace")
COLUMNS = {
    "packets": ("packets", "{:,}"), "hops": ("hops", "{:,}"), "wall s": ("wall_s", "{:.2f}"),
    "packets/s": ("packets_per_s", "{:,}"), "hops/s": ("hops_per_s", "{:,}"), "Mbit/s": ("mbps", "{:,.0f}"),
    "virtual ms per s": ("virtual_ms_per_s", "{:.3g}"), "boot s": ("boot_s", "{:.2f}"),
}  # fmt: skip


def bench_emu(*, case: str | None, as_json: bool) -> None:
    """Run all cases, or one; print a table, or one JSON object.

    Raises
    ------
    GradwireError
        `case` names none of them, or nothing of it can run here; or, after all others have been shown, rows that did
        not end well.
    """
    if case is not None and case not in CASES:
        raise GradwireError("no such benchmark", "bench emu", f"--case {', '.join(CASES)}")
    rows: list[dict[str, Any]] = []
    for name in CASES if case is None else (case,):
        rows += _medians(list(rows_of(name)))
    failed = [f"{_title(row)}: {row['failed']}" for row in rows if "failed" in row]
    shown = [row for row in rows if "failed" not in row]
    if all("refused" in row for row in rows):
        told = "; ".join(dict.fromkeys(row["refused"] for row in rows))
        raise GradwireError(f"nothing of this can run here: {told}", "bench emu")
    if as_json:
        print(json.dumps({"machine": machine(), "rows": shown}))
    elif shown:
        _print(shown)
    if failed:
        raise BenchmarkError("\n".join(failed), f"{len(failed)} of {len(rows)} rows", "runs that end")


def rows_of(case: str) -> Iterator[dict[str, Any]]:
    """What a case measures: keyword arguments of `run_row`."""
    if case == "core":
        for what in ("star", "leaf-spine"):
            yield {"case": case, "what": what, "size": CORE_PACKETS}
    elif case == "tun":
        for many in TUN_PAYLOADS:
            yield {"case": case, "what": f"{many} B", "size": TUN_PACKETS, "payload": many}
    elif case == "agents":
        for each in WALL_BACKENDS:
            yield {"case": case, "what": each, "size": MESSAGE, "transport": "dlcp"}
    else:
        for transport in ("dlcp", "cubic"):
            for each in VIRTUAL_BACKENDS:
                yield {"case": case, "what": each, "size": INCAST_MESSAGE, "transport": transport}


def _title(row: Mapping[str, Any]) -> str:
    return " ".join(filter(None, (row["case"], row["what"], row.get("transport"))))


def _medians(group: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Run rows by turns, several times; of each the run of median wall time. What cannot run, or fails, is not tried
    again."""
    runs: list[list[dict[str, Any]]] = [[] for _ in group]
    for turn in range(1, REPEATS + 1):
        for row, done in zip(group, runs, strict=True):
            if done and "wall_s" not in done[-1]:
                continue
            print(f"{_title(row)}, run {turn}/{REPEATS}", file=sys.stderr, flush=True)
            try:
                done.append(in_own_process(row))
            except BenchmarkError as error:
                done.append({**row, "failed": error.what})
    for done in runs:
        if "wall_s" in done[-1]:
            done.sort(key=lambda run: float(run["wall_s"]))
            done.append(done[len(done) // 2])
    return [done[-1] for done in runs]


def in_own_process(row: Mapping[str, Any]) -> dict[str, Any]:
    """What `run_row` returns in a process of its own, for `tun` in private namespaces that end with it. If the machine
    cannot run it, the row has "refused", which says why. Raises BenchmarkError if it fails."""
    from gradwire.emu.switches.base import TestbedError
    from gradwire.emu.system.namespaces import private_command, tied

    root = str(Path(gradwire.__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-m", "gradwire.benchmarks.emu", json.dumps(row)]
    try:
        if row["case"] == "tun":
            command = private_command(command)
            tried = subprocess.run(private_command(["true"]), capture_output=True, text=True, timeout=20)
            if tried.returncode:
                return {**row, "refused": f"private namespaces cannot be made ({tried.stderr.strip()})"}
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=ROW_TIMEOUT_S, preexec_fn=tied()
        )
    except TestbedError as error:
        return {**row, "refused": str(error)}
    except subprocess.TimeoutExpired as error:
        raise BenchmarkError(f"no end after {ROW_TIMEOUT_S} s", _title(row), "a faster machine") from error
    if done.returncode:
        raise BenchmarkError(done.stderr.strip()[-2000:], _title(row), "a run that ends")
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


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
    import numba

    from gradwire.emu.native.calls import words_at
    from gradwire.emu.userspace import layout as at
    from gradwire.emu.userspace import rules
    from gradwire.emu.userspace.fabric import Fabric, port_counts
    from gradwire.scenarios.wire import serialisation_ps

    @numba.njit
    def arrived_by(W: Any, time: int) -> int:
        arrived = 0
        while True:
            packet = rules.next_reached(W, time)
            if packet < 0:
                return arrived
            rules.release(W, packet)
            arrived += 1

    @numba.njit
    def drive(address: int, waves: int, gap: int) -> int:
        W = words_at(address)
        arrived = 0
        for wave in range(waves):
            arrived += arrived_by(W, wave * gap)
            for host in range(8):
                packet = rules.take(W)
                row = rules.packet_of(W, packet)
                row[at.K_LENGTH] = row[at.K_SIZE] = size
                row[at.K_DST] = (host + 4) % 8
                row[at.K_PRIORITY] = 7
                row[at.K_IMPORTANT] = 1
                row[at.K_ENTROPY] = host
                row[at.K_MARKED] = 0
                rules.arrive(W, host, packet)
        return arrived + arrived_by(W, 1 << 60)

    topologies = {
        "star": ({"kind": "star", "hosts": 8}, "ecmp"),
        "leaf-spine": ({"kind": "leaf_spine", "leaves": 4, "spines": 2, "hosts_per_leaf": 2}, "spray_random"),
    }
    size, plan = Bytes(1500), _switch_plan(*topologies[what])
    gap = serialisation_ps(size, plan.ports[0].rate)
    fabric = Fabric(plan)
    drive(fabric.state.address, 1, gap)  # compiled
    fabric = Fabric(plan)
    begin = time.perf_counter()
    arrived = int(drive(fabric.state.address, each, gap))
    wall = time.perf_counter() - begin
    assert arrived == 8 * each
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


def _print(rows: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title="{processor}, {cores} cores, Python {python}".format(**machine()))
    for head in ("case", "what", "transport"):
        table.add_column(head)
    for head in COLUMNS:
        table.add_column(head, justify="right")
    for row in rows:
        cells = [form.format(row[name]) if name in row else "-" for name, form in COLUMNS.values()]
        table.add_row(row["case"], row["what"], row.get("transport", ""), *cells)
    Console(width=None if sys.stdout.isatty() else 130).print(table)
    for row in rows:
        if said := f"not run: {row['refused']}" if "refused" in row else row.get("note", ""):
            print(f"{_title(row)}: {said}")


if __name__ == "__main__":
    print(json.dumps(run_row(**json.loads(sys.argv[1]))))
