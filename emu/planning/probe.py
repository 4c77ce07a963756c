"""Determines the capabilities of this kernel, user and machine by trying each feature in private namespaces.

A kernel's version or configuration says little: modules may be missing or be loaded on demand. So the probe uses every
feature once in private namespaces that are thrown away: queueing disciplines, classifiers, actions, a BPF program, a
TUN device. It takes about a second and a half and never more than `LIMIT_S`.

    python -m gradwire.emu.planning.probe          print the result as JSON
"""

from __future__ import annotations

import json
import os
import platform
import select
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import gradwire
from gradwire.emu.planning.kernel_features import PACKAGES, KernelFeatures
from gradwire.emu.switches.backend_kind import TestbedError
from gradwire.emu.system.cpu_idle import awake
from gradwire.emu.system.namespaces import find_tool, python_command, run_tool, set_up_private, start_private
from gradwire.emu.system.sockets import send_buffer
from gradwire.emu.user_programs.marking_rules import rules_text
from gradwire.emu.user_programs.programs import Rule
from gradwire.emu.virtual_time.kernel_build import find_kernel
from gradwire.scenarios.json_data import Json

LIMIT_S = 30.0
"""Time limit of the inner process; a machine that exceeds it is too slow for a testbed."""

QDISCS = {
    "htb": "htb default 1",
    "tbf": "tbf rate 10mbit burst 5kb latency 10ms",
    "prio": "prio",
    "red": "red limit 60000 min 5000 max 5000 avpkt 1000 burst 5 bandwidth 10mbit ecn",
    "netem": "netem delay 1ms rate 10mbit",
    "ets": "ets bands 3",
    "fq": "fq",
    "fq_codel": "fq_codel",
    "bfifo": "bfifo limit 10000",
}
CLASSIFIERS = {
    "u32": "u32 match ip tos 0xe0 0xe0 classid 1:1",
    "fw": "handle 1 fw classid 1:1",
    "matchall": "matchall classid 1:1",
}
ACTIONS = {"mirred": "action mirred egress redirect dev end1", "gact": "action drop"}
CONGESTION = ("reno", "cubic", "dctcp", "bbr")
VERSION_OPTIONS = {"ip": "-V", "tc": "-V", "nft": "-v", "unshare": "-V", "ping": "-V"}
"""Options that print the version of a command, if not `--version`."""
TRIES = 3
"""Attempts before a rate counts as out of reach; our choice."""
RATES = (10, 20, 50, 100, 200, 400, 800)
"""Rates in Mbit/s at which a port is tried."""


def probe(*, rates: bool = True) -> KernelFeatures:
    """Probe this machine, with or without root rights; `rates=False` skips the measurements."""
    with awake() as awake_error:
        lateness = _timer_lateness(0.3) if rates else (0.0, 0.0, 0.0)
    kernel = KernelFeatures(
        release=platform.release(),
        machine=platform.machine(),
        cores=len(os.sched_getaffinity(0)),
        root=os.geteuid() == 0,
        tools=_versions(),
        tun=_try_tun_node(),
        uml=_find_uml(),
        congestion=_congestion(),
        timer_late_us=lateness,
        awake=awake_error,
    )
    return replace(kernel, **_probe_private(rates))


def virtual_kernel() -> KernelFeatures:
    """Return the capabilities of the virtual-time kernel (`emu/virtual_time/kernel.config`); a test checks them."""
    works = {"htb", "tbf", "prio", "red", "netem", "ets", "fq", "bfifo", "clsact"}
    return KernelFeatures(
        release="uml", machine=platform.machine(), cores=1, root=True, virtual=True, namespaces="",
        qdiscs={name: "" if name in works else "not built in" for name in (*QDISCS, "clsact")},
        classifiers=dict.fromkeys((*CLASSIFIERS, "bpf"), ""), actions=dict.fromkeys(ACTIONS, ""), nft_numgen="",
        nft_marks="", bpf="" if find_tool("clang") else f"command not found: clang (package {PACKAGES['clang']})",
        tun="", congestion=CONGESTION, tools=_versions(), reachable_bps=-1, uml=_find_uml(),
    )  # fmt: skip


def _probe_private(rates: bool) -> Json:
    """Return the results of the part that another process runs inside private namespaces."""
    root = str(Path(gradwire.__file__).parents[1])
    try:
        process = start_private(
            python_command("gradwire.emu.planning.probe", "--inside", *(["--rates"] if rates else [])),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, [root, *sys.path]))},
        )
    except (TestbedError, OSError) as error:
        return {"namespaces": getattr(error, "what", str(error))}
    try:
        answer, errors = process.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return {"namespaces": f"no answer within {LIMIT_S:g} s"}
    try:
        return dict(json.loads(answer))
    except ValueError:
        lines = errors.strip().splitlines()
        return {"namespaces": lines[-1] if lines else "no answer"}


def _versions() -> dict[str, str]:
    versions = {}
    for name in PACKAGES:
        path = find_tool(name)
        versions[name] = ""
        if path is None:
            continue
        try:
            completed = subprocess.run(
                [path, VERSION_OPTIONS.get(name, "--version")],
                capture_output=True,
                text=True,
                timeout=10,
                stdin=subprocess.DEVNULL,
            )
        except (OSError, subprocess.TimeoutExpired):
            continue
        versions[name] = next(iter((completed.stdout or completed.stderr).strip().splitlines()), "unknown version")
    return versions


def _find_uml() -> str:
    try:
        kernel = find_kernel()
    except (TestbedError, OSError):  # an invalid path, or a cache that this user may not read
        return ""
    return "" if kernel is None else str(kernel)


def _try_tun_node() -> str:
    return "" if os.path.exists("/dev/net/tun") else "no /dev/net/tun"


def _congestion() -> tuple[str, ...]:
    """Return the congestion controls that a socket accepts; trying one loads its module."""
    names = []
    for name in CONGESTION:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as opened:
            try:
                opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name.encode())
            except OSError:
                continue
        names.append(name)
    return tuple(names)


def _timer_lateness(seconds: float) -> tuple[float, float, float]:
    lateness = []
    end = time.perf_counter() + seconds
    while (start := time.perf_counter()) < end:
        time.sleep(0.001)
        lateness.append((time.perf_counter() - start - 0.001) * 1e6)
    lateness.sort()
    return tuple(round(lateness[min(len(lateness) - 1, int(part * len(lateness)))], 1) for part in (0.5, 0.99, 1.0))  # type: ignore[return-value]


# inside


def probe_inside(rates: bool) -> Json:
    """Return the results of all tests that change something; the process is in private namespaces."""
    set_up_private()
    run_tool(["ip", "link", "add", "name", "end0", "type", "veth", "peer", "name", "end1"])
    run_tool(["ip", "-batch", "-"], "link set end0 up\nlink set end1 up\naddress add 10.99.0.1/32 dev end0\n")
    qdiscs = {
        name: _error_of(["tc", "qdisc", "replace", "dev", "end0", "root", *line.split()])
        for name, line in QDISCS.items()
    }
    qdiscs["clsact"] = _error_of(["tc", "qdisc", "add", "dev", "end1", "clsact"])
    _error_of(["tc", "qdisc", "del", "dev", "end0", "root"])
    _error_of(["tc", "qdisc", "add", "dev", "end0", "root", "handle", "1:", "htb"])
    start = ["tc", "filter", "add", "dev", "end0", "parent", "1:", "protocol", "ip"]
    classifiers = {name: _error_of([*start, *line.split()]) for name, line in CLASSIFIERS.items()}
    entrance = "tc filter add dev end1 ingress protocol ip u32 match u32 0 0".split()
    actions = {name: _error_of([*entrance, *line.split()]) for name, line in ACTIONS.items()}
    _error_of(["tc", "qdisc", "del", "dev", "end1", "clsact"])
    text = "table ip t {\nchain c {\ntype filter hook prerouting priority -150\n"
    text += "meta mark set numgen inc mod 2 offset 1\n}\n}\n"
    bpf = _try_bpf()
    classifiers["bpf"] = bpf
    return {
        "namespaces": "",
        "qdiscs": qdiscs,
        "classifiers": classifiers,
        "actions": actions,
        "nft_numgen": _error_of(["nft", "-f", "-"], text),
        "nft_marks": _error_of(["nft", "-f", "-"], rules_text([Rule(priority=0, important=True)], 0)),
        "bpf": bpf,
        "tun": _try_tun_node() or _error_of(["ip", "tuntap", "add", "dev", "probe0", "mode", "tun"]),
        "reachable_bps": _reachable() if rates and not qdiscs["htb"] else -1,
    }


def _error_of(command: Sequence[str], text: str | None = None) -> str:
    """Run a command and return a short error text; "" if it works."""
    try:
        run_tool(command, text, seconds=5)
    except TestbedError as error:
        words = error.what.split(": ", 1)[-1]
        for noise in ("Error: ", "RTNETLINK answers: ", "We have an error talking to the kernel"):
            words = words.replace(noise, "")
        return words.strip(" ;.") or "refused"
    return ""


def _try_bpf() -> str:
    """Return the error of compiling, loading and attaching the programs of the backend `bpf`; "" if they work."""
    try:
        from gradwire.emu.switches.linux_network.bpf_switch import MAPS, make_maps, object_file, pin_programs
        from gradwire.emu.system import bpf

        bpf.lift_memory_limit()
        maps = make_maps(dict.fromkeys(MAPS, 1))
        pin_programs(object_file(), maps, "/run/probe-bpf")
        run_tool(
            "tc filter add dev end0 parent 1: bpf object-pinned /run/probe-bpf/enqueue classid 1: direct-action".split()
        )
    except TestbedError as error:
        return error.what
    except Exception as error:  # a probe reports errors and does not fail
        return f"{type(error).__name__}: {error}"
    return ""


def _reachable() -> int:
    """Return the highest rate in bit/s that a saturated port sustains within 3 %; about 0.1 s per rate."""
    _error_of(["tc", "qdisc", "del", "dev", "end0", "root"])
    run_tool(
        ["ip", "-batch", "-"],
        "link set end0 mtu 1500 gso_max_segs 1\nroute add 10.99.0.2/32 dev end0\n"
        "neigh add 10.99.0.2 lladdr 02:00:00:00:00:01 dev end0 nud permanent\n",
    )
    run_tool(
        ["tc", "-batch", "-"],
        "qdisc add dev end0 root handle 1: htb default 1\n"
        "class add dev end0 parent 1: classid 1:1 htb rate 1mbit ceil 1mbit quantum 1500\n"
        "qdisc add dev end0 parent 1:1 handle 2: bfifo limit 200000\n",
    )
    best = 0
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as opened:
        send_buffer(opened, 1 << 20)
        opened.setblocking(False)
        opened.connect(("10.99.0.2", 9))
        for rate in RATES:
            run_tool(
                f"tc class change dev end0 parent 1: classid 1:1 htb rate {rate}mbit ceil {rate}mbit quantum 1500 "
                "burst 3028 cburst 3028".split()
            )
            # the best attempt counts: other processes may have disturbed one
            if not any(_measured_rate(opened, 0.08) >= 0.97 * rate * 1e6 for _ in range(TRIES)):
                break
            best = rate * 1_000_000
    return best


def _measured_rate(opened: socket.socket, seconds: float) -> float:
    """Return the bit/s that leave the port while a socket offers as much as it accepts."""
    data, counter = bytes(1458), Path("/sys/class/net/end0/statistics/tx_bytes")
    measured = None
    start = time.perf_counter()
    while (now := time.perf_counter()) < start + seconds:
        if measured is None and now > start + seconds / 4:
            measured = now, int(counter.read_text())
        try:
            for _ in range(20):
                opened.send(data)
        except BlockingIOError:
            select.select([], [opened], [], 0.002)
    since, bytes_before = measured or (start, 0)
    return (int(counter.read_text()) - bytes_before) * 8 / (time.perf_counter() - since)


def main(arguments: Sequence[str]) -> None:
    result = probe_inside("--rates" in arguments) if "--inside" in arguments else probe().to_json()
    json.dump(result, sys.stdout)
    print(flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
