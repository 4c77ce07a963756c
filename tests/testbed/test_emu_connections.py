"""The kernel's TCP under virtual time, through the whole way from a scenario to its Result: which connections carry the
messages, that a run is the run alone, and that it is the same run every time."""

from __future__ import annotations

import struct
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from emu_cases import needs

from gradwire.emu.testbed import Request
from gradwire.result_store.result import Result
from gradwire.scenarios.loading.load import load_scenario
from gradwire.studies.connect import emulate

pytestmark = needs("uml", "tool:tc")

ROUNDS, SENDERS = 4, 3
SCENARIO = """
name = "rounds"
topology = { kind = "star", hosts = 4 }
link = { rate = "1Gbps", latency = "10us" }
host = { software_latency = "20us" }
switch = { buffer = "24KiB", selective_drop = false }
transport = { kind = "cubic", payload = "1400B", min_rto = "5ms" }
traffic = [
    { kind = "incast", name = "in", fan_in = 3, receiver = "h0", size = "100kB", rounds = 4, period = "30ms" },
]
"""


def run(folder: Path, switch: str, *changes: str, **more: Any) -> Result:
    file = folder / "rounds.toml"
    file.write_text(SCENARIO)
    return emulate(load_scenario(str(file), set=list(changes)), request=Request("virtual", switch, **more))


def frames(path: Path) -> list[bytes]:
    """What a pcapng file holds, from the Ethernet header on."""
    data, at, found = path.read_bytes(), 0, []
    while at < len(data):
        kind, length = struct.unpack_from("<II", data, at)
        if kind == 6:
            found.append(data[at + 28 : at + 28 + struct.unpack_from("<I", data, at + 20)[0]])
        at += length
    return found


def asked_for(path: Path) -> Counter[bytes]:
    """Connections that are asked for (SYN without ACK), by the host that asks."""
    tcp = (frame for frame in frames(path) if frame[23] == 6)
    return Counter(frame[26:30] for frame in tcp if frame[47] & 0x12 == 0x02 and frame[30:34] == bytes((10, 0, 0, 1)))


@pytest.mark.parametrize(("connections", "each"), [("fresh", ROUNDS), ("persistent", 1)])
def test_emulation_opens_as_many_connections_as_configured(tmp_path, connections, each):
    result = run(
        tmp_path,
        "userspace",
        f'transport.connections="{connections}"',
        captures=["h0"],
        capture_folder=tmp_path / "seen",
    )
    found = asked_for(next((tmp_path / "seen").iterdir()))
    assert len(found) == SENDERS and set(found.values()) == {each}
    assert result.messages.num_rows == ROUNDS * SENDERS and result.summary["totals"]["finished"]


@pytest.mark.parametrize("switch", ["red", "bpf", "userspace"])
def test_port_counters_exclude_connection_setup_and_teardown(tmp_path, switch):
    """A message of one packet needs one packet and its acknowledgement, and a Stop and its acknowledgement."""
    sparse = ('traffic=[{kind="incast", name="in", fan_in=1, receiver="h0", size="1kB", rounds=3, period="1ms"}]',)
    ports = {row["port"]: row for row in run(tmp_path, switch, *sparse).ports.to_pylist()}
    assert ports["s0->h0"]["packets"] in (5, 6), "what acknowledges the last Stop may be under way"
    assert ports["h0->s0"]["packets"] == 6
    busy = run(tmp_path, switch)
    drops = busy.drops.to_pylist()
    assert all(0 <= drop["time_ps"] <= busy.summary["totals"]["simulated_ps"] for drop in drops)
    counted = sum(row["drops_tail"] for row in busy.ports.to_pylist())
    assert counted > 0 and (switch == "red" or len(drops) == counted)


def test_host_names_may_contain_slashes(tmp_path):
    edges = "".join(f'<edge source="tor" target="rack1/h{n}"/>' for n in range(4))
    nodes = "".join(f'<node id="{name}"/>' for name in ("tor", *(f"rack1/h{n}" for n in range(4))))
    (tmp_path / "rack.graphml").write_text(
        f'<graphml xmlns="http://graphml.graphdrawing.org/xmlns"><graph edgedefault="undirected">{nodes}{edges}</graph></graphml>'
    )
    changes = (
        'topology={kind="graph", file="rack.graphml"}',
        'traffic=[{kind="incast", name="in", fan_in=3, size="9kB"}]',
    )
    result = run(tmp_path, "userspace", *changes, captures=["rack1/h0"], capture_folder=tmp_path / "seen")
    assert result.summary["totals"]["finished"]
    assert [path.name for path in (tmp_path / "seen").iterdir()] == ["rack1%2Fh0.pcapng"]


@pytest.mark.slow
def test_four_virtual_runs_are_byte_identical(tmp_path):
    seen = []
    for number in range(4):
        result = run(tmp_path, "userspace", captures=["s0"], capture_folder=tmp_path / str(number))
        tables = [getattr(result, name).to_pylist() for name in ("messages", "drops", "ports", "samples")]
        seen.append((tables, [path.read_bytes() for path in sorted((tmp_path / str(number)).iterdir())]))
    assert all(each == seen[0] for each in seen)
