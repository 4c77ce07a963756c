"""For tests of agents: plans written by hand, a stand-in for the script, and two or more hosts in network namespaces.

What needs namespaces runs in a process of its own, inside `unshare`, so that nothing is left behind: `inside(function,
**arguments)` runs a function of this module there and returns what it returns (plain data).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import traceback
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gradwire.emu.agent.base import MessageRow
from gradwire.emu.control.controller import Controller
from gradwire.emu.control.launchers import ForkLauncher
from gradwire.emu.planning.plan import Port, Queues, TestbedPlan, TransportPlan, host_address
from gradwire.emu.switches.backend_kind import TestbedError
from gradwire.emu.transports.simulator_rules import transport_class
from gradwire.scenarios.loading.registry import component
from gradwire.scenarios.wire import TCP_OVERHEAD, UDP_OVERHEAD
from gradwire.workload.program import MessageColumns, Messages, Program

ROOT = Path(__file__).resolve().parents[2]
UNSHARE = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
MBPS = 10**6
MS = 10**6


def needs_namespaces() -> None:
    """Skip where namespaces cannot be made."""
    if os.geteuid() != 0:
        pytest.skip("needs root for network namespaces")
    for tool in ("unshare", "ip", "tc", "nft"):
        if not any((Path(place) / tool).exists() for place in ("/usr/sbin", "/usr/bin", "/sbin", "/bin")):
            pytest.skip(f"needs {tool}")
    if subprocess.run([*UNSHARE, "true"], capture_output=True).returncode:
        pytest.skip("this kernel does not let us make namespaces")


def plan_of(
    sends: list[dict[str, Any]],
    transport: str = "dlcp",
    hosts: int = 2,
    rate: int = 100 * MBPS,
    payload: int = 1024,
    wait_s: float = 10.0,
    settings: dict[str, Any] | None = None,
    connections: str = "fresh",
    **more: Any,
) -> TestbedPlan:
    """Messages (src, dst, nbytes, and at_ns, bound, priority, important, turn) around one switch, the last node."""
    columns = {
        name: np.array([s.get(name, 0) for s in sends], dtype=np.int64) for name in ("src", "dst", "nbytes", "priority")
    }
    zeros = np.zeros(len(sends), dtype=np.int64)
    messages = Messages(
        table=zeros, kind=zeros, iteration=zeros, tensor=zeros, layer=zeros, part=zeros, src=columns["src"], dst=columns["dst"],
        nbytes=columns["nbytes"], priority=columns["priority"], bound=np.array([s.get("bound", 0.0) for s in sends]),
        rank=zeros, captured=zeros - 1, first=zeros, important=[_tags(s.get("important")) for s in sends],
        turn=np.array([s.get("turn", 0) for s in sends]),
    )  # fmt: skip
    nothing = np.zeros(len(sends) + 1, dtype=np.int64), np.zeros(0, dtype=np.int64)
    program = Program(
        (MessageColumns("t", 0, "fifo", 0, False, 4),),
        messages,
        zeros + 1,
        columns["dst"],
        nothing,
        nothing,
        zeros - 1,
        zeros,
        (),
    )
    ports = []
    for host in range(hosts):
        ports += [
            Port(2 * host, host, hosts, rate, 10_000_000, 0.0, f"h{host}->s0"),
            Port(2 * host + 1, hosts, host, rate, 10_000_000, 0.0, f"s0->h{host}"),
        ]
    udp = transport in ("dlcp", "constant_rate")
    defaults = transport_class(transport).defaults() if udp else {}
    parameters = {**defaults, "connections": connections, **(settings or {})}
    known = component("transport", transport)
    carried = TransportPlan(
        transport, payload, UDP_OVERHEAD if udp else TCP_OVERHEAD, "udp" if udp else "tcp", parameters,
        congestion=known.congestion() if known else "",
    )  # fmt: skip
    options = {"at_ns": [s.get("at_ns", 0) for s in sends], **more.pop("options", {})}
    return TestbedPlan(
        "case", 1, (*(f"h{i}" for i in range(hosts)), "s0"), hosts, tuple(ports), {(hosts, i): (2 * i + 1,) for i in range(hosts)},
        Queues(8, 1 << 20, None, False), "ecmp", (carried,), 0, program, wait_s=wait_s, options=options,
        **more,
    )  # fmt: skip


def _tags(value: Any) -> Any:
    return np.array(value, dtype=bool) if isinstance(value, list) else value


@dataclass
class _Part:
    rows: dict[int, MessageRow]


class Script:
    """Stands in for `gradwire.emu.agent.script.Script`: messages go at given times."""

    def __init__(self, plan: TestbedPlan, node: int, loop: Any, send: Any) -> None:
        self.node, self.loop, self.send, self.at = node, loop, send, plan.options["at_ns"]
        m = plan.program.messages
        rows = {
            i: MessageRow(
                i, 0, int(m.src[i]), int(m.dst[i]), int(m.nbytes[i]), int(m.priority[i]), float(m.bound[i]),
                True if m.important[i] is None else m.important[i], 0, turn=int(m.turn[i]),
            )
            for i in range(len(m)) if node in (m.src[i], m.dst[i])
        }  # fmt: skip
        self.part = _Part(rows)
        self.starts: dict[int, int] = {}
        self.iterations: list[Any] = []
        self._open = {i for i, row in rows.items()}
        self.workers_done = True

    @property
    def done(self) -> bool:
        return not self._open

    def start(self) -> None:
        for i, row in self.part.rows.items():
            if row.src == self.node:
                self.loop.at(self.at[i], lambda i=i: self._go(i))

    def _go(self, message: int) -> None:
        self.starts[message] = self.loop.now()
        self.send(message)

    def delivered(self, message: int) -> None:
        self._open.remove(message)

    def message_finished(self, message: int) -> None:
        self._open.remove(message)

    def waiting(self) -> list[str]:
        return []


def content_of(message: int, nbytes: int) -> np.ndarray:
    """Bytes of a message, none of them zero."""
    return ((np.arange(nbytes, dtype=np.uint32) * 2654435761 + message * 97 >> 7) % 255 + 1).astype(np.uint8)


class Contents:
    """Stands in for real contents: patterns, compared when they arrive."""

    def __init__(self, rows: dict[int, MessageRow], payload: int) -> None:
        self.rows, self.payload = rows, payload
        self.right = {m: content_of(m, row.nbytes) for m, row in rows.items()}  # takes time, so beforehand
        self.buffers: dict[int, np.ndarray] = {}
        self.wrong: list[int] = []
        self.most = 0

    def outgoing(self, message: int) -> memoryview:
        return memoryview(self.right[message])

    def incoming(self, message: int) -> memoryview:
        self.buffers[message] = np.zeros(self.rows[message].nbytes, dtype=np.uint8)
        return memoryview(self.buffers[message])

    def arrived(self, arrival: Any) -> None:
        row = self.rows[arrival.message]
        right = self.right[arrival.message]
        if arrival.have is not None:
            right = right * np.repeat(arrival.have, self.payload)[: row.nbytes]
        if not np.array_equal(right, self.buffers[arrival.message]) or row.nbytes - arrival.received != arrival.lost:
            self.wrong.append(arrival.message)

    def message_finished(self, message: int) -> None:
        pass

    def prepare_next(self, most: int) -> bool:
        return False

    @property
    def sums(self) -> dict[str, Any]:
        return {"most": self.most, "wrong": self.wrong, "crc": {m: zlib.crc32(b) for m, b in self.buffers.items()}}


def parts(plan: TestbedPlan, node: int, loop: Any, send: Any) -> tuple[Script, Contents]:
    """What an agent plays and carries."""
    script = Script(plan, node, loop, send)
    return script, Contents(script.part.rows, plan.transports[0].payload)


# --- inside


def run(*words: str, data: str | None = None) -> str:
    """A command that has to succeed."""
    done = subprocess.run(words, input=data, capture_output=True, text=True, timeout=20)
    assert done.returncode == 0, f"{' '.join(words)}: {done.stderr}"
    return done.stdout


def hosts_around_a_switch(hosts: int, rate: int = 0, limit: int = 1 << 20) -> dict[int, int]:
    """Namespaces h0, h1, ... behind a bridge; with a rate, every port there has it, in both directions. Returns file
    descriptors of the namespaces."""
    run("mount", "-t", "tmpfs", "tmpfs", "/run")
    run("ip", "link", "set", "lo", "up")
    run("ip", "link", "add", "s0", "type", "bridge")
    run("ip", "link", "set", "s0", "up")
    found = {}
    for host in range(hosts):
        name = f"h{host}"
        run("ip", "netns", "add", name)
        run("ip", "link", "add", f"s{host}p", "type", "veth", "peer", "name", "p0", "netns", name)
        run("ip", "link", "set", f"s{host}p", "master", "s0", "gso_max_segs", "1", "up")
        run("ip", "-n", name, "link", "set", "p0", "gso_max_segs", "1", "up")
        run("ip", "-n", name, "link", "set", "lo", "up")
        run("ip", "-n", name, "addr", "add", f"{host_address(host)}/8", "dev", "p0")
        run("ip", "netns", "exec", name, "sysctl", "-qw", "net.ipv4.tcp_ecn=1")
        if rate:
            shape = ["root", "tbf", "rate", f"{rate}bit", "burst", "3028", "limit", str(limit)]
            run("tc", "qdisc", "add", "dev", f"s{host}p", *shape)
            run("tc", "-n", name, "qdisc", "add", "dev", "p0", *shape)
        found[host] = os.open(f"/run/netns/{name}", os.O_RDONLY)
    return found


def lossy(host: int, share: int, port: int = 7117) -> None:
    """Of a thousand datagrams that come to a port of a host, so many are lost; they are counted."""
    drawn = f"numgen random mod 1000 < {share}" if share < 1000 else ""
    rules = f"""table ip t {{ chain c {{ type filter hook input priority 0;
        udp dport {port} {drawn} counter drop
    }}
    }}"""
    run("ip", "netns", "exec", f"h{host}", "nft", "-f", "-", data=rules)


def lost_at(host: int) -> int:
    """How many were."""
    words = run("ip", "netns", "exec", f"h{host}", "nft", "list", "table", "ip", "t").split()
    return int(words[words.index("packets") + 1])


def marking(host: int, every: int) -> None:
    """Every n-th ECN-capable datagram that leaves a host is marked."""
    rules = f"""table ip m {{ chain c {{ type filter hook postrouting priority 0;
        udp dport 7117 ip ecn ect0 numgen inc mod {every} 0 counter ip ecn set ce
    }}
    }}"""
    run("ip", "netns", "exec", f"h{host}", "nft", "-f", "-", data=rules)


def capture(host: int, path: str) -> subprocess.Popen[bytes]:
    """Begin to capture everything at a host's device."""
    made = subprocess.Popen(
        # a short snapshot: in immediate mode each takes a slot of that size, and 64 of the usual ones are the buffer
        [
            "ip",
            "netns",
            "exec",
            f"h{host}",
            "tcpdump",
            "-i",
            "p0",
            "-w",
            path,
            "-U",
            "-s",
            "2048",
            "-B",
            "16384",
            "--immediate-mode",
        ],
        stderr=subprocess.PIPE,
    )
    assert made.stderr is not None
    made.stderr.readline()
    time.sleep(0.3)
    return made


def end_capture(made: subprocess.Popen[bytes]) -> None:
    """End it, with everything written."""
    time.sleep(0.3)
    made.terminate()
    assert made.stderr is not None
    words = made.stderr.read().decode()
    made.wait(10)
    assert "\n0 packets dropped by kernel" in words, words


def summary(reports: Any, **more: Any) -> dict[str, Any]:
    """What a test wants to see of Reports, as plain data."""
    names = ("start_ns", "end_ns", "received", "lost", "sent_packets", "retransmitted", "marked")
    found: dict[str, Any] = {name: getattr(reports, name).tolist() for name in names}
    found["have"] = {m: [int(i) for i in np.flatnonzero(~have)] for m, have in reports.have.items()}
    found["wrong"] = sorted(m for each in reports.contents.values() if each for m in each["wrong"])
    found["problems"], found["ended_by"], found["over_ns"] = reports.problems, reports.ended_by, reports.over_ns
    found["punctuality"] = dict(reports.punctuality)
    return found | more


def play(
    hosts: int = 2,
    rate: int = 0,
    loss: int = 0,
    mark: int = 0,
    pcap: str = "",
    pcap_at: int = 1,
    limit: int = 1 << 20,
    **case: Any,
) -> dict[str, Any]:
    """A run of a plan in namespaces."""
    files = hosts_around_a_switch(hosts, rate, limit)
    if loss:
        for host in range(hosts):
            lossy(host, loss)
    if mark:
        for host in range(hosts):
            marking(host, mark)
    plan = plan_of(hosts=hosts, rate=rate or 1000 * MBPS, **case)
    tcpdump = capture(pcap_at, pcap) if pcap else None
    controller = Controller(plan, ForkLauncher(files.__getitem__, parts))
    try:
        reports = controller.run()
        error = None
    except TestbedError as failure:
        reports, error = controller.reports, f"{failure.what} ({failure.where})"
    if tcpdump is not None:
        end_capture(tcpdump)
    return summary(reports, error=error, nft_lost=[lost_at(host) for host in range(hosts)] if loss else [])


def inside(function: str, _timeout: float = 60, **arguments: Any) -> Any:
    """Run a function of this module, or of `emu_agents_trouble`, in namespaces of its own."""
    words = [*UNSHARE, sys.executable, __file__, function, json.dumps(arguments)]
    done = subprocess.run(
        words,
        capture_output=True,
        text=True,
        timeout=_timeout,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT}/tests/support"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


if __name__ == "__main__":
    import emu_agents_cases  # under their own names, for pickles
    import emu_agents_trouble

    try:
        found = next(m for m in (emu_agents_cases, emu_agents_trouble) if hasattr(m, sys.argv[1]))
        answer = getattr(found, sys.argv[1])(**json.loads(sys.argv[2]))
    except BaseException:
        traceback.print_exc()
        sys.exit(1)
    print(json.dumps(answer, default=int))
