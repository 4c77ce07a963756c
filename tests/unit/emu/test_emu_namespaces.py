"""Private namespaces: nothing is left whatever ends the launcher, nobody is disturbed, and what goes wrong is said."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import emu_cases as cases
import pytest
from emu_cases import ECT0, in_private, needs, star

from gradwire.emu.switches.backend_kind import TestbedError
from gradwire.emu.switches.linux_network.bpf_switch import BpfSwitch
from gradwire.emu.system.namespaces import (
    Namespaces,
    batch,
    find_tool,
    inside,
    private_command,
    query_json,
    run_tool,
    start_private,
)

pytestmark = needs("namespaces")

LAUNCHER = """
import subprocess, sys
from gradwire.emu.system.namespaces import start_private
process = start_private([sys.executable, "-c", INSIDE], stdout=subprocess.PIPE, text=True)
print(process.stdout.readline().strip(), flush=True)
process.wait()
"""
INSIDE = """
import os, subprocess, sys, time
from gradwire.emu.system.namespaces import Namespaces, set_up_private
set_up_private()
spaces = Namespaces()
spaces.make(["a", "b"])
subprocess.Popen(["sleep", "1000"], start_new_session=True)  # a grandchild that nobody waits for
print(os.stat("/proc/self/ns/net").st_ino, *(os.fstat(spaces[name]).st_ino for name in "ab"),
      os.stat("/proc/self/ns/mnt").st_ino, flush=True)
time.sleep(1000)
"""


def namespaces_in_use() -> set[int]:
    """Of all processes of this machine: network and mount namespaces, and those that files of them hold."""
    found = set()
    for path in Path("/proc").glob("[0-9]*"):
        for place in [path / "ns/net", path / "ns/mnt", *_open_files(path)]:
            try:
                target = os.readlink(place)
            except OSError:
                continue
            if target.startswith(("net:[", "mnt:[")):
                found.add(int(target[5:-1]))
    return found


def _open_files(process: Path) -> list[Path]:
    try:
        return list((process / "fd").iterdir())
    except OSError:
        return []


def wait_until(condition: Callable[[], bool], seconds: float = 10.0) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.05)
    return condition()


def launch() -> tuple[subprocess.Popen[str], set[int]]:
    process = subprocess.Popen(
        [sys.executable, "-c", f"INSIDE = {INSIDE!r}\n{LAUNCHER}"],
        stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": str(cases.ROOT)},
    )  # fmt: skip
    assert process.stdout is not None
    return process, {int(word) for word in process.stdout.readline().split()}


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_killed_launcher_leaves_no_namespaces(how: signal.Signals) -> None:
    """No process or open file holds the namespaces afterwards, so Linux removes them and their mounts."""
    process, made = launch()
    assert len(made) == 4 and wait_until(lambda: len(made & namespaces_in_use()) >= 2)
    assert made.isdisjoint({os.stat("/proc/self/ns/net").st_ino, os.stat("/proc/self/ns/mnt").st_ino})
    process.send_signal(how)
    process.wait(timeout=10)
    assert wait_until(lambda: not made & namespaces_in_use()), made & namespaces_in_use()


def test_private_namespaces_are_invisible_to_the_host_machine() -> None:
    def seen() -> tuple[str, str, str]:
        return (run_tool(["ip", "netns", "list"]), run_tool(["ip", "-br", "link"]), Path("/proc/mounts").read_text())

    before = seen()
    process, _ = launch()
    try:
        assert seen() == before
    finally:
        process.kill()
        process.wait()


def talk(plan: cases.Plan, rounds: int) -> list[int]:
    """Packets that arrive, in a testbed whose names and addresses are those of every other one."""
    network = BpfSwitch(plan, wired=False)
    network.build()
    sender, receiver = cases.open_udp(network, 0), cases.Receiver(cases.open_udp(network, 1))
    for number in range(rounds):
        cases.send_from(sender, 1, 1, ECT0, cases.packet(plan.seed, number, 200))
        time.sleep(0.001)
    receiver.take_until_quiet()
    assert network.counts()[3].packets == rounds
    return [message for message, _ in receiver.numbers]


@needs("bpf")
def test_concurrent_testbeds_receive_only_their_own_packets() -> None:
    from concurrent.futures import ThreadPoolExecutor

    plans = [star(2, seed=seed) for seed in (1, 2)]
    with ThreadPoolExecutor(2) as both:
        for plan, came in zip(plans, both.map(lambda plan: in_private(talk, plan, 400), plans), strict=True):
            assert came == [plan.seed] * 400


def answers() -> dict[str, object]:
    spaces = Namespaces()
    spaces.make(["a", "b"])
    batch("ip", "a", ["link add name x type veth peer name y netns b"])
    links = {
        name: {link["ifname"] for link in query_json("ip", name, ["link show", "address show"])[0]} for name in "ab"
    }
    own = os.stat("/proc/self/ns/net").st_ino
    with inside(spaces["a"]):
        there = os.stat("/proc/thread-self/ns/net").st_ino
    back = os.stat("/proc/thread-self/ns/net").st_ino
    spaces.set_sysctls("a", {"net/ipv4/ip_forward": "1"})
    errors = []
    for wrong in (
        lambda: batch("ip", "a", ["link show", "link set nobody up"]),
        lambda: spaces.set_sysctls("a", {"net/ipv4/no_such": "1"}),
        lambda: spaces.make(["a"]),
        lambda: run_tool(["sleep", "5"], seconds=0.2),
        lambda: run_tool(["no-such-command"]),
    ):
        try:
            wrong()
        except TestbedError as error:
            errors.append(error.what)
    spaces.set_sysctls("a", {"net/ipv4/no_such": "1"}, ["net/ipv4/no_such"])
    spaces.close()
    return {
        "links": links, "moved": own != there and own == back, "errors": errors, "left": run_tool(["ip", "netns", "list"]),
        "pid": os.getpid(),
    }  # fmt: skip


def test_namespaces_isolate_devices_and_sysctls_and_report_errors() -> None:
    got = in_private(answers)
    assert "x" in got["links"]["a"] and "y" in got["links"]["b"] and got["moved"]
    nobody, sysctl, exists, slow, missing = got["errors"]
    assert 'at "link set nobody up"' in nobody and "nobody" in nobody
    assert "no_such" in sysctl and "exists" in exists and "took longer than 0.2 s" in slow
    assert "command not found: no-such-command" in missing
    assert got["left"] == "" and got["pid"] < 10, "process 1 or a child of it"


def test_find_tool_searches_beyond_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert find_tool("tc") is not None and find_tool("no-such-command") is None
    assert Path(private_command(["true"])[0]).name == "unshare"


def test_unprivileged_users_get_a_user_namespace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert private_command(["true"])[1:3] == ["--user", "--map-root-user"]


def test_private_process_is_pid_1_and_sees_no_other_processes() -> None:
    process = start_private(["sh", "-c", "echo $$; ls /proc | grep -c '^[0-9]'"], stdout=subprocess.PIPE, text=True)
    pid, others = process.communicate(timeout=20)[0].split()
    assert pid == "1" and int(others) <= 4, "it sees itself only"
