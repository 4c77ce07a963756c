"""Claims on the testbed: the planned runs, the verdicts beside simulations, and a reproduction on real sockets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gradwire.cli import app
from gradwire.emu.testbed import check_scenario
from gradwire.studies.report.other_sections import claims_page
from gradwire.studies.reproduce import claims_of
from gradwire.studies.reproduce.claim import Claim, Expect, Setting
from gradwire.studies.reproduce.claim_values import gain, ratio
from gradwire.studies.reproduce.claims_page import agreement_lines, as_dict, finding_lines
from gradwire.studies.reproduce.policies import POLICIES
from gradwire.studies.reproduce.run_plan import claim_on_testbed
from gradwire.studies.reproduce.run_plan import testbed_runs as runs_on_testbed
from gradwire.studies.reproduce.verdicts import agreements
from gradwire.studies.reproduce.verdicts import judge_testbed as judged_on_testbed
from tests.support.emu_cases import needs

SMALL: dict[str, Any] = {
    "topology": {"kind": "star", "hosts": 5},
    "link": {"rate": "1Gbps", "latency": "10us"},
    "host": {"software_latency": "20us"},
    "switch": {"buffer": "64KiB", "ecn_threshold": "24KiB"},
    "transport": {"payload": "1400B"},
    "traffic": {"fan_in": 4, "size": "20kB", "rounds": 2},
}
BURST = {"traffic": [{"name": "burst", "kind": "incast", "period": "40ms", "fan_in": 64, "size": "1MB", "rounds": 9}]}


def claim_of(*expects: Expect) -> Claim:
    setting = Setting(
        "s",
        "incast-mix",
        ("dlcp", "dctcp-10ms", "pfabric"),
        BURST,
        testbed=SMALL,
        testbed_policies=("dlcp", "dctcp-10ms"),
        testbed_words="20 kB",
    )
    other = Setting("t", "incast-mix", ("dlcp",), BURST)
    return Claim("T1", "[ours]", "It is fast.", "", (setting, other), expects, "mean")


FAST = Expect("DLCP faster", gain("s", "dlcp", "dctcp-10ms", "mean"), ("s",), low=0.5, unit="share")
NO_RIVAL = Expect("DLCP over pFabric", ratio("s", "dlcp", "pfabric", "mean"), ("s",), high=1.0)
NO_SETTING = Expect("DLCP in t", ratio("t", "dlcp", "dlcp", "mean"), ("t",), high=1.0)


def test_testbed_runs_come_in_pairs_of_settings_and_policies_that_fit() -> None:
    runs = runs_on_testbed(claim_of(FAST), 2, False)
    assert [(run.setting, run.policy, run.seed, run.is_emulated) for run in runs] == [
        ("s", policy, seed, is_emulated)
        for policy in ("dlcp", "dctcp-10ms")
        for seed in (1, 2)
        for is_emulated in (False, True)
    ]
    assert len({run.key for run in runs}) == 8
    (tcp, _) = (run for run in runs if run.policy == "dctcp-10ms" and run.seed == 1)
    assert tcp.scenario.transport.preset == "linux"
    assert {run.scenario.transport.payload for run in runs} == {1400}
    assert tcp.scenario.host_count == 5 and tcp.scenario.traffic[0].size == 20_000


@pytest.mark.parametrize("name", ["dlcp", "mlt"])
def test_testbed_accepts_every_planned_scenario(name: str) -> None:
    claims = claims_of([name])
    planned = {(run.setting, run.policy): run for claim in claims for run in runs_on_testbed(claim, 1, True)}
    assert planned
    for run in planned.values():
        check_scenario(run.scenario)
    for claim in claims:
        for setting in claim.settings:
            assert (setting.testbed and setting.testbed_words) or not setting.testbed_policies
            assert set(setting.testbed_policies) <= set(POLICIES)


def test_verdict_is_that_of_sockets_with_simulated_figures_beside() -> None:
    """DLCP takes 5 us in both worlds, DCTCP 10 us on sockets and 6 us simulated: gains of 1 and 0.2."""
    whole = claim_of(FAST, NO_RIVAL, NO_SETTING)
    runs = runs_on_testbed(whole, 1, False)
    claim = claim_on_testbed(whole, runs)
    assert claim.expects == (FAST,)
    assert [(setting.name, setting.policies) for setting in claim.settings] == [("s", ("dlcp", "dctcp-10ms"))]
    assert claim.remark == "On the testbed. s: 20 kB. TCP is the kernel's."
    times = {("dlcp", True): 5e6, ("dlcp", False): 5e6, ("dctcp-10ms", True): 10e6, ("dctcp-10ms", False): 6e6}
    judged = judged_on_testbed(claim, runs, {run.key: {"mean": times[run.policy, run.is_emulated]} for run in runs})
    assert judged.verdict == "shown" and judged.simulated is not None and judged.simulated.verdict == "not shown"
    (line,) = finding_lines(judged)
    assert line == "DLCP faster: 100 %; our limit >= 50.0 % [ours]: holds; simulated 20.0 %"
    assert [(each.policy, each.difference) for each in agreements(judged)] == [
        ("dlcp", 0.0),
        ("dctcp-10ms", pytest.approx(2 / 3)),
    ]
    assert agreement_lines(judged)[1].endswith("10.0 us, simulated 6.00 us (+66.7 %)")
    page = claims_page("t", [judged], [None], {"command": "x", **as_dict([judged])})
    assert "+66.7 %" in page and "Figures are of one seed." in page
    assert "<td>100 %</td><td>20.0 %</td>" in page
    (plain,) = as_dict([judged])["claims"]  # type: ignore[misc]
    assert [row["policy"] for row in plain["agreement"]] == ["dlcp", "dctcp-10ms"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["dlcp", "--world", "moon"], '"moon" is no world'),
        (["lee", "--world", "emu"], "none of the claims fits the testbed"),
        (["dlcp", "--world", "emu", "--device", "cuda"], "--device: has no effect: nothing is trained"),
        (["dlcp", "--world", "emu", "--pictures", "synthetic"], "--pictures and --text: has no effect"),
    ],
)
def test_reproduce_names_invalid_worlds(arguments: list[str], message: str, tmp_path: Path) -> None:
    answer = CliRunner().invoke(app, ["reproduce", *arguments, "--out", str(tmp_path / "out")])
    assert answer.exit_code == 2
    assert message in " ".join(answer.output.split())
    assert not (tmp_path / "out").exists()


@needs("uml")
def test_reproduction_on_sockets_judges_by_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from gradwire.studies.reproduce import runner

    monkeypatch.setattr("gradwire.studies.reproduce.claims_of", lambda names, chosen: [claim_of(FAST)])
    (judged,) = runner.Reproduction(["dlcp"], tmp_path / "out", seeds=1, world="emu").run()
    assert set(judged.figures) == {("s", "dlcp", 1), ("s", "dctcp-10ms", 1)}
    (first, *_) = agreements(judged)
    assert abs(first.difference) < 0.05, first
    stored = json.loads((tmp_path / "out" / "claims.json").read_text())
    assert stored["testbed"] and stored["claims"][0]["agreement"]
    assert stored["command"].endswith("--seeds 1 --world emu")
