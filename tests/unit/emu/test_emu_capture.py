"""Captures at the ports of a node: what crossed, once per direction, with marks, in a file that others read."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path
from typing import Any

import emu_cases as cases
import pytest
from emu_cases import ECT0, MARK, in_private, needs, star

from gradwire.emu.planning.plan import Queues, TestbedPlan
from gradwire.emu.switches.backend_kind import TestbedError
from gradwire.emu.switches.linux_network.bpf_switch import BpfSwitch
from gradwire.emu.system.capture import Capture

pytestmark = needs("bpf")


def record(plan: TestbedPlan, path: Path, count: int) -> dict[str, Any]:
    network = BpfSwitch(plan, wired=False)
    network.build()
    capture = Capture(plan, 2, path, snap=80, zero_ns=time.time_ns())
    capture.start(network.spaces["n2"])
    try:
        Capture(plan, 2, path).start(network.spaces["n2"])
        again = ""
    except TestbedError as error:
        again = error.what
    sender, receiver = cases.open_udp(network, 0), cases.Receiver(cases.open_udp(network, 1))
    os.kill(capture._child, signal.SIGSTOP)  # times are those of the packets, not of their being read
    for number in range(count):
        cases.send_from(sender, 1, 3, ECT0, cases.packet(9, number, 1000))
    receiver.take_until_quiet()
    os.kill(capture._child, signal.SIGCONT)
    port = next(each for each in network.counts() if each.port == "s0->h1")
    return {
        "missed": capture.stop(),
        "written": capture.written,
        "port": port,
        "again": again,
        "received": len(receiver.numbers),
    }


def test_capture_holds_all_packets_of_both_directions(tmp_path: Path) -> None:
    scapy = pytest.importorskip("scapy.all")
    path, count = tmp_path / "s0.pcapng", 60
    rates = {(h, 2): 1_000_000_000 for h in range(2)} | {(2, h): 1_000_000 for h in range(2)}
    got = in_private(record, star(2, rate=rates, queues=Queues(8, 30_000, (10_000,) * 8, True)), path, count)
    assert got["missed"] == [] and got["written"] == count + got["port"].packets
    assert "cannot write a capture" in got["again"]
    frames = list(scapy.RawPcapNgReader(str(path)))
    names = Counter(meta.ifname.decode() if isinstance(meta.ifname, bytes) else meta.ifname for _, meta in frames)
    assert names == {"h0->s0": count, "s0->h1": got["port"].packets}
    marks, times = 0, {"h0->s0": [], "s0->h1": []}
    for data, meta in frames:
        assert len(data) == 80 and meta.wirelen == 1000
        name = meta.ifname.decode() if isinstance(meta.ifname, bytes) else meta.ifname
        marks += name == "s0->h1" and data[15] & 3 == MARK
        times[name].append((meta.tshigh << 32 | meta.tslow) / 1e9)
    assert marks == got["port"].marks > 0
    assert all(0 <= at < 60 for several in times.values() for at in several), "seconds since zero"
    gaps = [b - a for a, b in zip(times["s0->h1"][2:], times["s0->h1"][3:], strict=False)]
    assert sorted(gaps)[len(gaps) // 2] == pytest.approx(0.008, rel=0.2), "transmissions begin one packet's time apart"


@needs("tool:tcpdump")
def test_tcpdump_reads_a_capture(tmp_path: Path) -> None:
    path = tmp_path / "s0.pcapng"
    got = in_private(record, star(2), path, 5)
    tool = shutil.which("tcpdump") or "tcpdump"
    said = subprocess.run([tool, "-nr", str(path)], capture_output=True, text=True, timeout=20)
    lines = said.stdout.splitlines()
    assert len(lines) == got["written"] == 10 and "10.0.0.1.7117 > 10.0.0.2.7117: UDP" in lines[0]
