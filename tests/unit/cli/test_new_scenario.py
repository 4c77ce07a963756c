"""`gradwire new scenario`, `list`, `trace model` and the cost in `check`: written scenarios are valid without a remark."""

from __future__ import annotations

import json
import os
import pty
import subprocess
from pathlib import Path

import pytest
from output_cases import gradwire_command, run

from gradwire.scenarios.loading.load import load_scenario
from gradwire.scenarios.loading.registry import components
from gradwire.scenarios.validation.scenario import notes
from gradwire.sim.cost_estimate import estimate_cost
from gradwire.sim.preparation import check_variants, prepare_inputs
from gradwire.sim.simulate import simulate
from gradwire.studies.catalog import KINDS, catalog
from gradwire.studies.fabrics import FABRICS
from gradwire.traces.presets.model_specs import MODEL_SPECS

SMALL = ("--model", "vit-l", "--layers", "1", "--micro-batch", "1", "--gpus", "4", "--fabric", "leaf-spine-100g")


@pytest.mark.parametrize("answers", [
    ("llama-7b", "--gpus", "64", "--fsdp"), ("llama-7b", "--gpus", "16", "--micro-batches", "4"),
    ("llama-70b", "--gpus", "64", "--tp", "8", "--pp", "4", "--micro-batches", "8"),
    ("gpt3-175b", "--gpus", "32", "--tp", "8", "--recompute"), ("mixtral-8x7b", "--gpus", "64", "--ep", "8", "--fsdp"),
    ("llama-13b", "--gpus", "16", "--tp", "2", "--fsdp", "--length", "2048"), ("dlrm", "--gpus", "32"),
    ("resnet-50", "--gpus", "6", "--fabric", "leaf-spine-100g", "--gpu", "v100"),
    ("vit-l", "--gpus", "16", "--fabric", "rail-200g", "--gpu", "a100"),
])  # fmt: skip
def test_new_scenarios_are_valid_without_a_remark(own_directory: Path, answers: tuple[str, ...]) -> None:
    done = run("new", "scenario", "job.toml", "--model", *answers)
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in own_directory.iterdir()) == ["job.toml", "job.trace"]
    scenario = load_scenario("job.toml")
    assert scenario.job[0].workers == int(answers[2]) and len(scenario.policy) == 3
    variants = scenario.variants()
    check_variants(variants)
    assert notes(variants) == []
    text = Path("job.toml").read_text()
    assert MODEL_SPECS[answers[0]].title in text and "#" in text.splitlines()[0]
    assert all(len(line) <= 120 for line in text.splitlines())


def test_new_scenario_runs_and_is_scaled_up(own_directory: Path) -> None:
    assert run("new", "scenario", "job.toml", *SMALL).returncode == 0
    done = run("run", "job.toml", "--policy", "as-built", "--json")
    assert done.returncode == 0, done.stderr
    (verdict,) = json.loads(done.stdout)["verdicts"]
    assert "Scaled from 1 to all 24 layers of ViT-L/16, an iteration takes " in verdict["text"]
    assert verdict["runs"][0]["model"]["layers"] == {"kept": 1, "of": 24}


def test_new_scenario_takes_a_trace_instead_of_a_model(own_directory: Path) -> None:
    done = run("new", "scenario", "mine.toml", "--trace", "resnet20", "--gpus", "4", "--fabric", "leaf-spine-100g")
    assert done.returncode == 0, done.stderr
    assert [path.name for path in own_directory.iterdir()] == ["mine.toml"]
    assert load_scenario("mine.toml").job[0].trace == "resnet20"
    check_variants(load_scenario("mine.toml").variants())


@pytest.mark.parametrize("command, said", [
    (("--model", "llama-7", "--gpus", "8"), "did you mean 'llama-7b'"), (("--gpus", "8"), "--model: is missing"),
    (("--model", "llama-7b"), "--gpus: is missing"), (("--model", "llama-7b", "--gpus", "12"), "a multiple of 8"),
    (("--model", "llama-7b", "--gpus", "16", "--fabric", "rail-400"), "did you mean 'rail-400g'"),
    (("--model", "llama-7b", "--trace", "resnet20", "--gpus", "8"), "are both given"),
    (("--model", "resnet-50", "--gpus", "16", "--tp", "2"), "cannot be divided"),
    (("--model", "llama-7b", "--gpus", "16", "--pp", "2", "--fsdp"), "--fsdp: has no effect with --pp"),
    (("--trace", "resnet20", "--gpus", "16", "--gpu", "a100", "--length", "7"), "--gpu, --length: has no effect"),
    (("--model", "vit-l", "--gpus", "16", "--micro-batches", "99999"), "job.toml: invalid scenario"),
])  # fmt: skip
def test_wrong_answers_are_refused_and_nothing_is_written(
    own_directory: Path, command: tuple[str, ...], said: str
) -> None:
    done = run("new", "scenario", "job.toml", *command)
    assert done.returncode == 2 and said in done.stderr and "Traceback" not in done.stderr
    assert list(own_directory.iterdir()) == []


def test_existing_scenarios_are_replaced_only_with_force(own_directory: Path) -> None:
    assert run("new", "scenario", "job.toml", *SMALL).returncode == 0
    Path("job.toml").write_text(Path("job.toml").read_text() + "# mine")  # a scenario is a text that people edit
    assert "exists already" in run("new", "scenario", "job.toml", *SMALL).stderr
    assert Path("job.toml").read_text().endswith("# mine")
    assert run("new", "scenario", "job.toml", *SMALL, "--force").returncode == 0
    assert load_scenario("job.toml").name == "job" and "# mine" not in Path("job.toml").read_text()
    Path("other.trace").mkdir()
    Path("other.trace/mine").touch()
    done = run("new", "scenario", "other.toml", *SMALL, "--force")
    assert done.returncode == 2 and "cannot be replaced" in done.stderr and Path("other.trace/mine").exists()
    assert "a folder that exists" not in done.stderr and not Path("other.toml").exists()


@pytest.mark.parametrize("foreign", ["folder", "link", "file in the trace"])
def test_force_leaves_files_that_are_no_earlier_output(own_directory: Path, foreign: str) -> None:
    assert run("new", "scenario", "first.toml", *SMALL).returncode == 0
    if foreign == "folder":
        Path("job.toml").mkdir()
    elif foreign == "link":
        Path("job.toml").symlink_to("first.toml")
    else:
        Path("first.trace").rename("job.trace")
        Path("job.trace/mine.txt").touch()
    before = sorted(own_directory.rglob("*"))
    done = run("new", "scenario", "job.toml", *SMALL, "--force")
    assert done.returncode == 2 and ("cannot be replaced" in done.stderr or "exists already" in done.stderr)
    assert sorted(own_directory.rglob("*")) == before


def test_scenario_in_another_folder_finds_its_trace(own_directory: Path) -> None:
    assert run("trace", "model", "resnet-50", "--out", 'my "trace"').returncode == 0
    done = run("new", "scenario", "sub/my job.toml", "--trace", './my "trace"', "--gpus", "16")
    assert done.returncode == 0 and "gradwire check 'sub/my job.toml'" in done.stdout, done.stderr
    assert run("check", "sub/my job.toml").returncode == 0


def test_missing_answers_are_asked_for_on_a_terminal(own_directory: Path) -> None:
    main, side = pty.openpty()
    process = subprocess.Popen(
        gradwire_command("new", "scenario", "job.toml", "--fabric", "leaf-spine-100g", "--layers", "1"),
        stdin=side, stderr=side, stdout=subprocess.PIPE,
    )  # fmt: skip
    os.write(main, b"vit-l\n4\n")
    assert process.wait(120) == 0, os.read(main, 4096)
    shown = os.read(main, 4096).decode()
    assert "Which model? [llama-7b]" in shown and "How many GPUs? [64]" in shown
    assert load_scenario("job.toml").job[0].workers == 4
    os.close(main)
    os.close(side)


@pytest.mark.parametrize("kind", KINDS)
def test_every_listed_name_has_a_line(kind: str) -> None:
    entries = catalog(kind)
    assert entries and all(name for name, _ in entries)
    assert len({name for name, _ in entries}) == len(entries)
    assert sum(bool(line) for _, line in entries) >= 0.7 * len(entries), "some scenarios have no description"


def test_lists_hold_all_components_and_suggest_kinds() -> None:
    done = run("list", "transports", "--json")
    assert set(json.loads(done.stdout)) == set(components("transport"))
    assert dict(catalog("fabrics")).keys() == FABRICS.keys()
    lines = run("list", "balancers").stdout.splitlines()
    assert any(line.startswith("reps ") and "entropies" in line for line in lines)
    assert [line.partition(":")[0] for line in run("list").stdout.splitlines()] == list(KINDS)
    done = run("list", "transport")
    assert done.returncode == 2 and "did you mean 'transports'" in done.stderr


@pytest.mark.parametrize("command, said", [
    (("lsit",), "Did you mean 'list'"), (("run", "demo", "--policy", "dlpc"), "did you mean 'dlcp'"),
    (("check", "demo", "--set", "load_balancing=emcp"), "did you mean 'ecmp'"),
    (("check", "demo", "--set", "transport=dcctp"), "expected dctcp (of"),
    (("check", "demo", "--set", "switch.policy=thresholds"), "did you mean 'threshold'"),
    (("trace", "model", "resnet50"), "did you mean 'resnet-50'"), (("reproduce", "dlpc"), "did you mean 'dlcp'"),
    (("trace", "export", "resnet20", "--format", "chakr", "--out", "x"), "did you mean 'chakra'"),
])  # fmt: skip
def test_names_that_are_nearly_right_are_suggested(own_directory: Path, command: tuple[str, ...], said: str) -> None:
    done = run(*command)
    assert done.returncode == 2 and said in done.stderr


def mfu_bound(*options: str) -> float:
    """Return the MFU in percent that `trace model` prints as the highest possible."""
    done = run("trace", "model", "llama-7b", *options)
    assert done.returncode == 0, done.stderr
    return float(done.stdout.partition("at most an MFU of ")[2].partition(" %")[0])


def test_trace_model_writes_a_trace_and_names_the_keys_of_its_job(own_directory: Path) -> None:
    done = run("trace", "model", "llama-7b", "--gpu", "h100", "--tp", "8", "--fsdp", "--layers", "1")
    assert done.returncode == 0, done.stderr
    assert "Llama 2 7B: 6.74 G parameters; 1 of 32 layers" in done.stdout
    assert 'job: exchange = { kind = "sharded" }' in done.stdout and "job: parallel = {}" in done.stdout
    assert run("trace", "info", "llama-7b-h100").returncode == 0
    alone, sharded = (
        mfu_bound("--layers", "1", "--out", name, *more) for name, more in (("a", ()), ("b", ("--fsdp",)))
    )
    several = mfu_bound("--layers", "1", "--out", "c", "--micro-batches", "1000")
    assert alone < several == pytest.approx(sharded, rel=0.002)
    again = run("trace", "model", "llama-7b", "--layers", "1")
    assert again.returncode == 2 and "exists already" in again.stderr


@pytest.mark.parametrize("changes", [
    {"exchange": {"kind": "ring"}}, {"exchange": {"kind": "parameter_server"}, "servers": 2},
])  # fmt: skip
def test_estimated_packet_hops_are_those_of_a_run(changes: dict[str, object]) -> None:
    """Without losses every packet and its acknowledgement cross the links of the route once."""
    from gradwire.scenarios.schema.scenario import Scenario

    job = {"name": "job", "trace": "resnet20", "workers": 4, "iterations": 3, **changes}
    tables = {
        "name": "cost",
        "topology": {"kind": "leaf_spine", "leaves": 2, "hosts_per_leaf": 4, "spines": 2},
        "switch": {"buffer": "100MB", "ecn_threshold": "50MB"},
        "job": [job],
        "traffic": [{"name": "flows", "kind": "permutation", "size": "100kB"}],
    }
    made = Scenario.model_validate(tables)
    cost = estimate_cost(made, prepare_inputs(made))
    result = simulate(made)
    assert cost is not None and not cost.is_lower_bound
    assert cost.messages == result.messages.num_rows
    assert cost.packet_hops == pytest.approx(result.summary["engine"]["packet_hops"], rel=0.02)


def test_check_prints_the_cost(own_directory: Path) -> None:
    done = run("check", "demo")
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("cost: "))
    assert line.startswith("cost: 3 runs, ") and " packet-hops, about " in line and " of memory" in line
    costs = json.loads(run("check", "demo", "--json").stdout)["costs"]
    assert len(costs) == 3 and all(cost["packet_hops"] > 10**7 for cost in costs)
