"""Another trace in a scenario: where it is looked for, and what becomes of a scale that was meant for the first one."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
from sim_cases import make_trace, scenario
from trace_cases import small_trace
from typer.testing import CliRunner

import gradwire
from gradwire import cli
from gradwire.scenarios.errors import ScenarioError, ScenarioNote
from gradwire.scenarios.loading.load import load_scenario
from gradwire.scenarios.loading.overrides import apply_overrides_and_traces
from gradwire.workload.prerequisites import find_prerequisites
from gradwire.workload.resolve import resolve

SCALE = 0.17  # of the library's demo, which replays resnet50-v100


def command(*words: str) -> Any:
    return CliRunner().invoke(cli.app, list(words))


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A trace called `mine` where the user stands, and another in `deep/theirs`."""
    monkeypatch.chdir(tmp_path)
    small_trace().save("mine")
    small_trace(seed=5).save("deep/theirs")
    return tmp_path


def loaded(*overrides: str, policy: str | None = None) -> tuple[Any, list[str]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = load_scenario("demo", set=overrides, policy=policy)
    assert all(issubclass(warning.category, ScenarioNote) for warning in caught)
    return found, [str(warning.message) for warning in caught]


@pytest.mark.parametrize("policy", [None, "dlcp"])
def test_compute_scale_is_dropped_if_the_trace_is_replaced(mine: Path, policy: str | None) -> None:
    found, notes = loaded("job.trace=./mine", policy=policy)
    assert [job.compute_scale for job in found.job] == [1.0]
    assert len(notes) == 1
    assert notes[0].startswith("job[0].compute_scale = 0.17 belongs to the trace resnet50-v100; with ")
    for variant in found.variants():
        assert [job.compute_scale for job in variant.job] == [1.0]
        assert [job.trace for job in variant.job] == [str(mine / "mine")]


@pytest.mark.parametrize(
    ("overrides", "scale"),
    [
        ((), SCALE),
        (("job.trace=resnet50-v100",), SCALE),
        (("job.workers=2",), SCALE),
        (("job.trace=./mine", "job.compute_scale=0.5"), 0.5),
        (("job.compute_scale=0.02", "job[0].trace=vgg16"), 0.02),
        (("job.trace=vgg16", "job.trace=resnet50-v100"), SCALE),
    ],
)
def test_compute_scale_remains_if_set_explicitly_or_trace_unchanged(
    mine: Path, overrides: tuple[str, ...], scale: float
) -> None:
    found, notes = loaded(*overrides)
    assert [job.compute_scale for job in found.job] == [scale]
    assert notes == []


def test_compute_scale_is_dropped_for_the_changed_job_only() -> None:
    tables = {"job": [{"trace": "lstm", "compute_scale": 0.1}, {"trace": "vgg16", "compute_scale": 0.2}]}
    with pytest.warns(ScenarioNote, match=r"job\[1\]\.compute_scale = 0\.2 belongs to the trace vgg16"):
        laid = apply_overrides_and_traces(tables, ["job[1].trace=lstm", "job[0].iterations=3"])
    assert laid["job"] == [{"trace": "lstm", "compute_scale": 0.1, "iterations": 3}, {"trace": "lstm"}]


@pytest.mark.parametrize("path", ["./mine", "mine", "deep/theirs", "deep/../mine"])
def test_check_resolves_trace_paths_in_the_working_directory(mine: Path, path: str) -> None:
    done = command("check", "demo", "--trace", path, "--set", "job.phase=early", "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["name"] == "demo"
    assert done.stderr.count("note: job[0].compute_scale = 0.17 belongs to the trace resnet50-v100; with ") == 1


def test_run_with_another_trace_uses_unscaled_times(mine: Path) -> None:
    words = ["--trace", "mine", "--set", "job.phase=early", "--set", "job.iterations=1", "--set", "job.jitter=0"]
    for out, more in (("result", []), ("asked", ["--set", "job.compute_scale=1"])):
        done = command("run", "demo", *words, *more, "--out", out)
        assert done.exit_code == 0, done.output
        assert ("note: job[0].compute_scale" in done.stderr) is (not more)
    ran, asked = (gradwire.Result.read(out) for out in ("result", "asked"))
    assert ran.iterations.equals(asked.iterations)
    assert max(row["end_ps"] for row in ran.iterations.to_pylist()) >= small_trace().iterations[0].backward_end_ps


def test_simulate_refuses_a_trace_other_than_the_scaled_one(mine: Path) -> None:
    demo = load_scenario("demo", set=["job.iterations=1", "job.phase=early"])
    with pytest.raises(ScenarioError, match=r"compute_scale.*is meant for the trace resnet50-v100, not for small"):
        gradwire.simulate(demo, small_trace())
    with pytest.raises(ScenarioError, match="is meant for the trace resnet50-v100"):
        resolve(demo, small_trace())
    find_prerequisites(demo, gradwire.load_trace("resnet50-v100"))
    with pytest.warns(ScenarioNote):
        find_prerequisites(load_scenario("demo", set=["job.trace=mine", "job.phase=early"]), small_trace())
    Path("mine").rename("renamed")  # the same trace under another name
    again = load_scenario("demo", set=["job.trace=./renamed", "job.compute_scale=0.5", "job.phase=early"])
    find_prerequisites(again, gradwire.load_trace("renamed"))


def test_compute_scale_of_zero_or_one_accepts_any_trace(mine: Path) -> None:
    for scale in (0.0, 1.0):
        job = {
            "workers": 2,
            "servers": 1,
            "exchange": {"kind": "parameter_server"},
            "trace": "nobody",
            "compute_scale": scale,
        }
        find_prerequisites(scenario(job), make_trace([[1000]]))
