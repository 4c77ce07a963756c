"""Commands say what has no effect: keys before they work, points and policies that come out the same afterwards."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

import gradwire
from gradwire import cli
from gradwire.scenarios.errors import ScenarioNote
from gradwire.studies.report.sweep_section import sweep_section
from gradwire.studies.sweep.outcome import Sweep

SCENARIO = """
name = "case"
topology = { kind = "star", hosts = 4 }
transport = "dlcp"
[link]
rate = "10Gbps"
[switch]
buffer = "60KiB"
buffer_alpha = 0.5
[[traffic]]
name = "t"
kind = "incast"
fan_in = 3
size = "100kB"
[[policy]]
name = "plain"
[[policy]]
name = "lossy"
set = { traffic = { bound = 0.2 } }
[[policy]]
name = "small"
set = { switch = { buffer = "20KiB" } }
"""
ALPHA = "note: switch.buffer_alpha has no effect: no buffer is shared; for it to matter: switch.shared_buffer"
BOUND = "note: traffic[0].bound has no effect on the run: all packets are important and must arrive"


@pytest.fixture(scope="module")
def scenario(tmp_path_factory: pytest.TempPathFactory) -> str:
    place = tmp_path_factory.mktemp("case") / "case.toml"
    place.write_text(SCENARIO)
    return str(place)


def _run(*arguments: str) -> Result:
    result = CliRunner().invoke(cli.app, list(arguments))
    assert result.exit_code == 0, result.output
    return result


def test_check_and_run_report_keys_without_effect(scenario: str, tmp_path: Path) -> None:
    """The loss bound of untagged DLCP flows is reported only under the policy that sets it."""
    assert ALPHA in _run("check", scenario).output and BOUND in _run("check", scenario).output
    plain = _run("run", scenario, "--policy", "plain", "--out", str(tmp_path / "plain"))
    assert ALPHA in plain.output and BOUND not in plain.output
    lossy = _run("run", scenario, "--policy", "lossy", "--out", str(tmp_path / "lossy"))
    assert ALPHA in lossy.output and BOUND in lossy.output
    kept = json.loads((tmp_path / "lossy" / "result.json").read_text())
    assert [f"note: {note}"[: len(BOUND)] for note in kept["notes"]] == [ALPHA[: len(BOUND)], BOUND]


def test_compare_reports_policies_with_identical_results(scenario: str) -> None:
    """A bound without effect leaves the Result unchanged; a smaller buffer changes it."""
    found = _run("compare", scenario)
    assert "note: plain and lossy: the same Result, to the byte" in found.output
    assert ALPHA in found.output and BOUND in found.output
    told = json.loads(_run("compare", scenario, "--json").stdout)
    assert told["identical"] == ["plain and lossy: the same Result, to the byte"]


def test_sweep_reports_axes_without_effect(scenario: str, tmp_path: Path) -> None:
    """The axis of buffer_alpha is reported, and that of the buffer is not."""
    tables: dict[str, Any] = {
        "name": "s", "scenario": scenario, "measures": ["flow_p99_ps"],
        "axis": [{"key": "switch.buffer_alpha", "values": [0.5, 2.0]}, {"key": "switch.buffer", "values": ["20KiB", "60KiB"]}],
    }  # fmt: skip
    with warnings.catch_warnings(record=True) as noted:
        warnings.simplefilter("always")
        found = gradwire.sweep(tables, out=tmp_path / "s", jobs=1)
    assert ALPHA.removeprefix("note: ") in [str(each.message) for each in noted if each.category is ScenarioNote]
    words = "buffer_alpha has no effect: its points give byte-identical Results"
    assert found.axes_without_effect == [words] == found.as_dict()["notes"]
    assert words in str(sweep_section(Sweep.read(tmp_path / "s")))


def test_run_reports_no_notes_on_training_tables(tmp_path: Path) -> None:
    """A job's start applies to `gradwire run`, even if the file also describes a training run."""
    job = '[[job]]\nname = "j"\ntrace = "resnet20"\nworkers = 2\nservers = 1\niterations = 1\nstart = "1ms"\n'
    exchange = 'exchange = { kind = "parameter_server" }\n[training]\nmodel = "resnet8"\nsteps = 1\n'
    (tmp_path / "both.toml").write_text('name = "both"\ntopology = { kind = "star", hosts = 3 }\n' + job + exchange)
    words = "note: job[0].start has no effect: it applies to runs"
    assert words in _run("check", str(tmp_path / "both.toml")).output
    assert words not in _run("run", str(tmp_path / "both.toml"), "--out", str(tmp_path / "out")).output
    assert "notes" not in json.loads((tmp_path / "out" / "result.json").read_text())
