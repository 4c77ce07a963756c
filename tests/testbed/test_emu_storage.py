"""Storage traffic on real kernels under virtual time: files read and checkpoints written, operation by operation, as in
the simulator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from emu_cases import needs

from gradwire.analysis.fidelity.fidelity import agreement
from gradwire.emu.testbed import Request
from gradwire.scenarios.loading.load import load_scenario
from gradwire.sim.simulate import simulate
from gradwire.studies.connect import emulate

pytestmark = needs("uml", "tool:tc")

SCENARIO = """
name = "storage"
topology = { kind = "star", hosts = 5 }
link = { rate = "500Mbps", latency = "20us" }
host = { software_latency = "50us" }
switch = { queues = 2, buffer = "64KiB", ecn_threshold = "32KiB", selective_drop = true }
transport = { kind = "dlcp", payload = "1400B", stop_policy = "eager", rate_control = "dctcp" }
emulation = { side_channel = "udp" }
link_override = [{ between = ["h1", "s0"], latency = "27110ns" }, { between = ["h2", "s0"], latency = "31415ns" }]

[[traffic]]
name = "files"
kind = "storage"
operation = "OPERATION"
hosts = ["h0", "h1", "h2"]
storage = ["h3", "h4"]
size = "300kB"
stripe = "40kB"
window = 2
rounds = 3
period = "30ms"
spread = "2ms"

[fidelity]
completion_mean = 0.02
"""
ROUNDS, HOSTS, STRIPES = 3, 3, 8


def rows(run: Any) -> list[tuple[Any, ...]]:
    """What was asked for, whatever it took: who sent how much to whom, for what."""
    names = ("iteration", "kind", "src", "dst", "bytes", "received_bytes", "tensor", "part")
    return sorted(tuple(row[name] for name in names) for row in run.messages.to_pylist())


@pytest.mark.parametrize("switch", ["red", "userspace"])
@pytest.mark.parametrize("operation", ["read", "write"])
def test_storage_traffic_agrees_with_simulation(operation, switch, tmp_path: Path):
    """Each operation has the same messages and bytes: a request per stripe read, an answer per stripe written. The
    times agree within 2 % on average and in total."""
    file = tmp_path / "storage.toml"
    file.write_text(SCENARIO.replace("OPERATION", operation))
    chosen = load_scenario(str(file))
    sim, emu = simulate(chosen), emulate(chosen, request=Request("virtual", switch))
    assert rows(sim) == rows(emu)
    assert len(rows(emu)) == 2 * ROUNDS * HOSTS * STRIPES
    stripes = [row for row in emu.messages.to_pylist() if row["bytes"] > 1000]
    assert sum(row["received_bytes"] for row in stripes) == ROUNDS * HOSTS * 300_000
    to_storage = {row["dst"] in ("h3", "h4") for row in stripes}
    assert to_storage == {operation == "write"}
    found = agreement(sim, emu, chosen.fidelity)
    assert found.is_within, "\n".join(found.verdicts())
    assert found.matched == sim.messages.num_rows
    ends = [max(row["end_ps"] for row in run.messages.to_pylist()) for run in (sim, emu)]
    assert ends[1] == pytest.approx(ends[0], rel=0.02)
