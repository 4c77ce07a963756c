"""`gradwire emulate --all` that fails at one of its policies: what was computed by then is kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gradwire import cli
from gradwire.cli.commands import testbed
from gradwire.emu.switches.backend_kind import TestbedError
from gradwire.result_store.result import Result
from gradwire.sim.simulate import simulate

SCENARIO = """
name = "case"
topology = { kind = "star", hosts = 3 }
link = { rate = "1Gbps", latency = "10us" }
host = { software_latency = "50us" }
transport = { kind = "constant_rate", payload = "1400B" }
traffic = [{ kind = "incast", name = "in", size = "20kB", fan_in = 2, receiver = "h0" }]
[[policy]]
name = "one"
[[policy]]
name = "two"
set = { link.latency = "20us" }
"""


def test_emulate_all_keeps_results_before_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def emulate(scenario: Any, trace: Any, request: Any, on_progress: Any) -> Result:
        if scenario.policy_name == "two":
            raise TestbedError("the runner is gone", "testbed", usage=False)
        return simulate(scenario)

    monkeypatch.setattr(testbed, "emulate", emulate)
    (tmp_path / "case.toml").write_text(SCENARIO)
    done = CliRunner().invoke(
        cli.app, ["emulate", str(tmp_path / "case.toml"), "--all", "--out", str(tmp_path / "out")]
    )
    assert done.exit_code == 1, done.stderr
    assert "not compared; results so far" in done.stderr and "the runner is gone" in done.stderr
    assert [each.name for each in (tmp_path / "out").iterdir()] == ["one"]
    assert Result.read(tmp_path / "out" / "one").messages.num_rows == 2
