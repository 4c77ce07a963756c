"""Comparisons of scenarios that are unlike say what differs, in plain words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from analysis_cases import small_result
from typer.testing import CliRunner

from gradwire import cli
from gradwire.analysis.comparison.compare import compare
from gradwire.result_store.provenance import scenario_text
from gradwire.result_store.result import Result
from gradwire.scenarios.loading.load import list_library, load_scenario

STAR = 'topology = { kind = "star", hosts = 8 }\n[link]\nrate = "10Gbps"\n'
JOB = '[[job]]\nname = "j"\ntrace = "resnet50"\nworkers = 4\n'


def run_with(scenario: str, label: str = "Policy", **summary: Any) -> Result:
    result = small_result(label=label)
    return Result(**vars(result) | {"scenario": scenario, "summary": result.summary | summary})


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (STAR.replace("hosts = 8", "hosts = 16") + JOB, "topology (kind star, hosts 16, not kind star, hosts 8)"),
        (STAR.replace("10Gbps", "40Gbps") + JOB, "links (rate 40Gbps, not rate 10Gbps)"),
        (STAR + JOB.replace("4", "8"), "workers of job j (8, not 4)"),
        (STAR + JOB.replace("resnet50", "vgg16"), "trace of job j (vgg16, not resnet50)"),
        (STAR + JOB + "iterations = 2\n", "iterations of job j (2, not 5)"),
        (STAR + JOB.replace('"j"', '"k"'), "jobs (k, not j)"),
        (STAR, "jobs (none, not j)"),
        ("seed = 3\n" + STAR + JOB, "seed (3, not none)"),
        ('duration = "1ms"\n' + STAR + JOB, "duration (1ms, not none)"),
        (STAR + JOB + 'placement = "spread"\n', "placement of job j (spread, not none)"),
        (STAR + JOB + '[[traffic]]\nname = "web"\nkind = "poisson"\n', "traffic (web, not none)"),
        (STAR + JOB + '[[fault]]\nkind = "link_down"\n', "faults (link_down, not none)"),
    ],
)
def test_comparison_names_differences_other_than_policy(
    other: str, words: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    comparison = compare([run_with(STAR + JOB), run_with(other, "Other")])
    sentence = f"Other differs from Policy in more than policy: {words}"
    assert comparison.differences == [sentence] == comparison.as_dict()["differences"]
    comparison.print()
    assert f"note: {sentence}" in capsys.readouterr().out
    assert f"* {sentence}." in (comparison.write(tmp_path / "out") / "report.md").read_text(encoding="utf-8")


def test_differing_policies_are_not_reported():
    one, other = (f'transport = "{name}"\nload_balancing = "ecmp"\n{STAR}{JOB}' for name in ("dctcp", "dlcp"))
    assert compare([run_with(one), run_with(other)]).differences == []


def test_explicit_default_value_is_not_a_difference():
    assert compare([run_with(STAR + JOB), run_with(STAR + JOB + "iterations = 5\n")]).differences == []


def test_comparison_notes_results_without_a_scenario():
    first, second = small_result(), run_with(STAR + JOB)
    assert (
        compare([first, second])
        .differences[0]
        .startswith("Policy [1] holds no scenario: differences other than policy")
    )
    assert (
        compare([second, first])
        .differences[0]
        .startswith("Policy [2] holds no scenario: differences other than policy")
    )
    assert compare([first]).differences == compare([first, first]).differences == []


def test_common_difference_of_several_runs_is_reported_once():
    other = run_with(STAR.replace("10Gbps", "40Gbps") + JOB, "Fast")
    (sentence,) = compare([run_with(STAR + JOB), other, other, other]).differences
    assert sentence.startswith("Fast [1], Fast [2] and Fast [3] differ from Policy in more than policy: links")


def test_trace_content_is_reported_beside_other_differences():
    other = run_with(STAR.replace("10Gbps", "40Gbps") + JOB, "Other", trace_hash="1" * 16)
    (sentence,) = compare([run_with(STAR + JOB), other]).differences
    assert "links" in sentence and sentence.endswith("a trace of the same name has different content")


def test_traces_of_equal_name_and_different_content_are_reported():
    comparison = compare([run_with(STAR + JOB), run_with(STAR + JOB, "Other", trace_hash="1" * 16)])
    assert comparison.differences[0].endswith("a trace of the same name has different content")


def test_topology_files_of_different_content_are_reported():
    inputs = [{"topology.file": digit * 64} for digit in "12"]
    comparison = compare([run_with(STAR + JOB, inputs=inputs[0]), run_with(STAR + JOB, "Other", inputs=inputs[1])])
    assert comparison.differences[0].endswith("the file of topology.file has different content")


@pytest.mark.parametrize("name", ["demo", "dlcp-ablation", "shared"])
def test_library_scenarios_vary_the_policy_only(name: str):
    assert name in list_library()
    texts = [scenario_text(variant) for variant in load_scenario(name).variants()]
    assert compare([run_with(text) for text in texts]).differences == []


def test_overrides_have_no_effect_on_finished_results(own_directory: Path):
    small_result().write("one")
    Path("case.toml").write_text(
        'name = "case"\n'
        + STAR
        + '[[traffic]]\nname = "web"\nkind = "incast"\nfan_in = 2\nsize = "1kB"\nrounds = 2\nperiod = "1ms"\n'
    )
    done = CliRunner().invoke(cli.app, ["compare", "one", "case.toml", "--set", "seed=3"])
    assert done.exit_code == 0, done.output
    assert "note: one: is a finished run: seed=3 has no effect on it" in done.stderr
    plain = CliRunner().invoke(cli.app, ["compare", "one", "case.toml"])
    assert "has been run already" not in plain.stderr


def test_differing_keys_of_same_named_tables_are_reported() -> None:
    web = '[[traffic]]\nname = "web"\nkind = "poisson"\nload = 0.6\n'
    first, other = (
        run_with(STAR + web + 'transport = "ltp"\n'),
        STAR + web + 'transport = { kind = "ltp", deadline = 9.0 }\n',
    )
    (sentence,) = compare([first, run_with(other + "droppable = true\n", "Other")]).differences
    words = "traffic (web: transport {kind ltp, deadline 9.0}, not ltp; web: droppable True, not none)"
    assert sentence == f"Other differs from Policy in more than policy: {words}"
    override = '[[link_override]]\nbetween = ["h0", "s0"]\nrate = "1Gbps"\n'
    (sentence,) = compare([run_with(STAR), run_with(STAR + override, "Other")]).differences
    assert "link_override {between h0 and s0, rate 1Gbps}" in sentence
