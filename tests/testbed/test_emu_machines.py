"""Real machines: agents started by a command, or over ssh, in network namespaces that are the machines."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from emu_cases import in_private, needs

from gradwire.emu.control import machines
from gradwire.emu.switches.backend_kind import TestbedError
from gradwire.scenarios.errors import ScenarioError
from gradwire.scenarios.loading.load import build_scenario
from gradwire.scenarios.schema.emulation import RealHost

ROOT = Path(__file__).resolve().parents[2]
HOSTS = 3


def tables(hosts: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "name": "machines",
        "topology": {"kind": "star", "hosts": HOSTS},
        "link": {"rate": "1Gbps", "latency": "50us"},
        "host": {"software_latency": "100us"},
        "switch": {"ecn_threshold": "100KiB"},
        "traffic": [
            {"kind": "all_to_all", "name": "dlcp", "size": "200kB", "transport": {"kind": "dlcp", "payload": "1400B"}},
            {"kind": "all_to_all", "name": "tcp", "size": "200kB", "transport": {"kind": "cubic", "payload": "1400B"}},
        ],
        "emulation": {"hosts": hosts},
    }  # fmt: skip


def network() -> None:
    """Three machines and ours, 192.0.2.9, on one bridge."""
    lines = ["ip link add br0 type bridge", "ip link set br0 up", "ip addr add 192.0.2.9/24 dev br0"]
    for host in range(HOSTS):
        lines += [
            f"ip netns add m{host}",
            f"ip link add up{host} type veth peer name eth0 netns m{host}",
            f"ip link set up{host} master br0 up",
            f"ip -n m{host} addr add 192.0.2.{host + 1}/24 dev eth0",
            f"ip -n m{host} link set eth0 up",
            f"ip -n m{host} link set lo up",
        ]
    subprocess.run(["sh", "-ec", "\n".join(lines)], check=True, timeout=30)


def run(hosts: list[dict[str, Any]]) -> dict[str, Any]:
    from gradwire.studies.connect import emulate

    result = emulate(build_scenario(tables(hosts), "test"))
    rows = result.messages.to_pylist()
    return {"rows": rows, "engine": result.summary["engine"], "ports": result.ports.num_rows}


def by_command() -> dict[str, Any]:
    network()
    nsenter = shutil.which("nsenter") or "nsenter"
    return run([
        {"name": f"h{host}", "address": f"192.0.2.{host + 1}",
         "command": [nsenter, f"--net=/run/netns/m{host}", sys.executable, "-m", "gradwire.emu.agent"]}
        for host in range(HOSTS)
    ])  # fmt: skip


def by_ssh(folder: str) -> dict[str, Any]:
    """A real sshd in every machine, with keys that exist for this test only."""
    network()
    place = Path(folder)
    for key in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(place / key)], check=True, timeout=30)
    os.makedirs("/run/sshd", exist_ok=True)
    shutil.copy(place / "user.pub", place / "authorized")
    servers = []
    for host in range(HOSTS):
        config = place / f"sshd{host}"
        config.write_text(
            f"ListenAddress 192.0.2.{host + 1}:2222\nHostKey {place}/host\nAuthorizedKeysFile {place}/authorized\n"
            f"PidFile none\nStrictModes no\nUsePAM no\nPermitRootLogin prohibit-password\n"
        )
        command = [
            "ip",
            "netns",
            "exec",
            f"m{host}",
            shutil.which("sshd") or "/usr/sbin/sshd",
            "-D",
            "-e",
            "-f",
            str(config),
        ]
        servers.append(subprocess.Popen(command, stderr=subprocess.DEVNULL))
    ssh = ["ssh", "-i", f"{place}/user", "-p", "2222", "-o", "StrictHostKeyChecking=no", "-o", "BatchMode=yes",
           "-o", f"UserKnownHostsFile={place}/known", "-o", "LogLevel=ERROR"]  # fmt: skip
    try:
        deadline = time.monotonic() + 20
        for host in range(HOSTS):
            while subprocess.run([*ssh, f"root@192.0.2.{host + 1}", "true"], timeout=20).returncode:
                assert time.monotonic() < deadline, "sshd does not answer"
                time.sleep(0.1)
        there = f"cd {ROOT}; exec {sys.executable} -m gradwire.emu.agent"
        return run([
            {"name": f"h{host}", "address": f"192.0.2.{host + 1}", "command": [*ssh, f"root@192.0.2.{host + 1}", there]}
            for host in range(HOSTS)
        ])  # fmt: skip
    finally:
        for server in servers:
            server.terminate()
            server.wait(timeout=10)


def check(found: dict[str, Any]) -> None:
    rows = found["rows"]
    assert len(rows) == 2 * HOSTS * (HOSTS - 1)
    assert all(row["received_bytes"] == row["bytes"] == 200_000 and row["end_ps"] > row["start_ps"] for row in rows)
    assert all(row["sent_packets"] >= row["packets"] for row in rows if row["job"] == "dlcp")
    assert found["ports"] == 0
    assert any("real machines" in line for line in found["engine"]["substitutions"])


@needs("namespaces", "tool:nsenter")
def test_agents_started_by_command_run_the_scenario():
    check(in_private(by_command))


@needs("namespaces", "tool:sshd", "tool:ssh", "tool:ssh-keygen")
def test_agents_started_over_ssh_run_the_scenario(tmp_path):
    check(in_private(by_ssh, str(tmp_path), seconds=120))


def host(name: str, **more: Any) -> RealHost:
    return RealHost.model_validate({"name": name, "address": "192.0.2.1", "ssh": "user@node0", **more})


def test_ssh_command_is_non_interactive_and_starts_the_agent():
    command = machines.command_of(host("h0", python="/opt/gradwire/bin/python"))
    assert command[0] == "ssh" and "BatchMode=yes" in command and command[-2] == "user@node0"
    assert command[-1].endswith("exec /opt/gradwire/bin/python -m gradwire.emu.agent")


def test_hosts_and_machines_must_match():
    from gradwire.emu.planning.planner import make_plan
    from gradwire.workload.resolve import resolve

    scenario = build_scenario(tables([]), "test")
    plan = make_plan(scenario, resolve(scenario), clock="wall", switch="none")
    with pytest.raises(TestbedError, match=r"no machine for h1, h2"):
        machines.plan_for(plan, [host("h0")])
    with pytest.raises(TestbedError, match=r"no such host: 'h9'"):
        machines.plan_for(plan, [host("h9")])


@pytest.mark.parametrize(
    ("hosts", "words"),
    [
        ([{"name": "h0", "address": "node0", "ssh": "a"}], "is not an IPv4 address"),
        ([{"name": "h0", "address": "192.0.2.1"}], "are both missing"),
        ([{"name": "h0", "address": "192.0.2.1", "ssh": "a", "command": ["b"]}], "ssh: and command are both set"),
        ([{"name": "h0", "address": f"192.0.2.{n}", "ssh": "a"} for n in (1, 2)], "hosts: repeat a name"),
    ],
)
def test_invalid_machines_are_rejected(hosts, words):
    with pytest.raises(ScenarioError, match=words):
        build_scenario(tables(hosts), "test")
