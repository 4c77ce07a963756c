"""What tests of the testbed share: when they can run, plans to run, and a place to run them in.

`in_private(function, ...)` calls a function of a test module in fresh private namespaces, in a process of its own, and
returns what it returns. Sockets are made inside a host's namespace and stay there, so that one thread can send from all
hosts and receive at all of them.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import pickle
import select
import socket
import struct
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest

from gradwire.emu.planning.plan import Port, Queues, TestbedPlan, TransportPlan, host_address
from gradwire.emu.system.namespaces import (
    CLONE_NEWNET,
    find_tool,
    inside,
    private_command,
    set_up_private,
    start_private,
)
from gradwire.emu.virtual_time.kernel_build import find_kernel
from gradwire.emu.virtual_time.virtual_machine import PREFIX, run_inside
from gradwire.scenarios.cache import cache_folder
from gradwire.workload.program import Program

ROOT = Path(__file__).resolve().parents[2]
PORT = 7117
MARK, ECT0, NOT_ECT = 3, 2, 0
CLONE_NEWNS = 0x20000


def why_not(what: str) -> str | None:
    """Why this machine cannot run a test that needs `what`: "root", "tool:NAME", "bpf", "qdisc:NAME", "tun", "uml";
    None if it can."""
    kind, _, name = what.partition(":")
    if kind == "root":
        return None if os.geteuid() == 0 else "needs root (the testbed's network namespaces)"
    if kind == "tool":
        return None if find_tool(name) else f"needs the command {name}"
    if kind == "tun":
        return None if os.path.exists("/dev/net/tun") else "needs /dev/net/tun"
    if kind == "namespaces":
        for needed in ("root", "tool:unshare", "tool:ip", "tool:tc"):
            if reason := why_not(needed):
                return reason
        try:
            done = subprocess.run(private_command(["true"]), capture_output=True, text=True, timeout=20)
        except subprocess.TimeoutExpired:
            return "needs namespaces (unshare does not answer)"
        return None if done.returncode == 0 else f"needs namespaces ({done.stderr.strip()})"
    if kind == "uml":
        return None if find_kernel() else "needs the kernel for virtual time (make uml)"
    if kind == "bpf":
        return why_not("namespaces") or why_not("tool:clang")
    if kind == "qdisc":
        return why_not("namespaces") or _qdisc_missing(name)
    raise ValueError(what)


QDISCS = {"red": "red limit 60000 min 5000 max 5000 avpkt 1000 burst 5", "netem": "netem delay 1ms", "prio": "prio"}


def _qdisc_missing(name: str) -> str | None:
    script = f"ip link add name q type dummy || ip link add name q type veth peer name r; tc qdisc add dev q root {QDISCS.get(name, name)}"
    done = subprocess.run(private_command(["sh", "-c", script]), capture_output=True, text=True, timeout=20)
    return None if done.returncode == 0 else f"needs the queueing discipline {name}: {done.stderr.strip()}"


_reasons: dict[str, str | None] = {}


def needs(*what: str) -> pytest.MarkDecorator:
    """A mark that skips a test, with the reason, where something is missing."""
    for each in what:
        if each not in _reasons:
            _reasons[each] = why_not(each)
    reasons = [reason for each in what if (reason := _reasons[each])]
    return pytest.mark.skipif(bool(reasons), reason="; ".join(reasons))


# a place to run


def in_private(function: Callable[..., Any], *arguments: Any, seconds: float = 60.0, **options: Any) -> Any:
    """What `function(*arguments, **options)` returns in private namespaces. It must be at the top of its module."""
    with tempfile.TemporaryDirectory() as folder:
        task, answer = Path(folder, "task"), Path(folder, "answer")
        task.write_bytes(pickle.dumps((function.__module__, function.__qualname__, arguments, options)))
        process = start_private(
            [sys.executable, str(Path(__file__)), str(task), str(answer)],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            errors = process.communicate(timeout=seconds)[1]
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise AssertionError(f"{function.__name__} did not end within {seconds:g} s") from None
        if process.returncode != 0 or not answer.exists():
            raise AssertionError(f"{function.__name__} failed inside: {errors[-3000:]}")
        return pickle.loads(answer.read_bytes())


Task = tuple[Callable[..., Any], tuple[Any, ...]]
"""A function at the top of its module, and its arguments."""


@dataclass(frozen=True)
class TaskResult:
    """What a task has returned, or why it has not."""

    value: Any
    failure: str = ""

    def get(self) -> Any:
        """Return the value. Raises AssertionError for a task that has failed."""
        if self.failure:
            raise AssertionError(self.failure)
        return self.value


def in_virtual_each(tasks: Sequence[Task], seconds: float = 100.0) -> list[TaskResult]:
    """Run tasks one after the other in one virtual machine, which takes seconds to start. Each has a process, a network and
    a /run of its own."""
    with tempfile.TemporaryDirectory() as folder:
        listed, answer = Path(folder, "tasks"), Path(folder, "answer")
        listed.write_bytes(pickle.dumps([(task.__module__, task.__qualname__, arguments) for task, arguments in tasks]))
        said: list[str] = []
        command = f"{sys.executable} {__file__} {listed} {answer} virtual 2>&1 | sed 's/^/{PREFIX}/'"
        run_inside(
            ["/bin/sh", "-c", command], seed=1, limit_s=seconds, on_line=said.append,
            environment={"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "GRADWIRE_CACHE": str(cache_folder())},
        )  # fmt: skip
        return [_task_result(Path(f"{answer}.{number}"), task, said) for number, (task, _) in enumerate(tasks)]


def _task_result(answer: Path, task: Callable[..., Any], said: list[str]) -> TaskResult:
    if not answer.exists():
        return TaskResult(None, f"{task.__name__} failed inside: {' | '.join(said[-20:])}")
    return TaskResult(pickle.loads(answer.read_bytes()))


def _inside_main(task: Path, answer: Path) -> None:
    set_up_private()
    _run_task(*pickle.loads(task.read_bytes()), answer=answer)


def _inside_virtual_main(listed: Path, answer: Path) -> None:
    """Run each task in a process in private namespaces, where nothing of an earlier one is left."""
    set_up_private(private=False)
    for number, (module, name, arguments) in enumerate(pickle.loads(listed.read_bytes())):
        child = os.fork()
        if child:
            os.waitpid(child, 0)
            continue
        try:
            if ctypes.CDLL(None).unshare(CLONE_NEWNS | CLONE_NEWNET) != 0:
                raise OSError("unshare has failed")
            set_up_private()
            _run_task(module, name, arguments, {}, answer=Path(f"{answer}.{number}"))
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)


def _run_task(module: str, name: str, arguments: tuple[Any, ...], options: dict[str, Any], *, answer: Path) -> None:
    ctypes.CDLL(None).prctl(29, 1)  # PR_SET_TIMERSLACK: sleeps end when they should, not up to 50 us later
    result = getattr(importlib.import_module(module), name)(*arguments, **options)
    answer.write_bytes(pickle.dumps(result))


# plans


def make_plan(
    hosts: int,
    switches: int,
    cables: Iterable[tuple[int, int]],
    *,
    rate: int | Mapping[tuple[int, int], int] = 20_000_000,
    latency_ps: int = 0,
    loss: Mapping[tuple[int, int], float] | None = None,
    queues: Queues | None = None,
    **options: Any,
) -> TestbedPlan:
    """A plan without a program. Nodes are numbers, hosts first; `rate` and `loss` may be given per (src, dst)."""
    names = tuple(f"h{i}" for i in range(hosts)) + tuple(f"s{i}" for i in range(switches))
    ports: list[Port] = []
    for a, b in cables:
        for src, dst in ((a, b), (b, a)):
            speed = rate if isinstance(rate, int) else rate[src, dst]
            name = f"{names[src]}->{names[dst]}"
            ports.append(Port(len(ports), src, dst, speed, latency_ps, (loss or {}).get((src, dst), 0.0), name))
    routes = {}
    for host in range(hosts):
        far = _distances(ports, len(names), host)
        for node in range(hosts, len(names)):
            routes[node, host] = tuple(p.number for p in ports if p.src == node and far[p.dst] == far[node] - 1)
    values: dict[str, Any] = {
        "name": "test", "seed": 1, "names": names, "host_count": hosts, "ports": tuple(ports), "routes": routes,
        "queues": queues or Queues(8, 64_000, None, False), "balancing": "ecmp",
        "transports": (TransportPlan("constant_rate", 1400, 58, "udp", {}),), "software_latency_ps": 0,
        "program": cast(Program, None),
    }  # fmt: skip
    return TestbedPlan(**(values | options))


def _distances(ports: Sequence[Port], count: int, goal: int) -> list[int]:
    far = [count + 1] * count
    far[goal] = 0
    todo = deque([goal])
    while todo:
        node = todo.popleft()
        for port in ports:
            if port.dst == node and far[port.src] > far[node] + 1:
                far[port.src] = far[node] + 1
                todo.append(port.src)
    return far


def star(hosts: int, **options: Any) -> TestbedPlan:
    """Hosts around one switch, which is node `hosts`."""
    return make_plan(hosts, 1, [(host, hosts) for host in range(hosts)], **options)


# traffic


def open_udp(network: Any, host: int, port: int = PORT) -> socket.socket:
    """A socket in a host's namespace that tells the ToS of what it receives."""
    with inside(network.namespace(host)):
        opened = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    opened.setsockopt(socket.IPPROTO_IP, socket.IP_RECVTOS, 1)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUFFORCE if hasattr(socket, "SO_RCVBUFFORCE") else 33, 64 << 20)
    opened.setsockopt(socket.SOL_SOCKET, 32, 64 << 20)  # SO_SNDBUFFORCE
    opened.bind((host_address(host), port))
    opened.setblocking(False)
    return opened


def tos(priority: int, ecn: int) -> int:
    return (7 - priority) << 5 | ecn


def packet(message: int, number: int, frame: int) -> bytes:
    """A gradwire packet of so many bytes on the link."""
    return struct.pack(">IIHIH", message, 0, frame - 58, number, 8) + bytes(frame - 58)


def send_from(opened: socket.socket, host: int, priority: int, ecn: int, data: bytes, port: int = PORT) -> None:
    ancillary = [(socket.IPPROTO_IP, socket.IP_TOS, struct.pack("i", tos(priority, ecn)))]
    opened.sendmsg([data], ancillary, 0, (host_address(host), port))


class Receiver:
    """Counts what comes in at a socket, by (ToS without ECN >> 5, ECN)."""

    def __init__(self, opened: socket.socket) -> None:
        self.opened = opened
        self.counts: Counter[tuple[int, int]] = Counter()
        self.numbers: list[tuple[int, int]] = []

    def take(self) -> int:
        """Everything that is there; how many."""
        taken = 0
        while True:
            try:
                data, ancillary, _, _ = self.opened.recvmsg(9300, 64)
            except BlockingIOError:
                return taken
            value = next((each[2][0] for each in ancillary if each[1] == socket.IP_TOS), 0)
            self.counts[7 - (value >> 5), value & 3] += 1
            message, _, _, number, _ = struct.unpack_from(">IIHIH", data)
            self.numbers.append((message, number))
            taken += 1

    def take_until_quiet(self, quiet: float = 0.3, longest: float = 20.0) -> None:
        """Everything, until nothing has come for `quiet` seconds."""
        end = time.monotonic() + longest
        while time.monotonic() < end and select.select([self.opened], [], [], quiet)[0]:
            self.take()


if __name__ == "__main__":
    (_inside_virtual_main if "virtual" in sys.argv else _inside_main)(Path(sys.argv[1]), Path(sys.argv[2]))
