"""What is said of a training's folder that is another one's, or where no training belongs."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

torch = pytest.importorskip("torch")

from gradwire import cli  # noqa: E402
from gradwire.scenarios.errors import GradwireError, ResultError, ScenarioError  # noqa: E402
from gradwire.scenarios.loading.load import load_scenario  # noqa: E402
from gradwire.studies.training.run import train  # noqa: E402

SHORT = ["training.steps=2", "training.samples=100", "training.size=8", "training.batch=4", "job.workers=2"]


def tiny(*more: str, policy: str = "dlcp"):
    return load_scenario(
        "train-tiny", set=[*SHORT, "training.network={loss=0.2}", "training.keep_missing=true", *more], policy=policy
    )


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    for policy in ("dlcp", "dctcp"):
        train(tiny(policy=policy), folder / policy)
    (folder / "trainings.txt").write_text("This folder holds training runs by gradwire, which resumes it.\n")
    return folder


@pytest.mark.parametrize(("network", "words"), [
    ("{replay = 'x', seed = 1}", "training.network.seed: unknown key; expected only replay"),
    ("{replay = 'x', loss = 0.1}", "training.network.loss: unknown key; expected only replay"),
    ("{replay = 3}", 'training.network.replay: is of the wrong type (got 3); expected text in quotes'),
    ("{loss = 0.1, seeds = 1}", 'training.network.seeds: unknown key; expected "seed"'),
    ("{loss = 'x'}", "training.network.loss: "),
])  # fmt: skip
def test_error_names_invalid_network_key(network: str, words: str) -> None:
    with pytest.raises(ScenarioError) as told:
        load_scenario("train-tiny", set=[f"training.network={network}"])
    assert words in str(told.value)


def test_replay_of_parent_folder_suggests_run_folders(trained: Path) -> None:
    with pytest.raises(ResultError) as told:
        train(tiny(f'training.network={{replay="{trained}"}}', "training.keep_missing=false"))
    assert str(told.value) == (
        f"{trained}: holds 2 training runs; "
        f"expected the folder of a training run with training.keep_missing = true, such as {trained}/dctcp or {trained}/dlcp"
    )


def test_replay_of_seeds_folder_suggests_run_folders(trained: Path, tmp_path: Path) -> None:
    """Suggestions are in the order of the seeds, and of their policies."""
    for seed in (10, 9):
        shutil.copytree(trained, tmp_path / "seeds" / f"seed-{seed}")
    with pytest.raises(
        ResultError,
        match=r"seeds: holds 4 training runs; .*such as \S*/seed-9/dctcp or \S*/seed-9/dlcp or \S*/seed-10/dctcp$",
    ):
        train(tiny(f'training.network={{replay="{tmp_path / "seeds"}"}}', "training.keep_missing=false"))


@pytest.mark.parametrize(("more", "words"), [
    (["training.steps=5"], "training.steps 2 -> 5;"),
    (["link.rate=10Gbps", "training.steps=5"], 'link.rate "1Gbps" -> "10Gbps", training.steps 2 -> 5;'),
    (["job.push_bound=0.2"], "job[0].push_bound 0.1 -> 0.2;"),
    (['training.reducer={kind="topk", ratio=0.1}'], 'training.reducer.kind nothing -> "topk", training.reducer.ratio nothing -> 0.1;'),
    (["seed=3", "link.rate=2Gbps", "link.latency=1us", "training.steps=5", "training.batch=5"], 'link.rate "1Gbps" -> "2Gbps", link.latency "2us" -> "1us", training.batch 4 -> 5 and 2 more;'),
])  # fmt: skip
def test_scenario_mismatch_error_lists_differing_keys(trained: Path, more: list[str], words: str) -> None:
    with pytest.raises(ResultError) as told:
        train(tiny(*more), trained / "dlcp")
    said = str(told.value)
    assert said.startswith(f"{trained}/dlcp: holds a training run of another scenario: ") and words in said
    assert said.endswith(f"; expected as {trained}/dlcp/scenario.toml says, or a new folder")


@pytest.mark.parametrize("command", ["timeline", "tensors", "compare", "telemetry"])
def test_run_commands_reject_training_run_folders(trained: Path, command: str) -> None:
    for folder in (trained / "dlcp", trained):
        both = [str(folder)] * (2 if command == "compare" else 1)
        done = CliRunner().invoke(cli.app, [command, *both])
        said = " ".join(done.output.split())
        what = "holds training runs, not a Result" if folder == trained else "is a training run, not a Result"
        assert done.exit_code == 2 and f"{folder}: {what}; expected " in said and "gradwire report" in said, said
    with pytest.raises(GradwireError, match="is a training run, not a Result"):
        from gradwire.result_store.result import Result

        Result.read(trained / "dlcp")
