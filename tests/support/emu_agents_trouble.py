"""For tests of agents: runs in which something goes wrong, or that are started, cut or ended in other ways.

Functions of this module run inside namespaces: `emu_agents_cases.inside`.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from emu_agents_cases import MBPS, MS, Contents, Script, hosts_around_a_switch, lossy, parts, plan_of, run, summary

from gradwire.emu.control.controller import Controller, RunObserver
from gradwire.emu.control.launchers import CommandLauncher, ForkLauncher
from gradwire.emu.planning.plan import TestbedPlan, host_address
from gradwire.emu.switches.backend_kind import TestbedError
from gradwire.emu.system.namespaces import CLONE_NEWNET
from gradwire.emu.system.processes import LIBC
from gradwire.emu.wire.header import Header
from gradwire.scenarios.wire import CONTROL_PORT, GRADWIRE_PORT


def many_connections(**case: Any) -> dict[str, Any]:
    """More messages than connections that may be opened ahead; `open`: most files that a receiver had open."""
    from gradwire.emu.transports import tcp

    tcp.OPEN_AHEAD = 8  # type: ignore[misc]

    def counted(plan: TestbedPlan, node: int, loop: Any, send: Any) -> tuple[Script, Contents]:
        script, contents = parts(plan, node, loop, send)
        arrived = contents.arrived

        def count(arrival: Any) -> None:
            contents.most = max(contents.most, len(os.listdir("/proc/self/fd")))
            arrived(arrival)

        contents.arrived = count  # type: ignore[method-assign]
        return script, contents

    files = hosts_around_a_switch(2, case["rate"])
    plan = plan_of(transport="tcp_newreno", **case)
    reports = Controller(plan, ForkLauncher(files.__getitem__, counted)).run()
    return summary(reports, error=None, open=max(each["most"] for each in reports.contents.values()))


def broken(how: str, wait_s: float = 1.5, victim: int = 2) -> dict[str, Any]:
    """A run in which something goes wrong, and what is said about it."""
    files = hosts_around_a_switch(3, 50 * MBPS)
    sends = [{"src": 0, "dst": 1, "nbytes": 400_000}, {"src": 2, "dst": 1, "nbytes": 400_000}]
    transport, made = "dlcp", parts
    if how == "nothing arrives":
        lossy(1, 1000)
    plan = plan_of(sends, hosts=3, rate=50 * MBPS, wait_s=wait_s, transport=transport)
    if how == "no such transport":
        object.__setattr__(plan.transports[0], "kind", "carrier_pigeon")
    if how in ("killed", "raises", "exits", "silent"):
        made = _breaking(how, victim)
    controller = Controller(plan, ForkLauncher(files.__getitem__, made))
    if how == "unreachable":
        run("ip", "link", "set", "s2p", "down")
    began, error = time.monotonic(), None
    try:
        controller.run()
    except TestbedError as failure:
        error = {"what": failure.what, "where": failure.where, "expected": failure.expected, "usage": failure.usage}
    took = time.monotonic() - began
    found = summary(controller.reports, error=error, took=took)
    found["left"] = children()
    return found


def _breaking(how: str, victim: int) -> Any:
    def made(plan: TestbedPlan, node: int, loop: Any, send: Any) -> tuple[Script, Contents]:
        script, contents = parts(plan, node, loop, send)
        if node == victim and how == "silent":
            time.sleep(1000)
        if node == victim:
            begin = script.start

            def start() -> None:
                begin()
                loop.at(20 * MS, fail)

            def fail() -> None:
                if how == "killed":
                    os.kill(os.getpid(), 9)
                if how == "exits":
                    print("something odd happened", file=sys.stderr, flush=True)
                    os._exit(7)
                raise ValueError("a mistake")

            script.start = start  # type: ignore[method-assign]
        return script, contents

    return made


def children() -> list[str]:
    """Processes of this namespace besides this one and its parent."""
    found = []
    for place in Path("/proc").iterdir():
        if place.name.isdigit() and int(place.name) not in (1, os.getpid()):
            try:
                words = (place / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
                state = (place / "stat").read_text().rsplit(")", 1)[1].split()[0]
            except OSError:
                continue
            if words and state != "Z":
                found.append(words)
    return found


def commanded(clock: bool = False, rate: int = 50 * MBPS) -> dict[str, Any]:
    """Two agents that are started by commands; with `clock`, one of them in a time namespace an hour ahead."""
    hosts_around_a_switch(2, rate)
    code = "from emu_agents_cases import parts; from gradwire.emu.agent.agent import main; main(parts)"

    def command(node: int) -> list[str]:
        words = ["nsenter", f"--net=/run/netns/h{node}"]
        if clock and node == 1:
            words += ["unshare", "--time", "--monotonic", "3600", "--fork", "--kill-child"]
        return [*words, sys.executable, "-c", code]

    sends = [{"src": 0, "dst": 1, "nbytes": 200_000}, {"src": 1, "dst": 0, "nbytes": 100_000, "at_ns": 5 * MS}]
    plan = plan_of(sends, rate=rate)
    controller = Controller(plan, CommandLauncher(command))
    try:
        reports, error = controller.run(), None
    except TestbedError as failure:
        reports, error = controller.reports, failure.what
    return summary(
        reports, error=error, offsets=dict(reports.offsets), round_trips=dict(reports.round_trips), left=children()
    )


def abandoned(launcher: str) -> dict[str, Any]:
    """A controller that is killed in the middle of a run: what is left of its agents soon after?"""
    hosts_around_a_switch(2, MBPS)
    code = (
        "import os, sys, emu_agents_cases as c\n"
        "from gradwire.emu.control.launchers import CommandLauncher\n"
        "files = {n: os.open(f'/run/netns/h{n}', os.O_RDONLY) for n in (0, 1)}\n"
        "plan = c.plan_of([{'src': 0, 'dst': 1, 'nbytes': 10_000_000}], rate=c.MBPS)\n"
        "agent = 'from emu_agents_cases import parts; from gradwire.emu.agent.agent import main; main(parts)'\n"
        "command = lambda n: ['nsenter', f'--net=/run/netns/h{n}', sys.executable, '-c', agent]\n"
        f"launcher = c.ForkLauncher(files.__getitem__, c.parts) if {launcher!r} == 'forked' else CommandLauncher(command)\n"
        "controller = c.Controller(plan, launcher)\n"
        "controller.prepare(); controller.start(); print('going', flush=True); controller.wait()\n"
    )
    made = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert made.stdout is not None and made.stdout.readline() == b"going\n"
    time.sleep(0.3)
    before = children()
    made.kill()
    made.wait()
    deadline = time.monotonic() + 10
    while children() and time.monotonic() < deadline:
        time.sleep(0.05)
    return {"before": len(before), "left": children()}


def interrupted() -> dict[str, Any]:
    """Ctrl-C in the middle of a run."""
    import _thread
    import threading

    files = hosts_around_a_switch(2, 10 * MBPS)
    sends = [{"src": 0, "dst": 1, "nbytes": 20_000}, {"src": 0, "dst": 1, "nbytes": 10_000_000, "at_ns": 30 * MS}]
    controller = Controller(plan_of(sends, rate=10 * MBPS), ForkLauncher(files.__getitem__, parts))
    timer = threading.Timer(1.0, _thread.interrupt_main)
    timer.start()
    raised = False
    try:
        controller.run()
    except KeyboardInterrupt:
        raised = True
    return summary(controller.reports, raised=raised, left=children())


def for_a_time(duration_ms: int, gap_ms: int, wait_s: float) -> dict[str, Any]:
    """A run that is cut by its duration; progress is noted."""
    files = hosts_around_a_switch(2, 10 * MBPS)
    sends = [{"src": 0, "dst": 1, "nbytes": 20_000, "at_ns": i * gap_ms * MS} for i in range(20)]
    plan = plan_of(sends, rate=10 * MBPS, duration_ps=duration_ms * 10**9, wait_s=wait_s)
    told: list[Any] = []

    class Observer(RunObserver):
        def progress(self, *numbers: int) -> None:
            told.append(numbers)

        def begin(self, time_ns: int) -> None:
            told.append(("begin", time_ns > time.monotonic_ns(), time_ns == controller.began_ns))

        def end_run(self) -> None:
            told.append(("over", len(controller.reports.punctuality)))

    controller = Controller(plan, ForkLauncher(files.__getitem__, parts), Observer())
    return summary(controller.run(), error=None, told=told, left=children())


def cut(transport: str, nbytes: int, duration_ms: int) -> dict[str, Any]:
    """A message that is cut by the run's duration."""
    files = hosts_around_a_switch(2, 10 * MBPS)
    plan = plan_of([{"src": 0, "dst": 1, "nbytes": nbytes}], transport, rate=10 * MBPS, duration_ps=duration_ms * 10**9)
    return summary(Controller(plan, ForkLauncher(files.__getitem__, parts)).run())


def paired(rate: int, latency_us: int, cases: list[dict[str, Any]], answer: str) -> int:
    """In a machine of virtual time: two hosts whose cable is netem's, one run after the other; into a file."""
    files = {}
    for host in (0, 1):
        run("ip", "netns", "add", f"h{host}")
    run("ip", "-n", "h0", "link", "add", "p0", "type", "veth", "peer", "name", "p0", "netns", "h1")
    for host in (0, 1):
        name = f"h{host}"
        run("ip", "-n", name, "link", "set", "p0", "gso_max_segs", "1", "mtu", "4148", "up")
        run("ip", "-n", name, "addr", "add", f"{host_address(host)}/8", "dev", "p0")
        cable = ["netem", "rate", f"{rate}bit", "delay", f"{latency_us}us", "limit", "100000"]
        run("tc", "-n", name, "qdisc", "add", "dev", "p0", "root", *cable)
        files[host] = os.open(f"/run/netns/{name}", os.O_RDONLY)
    found = []
    for case in cases:
        controller = Controller(
            plan_of(rate=rate, payload=4096, clock="virtual", **case), ForkLauncher(files.__getitem__, parts)
        )
        found.append(summary(controller.run()))
    Path(answer).write_text(json.dumps(found))
    return 0


def knocked(transport: str, **case: Any) -> dict[str, Any]:
    """A run while a stranger at a third host knocks at every port of the receiver, from before its beginning on."""
    files = hosts_around_a_switch(3, case["rate"])
    plan = plan_of(hosts=3, transport=transport, **case)
    stranger = os.fork()
    if stranger == 0:
        try:
            _knock(files[2], host_address(1))
        finally:
            os._exit(0)
    controller = Controller(plan, ForkLauncher(files.__getitem__, parts))
    try:
        return summary(controller.run(), error=None)
    finally:
        os.kill(stranger, signal.SIGKILL)
        os.waitpid(stranger, 0)


def _knock(namespace: int, address: str) -> None:
    """For ten seconds: words of other protocols, half a word, none, and datagrams."""
    assert LIBC.setns(namespace, CLONE_NEWNET) == 0
    datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    silent = []
    for _ in range(200):
        for data in (b"xy", Header(99, length=4).pack() + bytes(4), Header(0, length=1024).pack() + bytes(1024)):
            datagrams.sendto(data, (address, GRADWIRE_PORT))
        for port in (GRADWIRE_PORT, CONTROL_PORT):
            for words in (b"GET / HTTP/1.1\r\n\r\n", b"\xff", b""):
                with suppress(OSError):
                    link = socket.create_connection((address, port), 0.5)
                    link.sendall(words)
                    silent.append(link)
        time.sleep(0.05)
