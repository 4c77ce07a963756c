"""A Result holds its scenario: as TOML that loads again, and runs again to the byte."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from output_cases import SMALL, run, same_but_timing

from gradwire.result_store.provenance import input_digests, load_result_scenario, scenario_text
from gradwire.result_store.result import Result
from gradwire.scenarios.errors import GradwireError, ResultError
from gradwire.scenarios.loading.load import build_scenario, list_library, load_scenario
from gradwire.scenarios.loading.toml import write_toml
from gradwire.scenarios.schema.scenario import Scenario
from gradwire.sim.simulate import simulate
from tests.soak.drawn import Scenarios, combination

VALUES = st.recursive(
    st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=20,
)


@given(st.dictionaries(st.text(max_size=6), VALUES, max_size=6))
def test_written_toml_parses_to_the_same_tables(tables: dict[str, Any]):
    assert tomllib.loads(write_toml(tables)) == tables


def test_written_toml_omits_none_values():
    assert tomllib.loads(write_toml({"a": None, "b": {"c": None, "d": [{"e": None}]}})) == {"b": {"d": [{}]}}
    with pytest.raises(TypeError, match="object"):
        write_toml({"a": object()})


@pytest.mark.parametrize("name", list_library())
def test_library_scenarios_survive_scenario_text_round_trip(name: str, tmp_path: Path):
    for number, variant in enumerate(load_scenario(name).variants()):
        file = tmp_path / f"{number}.toml"
        file.write_text(scenario_text(variant), encoding="utf-8")
        again = load_scenario(file)
        assert len(again.variants()) == 1
        (alone,) = again.variants()
        assert (alone.policy_name, alone.policy_label) == (variant.policy_name, variant.policy_label)
        assert alone.digest() == variant.digest()
        assert scenario_text(alone) == scenario_text(variant)
        apart = {"policy": ()}
        assert alone.model_copy(update=apart).model_dump() == variant.model_copy(update=apart).model_dump()


def test_random_scenarios_survive_scenario_text_round_trip(tmp_path: Path):
    (tmp_path / "files").mkdir()
    (tmp_path / "copy").mkdir()
    loaded = 0
    for seed in range(400):
        made = Scenarios(tmp_path / "files", combination(Random(seed)))
        try:
            variants = build_scenario(made.tables(seed, 0.1 * (seed % 2))).at(tmp_path / "files").variants()
        except GradwireError:
            continue
        for variant in variants:
            (tmp_path / "copy" / "a.toml").write_text(scenario_text(variant), encoding="utf-8")
            (again,) = load_scenario(tmp_path / "copy" / "a.toml").variants()
            assert again.digest() == variant.digest()
            assert again.job == variant.job
            loaded += 1
    assert loaded > 100


def test_scenario_text_resolves_files_and_modules_from_any_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    home = tmp_path / "home"
    home.mkdir()
    (home / "mine.py").write_text("class Spray: pass\n")
    (home / "flows.txt").write_text("1\n0 1 3 100 5000 0.0\n")
    (home / "a.toml").write_text(
        SMALL + '[[traffic]]\nname = "listed"\nkind = "flows"\nfile = "flows.txt"\n'
        '[[policy]]\nname = "mine"\n[policy.set]\nload_balancing = "mine:Spray"\n'
    )
    variant = load_scenario(home / "a.toml").variants()[0]
    (tmp_path / "elsewhere").mkdir()
    copy = tmp_path / "elsewhere" / "copy.toml"
    copy.write_text(scenario_text(variant))
    monkeypatch.chdir(tmp_path / "elsewhere")
    (again,) = load_scenario(copy).variants()
    assert again.folder == home
    assert scenario_text(again) == copy.read_text(), "a record of a record is the same"
    assert again.traffic[1].path == str(home / "flows.txt")
    assert input_digests(again) == input_digests(variant)
    assert set(input_digests(again)) == {"load_balancing", "traffic[1]"}


def test_policy_files_are_relative_to_the_scenario_file(tmp_path: Path):
    (tmp_path / "flows.txt").write_text("1\n0 1 3 100 5000 0.0\n")
    (tmp_path / "a.toml").write_text(
        SMALL
        + '[[policy]]\nname = "listed"\n[policy.set]\ntraffic = [{name = "l", kind = "flows", file = "flows.txt"}]\n'
    )
    (variant,) = load_scenario(tmp_path / "a.toml").variants()
    assert variant.traffic[0].path == str(tmp_path / "flows.txt")


def no_traces(scenario: Scenario) -> list[str]:
    return []


def recorded(folder: Path, text: str = SMALL) -> Path:
    (folder / "a.toml").write_text(text)
    return simulate(load_scenario(folder / "a.toml")).write(folder / "one")


def test_error_names_changed_input_file(tmp_path: Path):
    graph = tmp_path / "net.txt"
    graph.write_text("h0 s0\nh1 s0\nh2 s0\n")
    text = SMALL.replace('{ kind = "star", hosts = 3 }', '{ kind = "graph", file = "net.txt" }')
    one = recorded(tmp_path, text)
    assert load_result_scenario(one, [], no_traces)[0].digest() == load_scenario(tmp_path / "a.toml").digest()
    graph.write_text("h0 s0\nh1 s0\nh2 s0\nh3 s0\n")
    with pytest.raises(
        ResultError, match=r"topology.file has changed since; expected the file /.*net.txt with SHA-256"
    ):
        load_result_scenario(one, [], no_traces)
    graph.unlink()
    with pytest.raises(GradwireError, match="no such file"):
        load_result_scenario(one, [], no_traces)


def test_error_names_changed_trace(tmp_path: Path):
    one = recorded(tmp_path)
    summary = json.loads((one / "result.json").read_text())
    (one / "result.json").write_text(json.dumps({**summary, "trace_hash": "0123456789abcdef"}))
    text = (one / "scenario.toml").read_text()
    (one / "scenario.toml").write_text(
        text + '[[job]]\nname = "j"\ntrace = "resnet50"\nworkers = 2\nexchange = { kind = "ring" }\n'
    )
    with pytest.raises(ResultError, match=r"trace 'resnet50' of job j has changed; expected SHA-256 0123456789ab"):
        load_result_scenario(one, [], lambda scenario: ["f" * 64])
    assert load_result_scenario(one, [], lambda scenario: ["0123456789abcdef"])[0].job[0].name == "j"


def test_rerun_notes_version_and_early_end(tmp_path: Path):
    one = recorded(tmp_path)
    summary = json.loads((one / "result.json").read_text())
    summary["versions"]["numpy"] = "0.1"
    summary["totals"]["ended_by"] = "max_wall"
    (one / "result.json").write_text(json.dumps(summary))
    _, said = load_result_scenario(one, [], no_traces)
    assert [line.split(",")[0] for line in said] == ["it was made with numpy 0.1", "it was ended by max_wall"]


def test_rerun_error_states_the_reason(tmp_path: Path):
    one = recorded(tmp_path)
    (one / "scenario.toml").rename(tmp_path / "kept.toml")
    with pytest.raises(ResultError, match="does not hold its scenario"):
        load_result_scenario(one, [], no_traces)
    (tmp_path / "kept.toml").rename(one / "scenario.toml")
    summary = json.loads((one / "result.json").read_text())
    (one / "result.json").write_text(json.dumps({**summary, "engine": {"clock": "virtual"}}))
    with pytest.raises(ResultError, match=r"emulated, not.*gradwire emulate .*scenario.toml --clock virtual"):
        load_result_scenario(one, [], no_traces)
    programs = {"command": ["python", "train.py", "--name", "a b"]}
    (one / "result.json").write_text(json.dumps({**summary, "engine": {"clock": "wall"}, "programs": programs}))
    again = r"gradwire exec .*scenario.toml --clock wall -- python train.py --name 'a b'"
    with pytest.raises(ResultError, match=again):
        load_result_scenario(one, [], no_traces)


@pytest.mark.slow
def test_rerun_of_comparison_results_is_byte_identical(own_directory: Path):
    Path("a.toml").write_text(
        SMALL + '[[policy]]\nname = "deep"\nlabel = "Deep"\n[policy.set.switch]\nbuffer = "2MiB"\n'
        '[[policy]]\nname = "newreno"\n[policy.set]\ntransport = "tcp_newreno"\n'
    )
    done = run("compare", "a.toml", "--set", "traffic.size=30kB", "--out", "all", timeout=300)
    assert done.returncode == 0, done.stderr
    for name in ("deep", "newreno"):
        before = Path("all/results") / name
        done = run("run", str(before), "--out", f"again-{name}", timeout=300)
        assert done.returncode == 0, done.stderr
        assert same_but_timing(before, Path(f"again-{name}")) == ["timing.json"]
    timing = Result.read("all/results/deep").timing
    assert timing["command"] == "gradwire compare a.toml --set traffic.size=30kB --out all"
    assert (timing["scenario"], timing["overrides"]) == ("a.toml", ["traffic.size=30kB"])
    refused = run("run", "all")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "holds several Results; expected one of them: all/results/deep, all/results/newreno" in refused.stderr
    changed = run("run", "again-deep", "--set", "traffic.size=40kB", "--out", "other", timeout=300)
    assert changed.returncode == 0, changed.stderr
    assert Result.read("other").messages["bytes"].to_pylist() == [40_000, 40_000]
    assert Result.read("other").summary["policy"] == "deep"
    assert build_scenario(tomllib.loads(Result.read("other").scenario)).traffic[0].name == "burst"
