"""What one training lost, in another: what has to be the same is compared before anything is trained."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as parquet
import pytest
from typer.testing import CliRunner

torch = pytest.importorskip("torch")

import gradwire  # noqa: E402
from gradwire import cli  # noqa: E402
from gradwire.result_store.training_result import FORMAT  # noqa: E402
from gradwire.scenarios.errors import GradwireError, ResultError, ScenarioError  # noqa: E402
from gradwire.scenarios.loading.load import load_scenario  # noqa: E402
from gradwire.studies.training.run import train  # noqa: E402
from gradwire.training.data import images  # noqa: E402
from gradwire.training.loss_replay.loss_recording import LossRecording, RecordedLossNetwork  # noqa: E402
from gradwire.training.networks.builtin_networks import Random  # noqa: E402
from gradwire.training.trainer import Recipe, Trainer  # noqa: E402
from tests.support.training_cases import plain, resnet  # noqa: E402

SHORT = ["training.steps=3", "training.samples=200", "training.size=8", "training.batch=4", "job.workers=2"]
TOPK = 'training.reducer={kind="topk", ratio=0.05}'
SLIMDP = 'training.system={kind="slimdp"}'
RING = ['job.exchange={kind="ring"}', "job.servers=0", "job.push_bound=0.0"]


def tiny(*more: str):
    return load_scenario("train-tiny", set=[*SHORT, *more], policy="dlcp")


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kept")
    for name, more in (("dense", ()), ("topk", (TOPK, "training.error_feedback=true")), ("slimdp", (SLIMDP,))):
        train(tiny("training.keep_missing=true", "training.network={loss=0.3}", *more), folder / name)
    return folder


def replay(folder: Path, *more: str):
    return train(tiny(f'training.network={{replay="{folder}"}}', *more))


@pytest.mark.parametrize(("name", "more", "words"), [
    ("dense", ["job.workers=3"], "2 workers there, 3 here"),
    ("dense", ["transport.payload=512B"], "payload 4096 there, 512 here"),
    ("dense", RING, "exchange parameter_server there, ring here"),
    ("dense", [TOPK], "reducer none there, topk here"),
    ("topk", [], "reducer topk there, none here"),
    ("topk", ['training.reducer={kind="topk", ratio=0.1}'], r"reducer ratio = 0\.05 there, ratio = 0\.1 here"),
    ("dense", ['training.model="resnet20"'], r"\d+ parameters there, \d+ here"),
    ("dense", ['training.model="resnet20"'], "23 tensors there, 59 here, such as stages.1.0.conv1.weight for stages.0.1.conv1.weight"),
    ("dense", [SLIMDP], "system none there, slimdp here"),
    ("slimdp", [], "system slimdp there, none here"),
    ("slimdp", ['training.system={kind="slimdp", alpha=0.4}'], r"system alpha = 0\.3 there, alpha = 0\.4 here"),
    ("dense", ["training.steps=4"], "3 steps there, 4 here"),
    ("dense", ["job.workers=3", "training.steps=5", TOPK], "2 workers there, 3 here; reducer none there, topk here; 3 steps there, 5 here;"),
])  # fmt: skip
def test_replay_of_different_training_run_is_rejected_before_a_step(
    kept: Path, name: str, more: list[str], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Trainer, "step", lambda self: pytest.fail("a step was trained"))
    with pytest.raises(
        ScenarioError, match=rf"^training\.network\.replay: {kept / name} is of another training run: .*{words}"
    ):
        replay(kept / name, *more)


@pytest.mark.parametrize(("name", "more"), [
    ("dense", ["seed=9", "training.data_seed=4", "training.model_seed=5", "training.batch=8", "training.steps=2"]),
    ("dense", ["training.optimizer.rate=0.01", 'job.fill="rescaled"', "link.rate=10Gbps"]),
    ("slimdp", [SLIMDP, "seed=9"]),
    ("topk", ['training.reducer={kind="topk", ratio=0.05}']),  # without its error feedback
])  # fmt: skip
def test_replay_allows_settings_that_do_not_change_packets(kept: Path, name: str, more: list[str]) -> None:
    assert len(replay(kept / name, *more).steps) == (2 if "training.steps=2" in more else 3)


@pytest.mark.parametrize(("file", "content", "words"), [
    ("training.json", b"{}", "training.json: is of another format"),
    ("training.json", b"\x80garbage", "training.json: is damaged"),
    ("training.json", b"[" * 100_000, "training.json: is damaged"),
    ("training.json", b'{"format": FORMAT, "inputs": 0.5}', "training.json: is damaged: inputs is not a table"),
    ("training.json", b'{"format": FORMAT, "inputs": {"data: a": 1}}', "training.json: is damaged: inputs is not a"),
    ("scenario.toml", b"= what", "scenario.toml: is damaged"),
    ("scenario.toml", b"", "scenario.toml: is damaged"),
    ("rounds.parquet", b"nothing", "rounds.parquet: is damaged"),
    ("rounds.parquet", None, "rounds.parquet: is not there"),
    ("missing.parquet", None, "missing.parquet: is not there"),
])  # fmt: skip
def test_damaged_replay_file_is_named(kept: Path, tmp_path: Path, file: str, content: bytes | None, words: str) -> None:
    shutil.copytree(kept / "dense", tmp_path / "copy")
    place = tmp_path / "copy" / file
    place.unlink() if content is None else place.write_bytes(content.replace(b"FORMAT", b"%d" % FORMAT))
    with pytest.raises(ResultError, match=words):
        replay(tmp_path / "copy")


@pytest.mark.parametrize(("file", "column", "value"), [
    ("rounds.parquet", "time_ps", -5), ("rounds.parquet", "step", -1), ("missing.parquet", "worker", -1), ("missing.parquet", "packets", 0),
])  # fmt: skip
def test_out_of_range_numbers_in_replay_tables_are_rejected(
    kept: Path, tmp_path: Path, file: str, column: str, value: int
) -> None:
    shutil.copytree(kept / "dense", tmp_path / "copy")
    table = parquet.read_table(kept / "dense" / file)
    values = table[column].to_numpy().copy()
    values[-1] = value
    changed = table.set_column(table.column_names.index(column), column, [values])
    parquet.write_table(changed.replace_schema_metadata(table.schema.metadata), tmp_path / "copy" / file)
    with pytest.raises(ResultError, match=f"{file}: is damaged: {column} is {value}; expected {column} from"):
        replay(tmp_path / "copy")


def test_invalid_replay_folders_are_rejected(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for name, words in (("nowhere", "nowhere: is not there"), ("file", "file: is a file"), ("n" * 300, "is not there")):
        with pytest.raises(ResultError, match=words):
            RecordedLossNetwork(tmp_path / name)
    for wrong in (3, None):
        with pytest.raises(ResultError, match=r"Again\(folder\)"):
            RecordedLossNetwork(wrong)


@pytest.mark.parametrize(("missing", "words"), [
    ("true", r"is of another training run: workers 8 there, 2 here; tensors of other sizes"),
    ("false", "run: did not record missing packets; expected the Result of a run with one job"),
])  # fmt: skip
def test_simulated_run_is_rejected_as_recorded_training_run(tmp_path: Path, missing: str, words: str) -> None:
    """Its table of missing packets has other columns, and `ResultLossNetwork` replays it. The command reports in
    one line what does not fit, and leaves no folder."""
    run = load_scenario("train-tiny", set=["job.iterations=1", f"output.missing={missing}"], policy="dlcp")
    gradwire.simulate(run).write(tmp_path / "run")
    with pytest.raises(
        ResultError,
        match=r"run: is the Result of a simulated or emulated run, not of a training run; expected .*keep_missing = true",
    ):
        RecordedLossNetwork(tmp_path / "run")
    asked = ["train", "train-tiny", "--policy", "dlcp", "--out", str(tmp_path / "out")]
    for each in (*SHORT, f'training.network={{replay="{tmp_path / "run"}"}}'):
        asked += ["--set", each]
    done = CliRunner().invoke(cli.app, asked)
    assert done.exit_code == 2 and words in " ".join(done.output.split()) and not (tmp_path / "out").exists()


def test_loss_tables_without_scenario_are_checked_and_replayed(tmp_path: Path) -> None:
    """Python code has recorded them, without a scenario. Older tables without this metadata are accepted."""
    recipe: dict[str, int] = {"batch": 4, "steps": 2, "payload": 400}
    data = images("synthetic", 8, limit=200)
    network = LossRecording(Random(0.3))
    first = Trainer(plain(), data, Recipe(workers=2, **recipe), network=network)
    rows = [first.step() for _ in range(2)]
    network.write(tmp_path)
    again = Trainer(plain(), data, Recipe(workers=2, **recipe), network=RecordedLossNetwork(tmp_path))
    assert [again.step() for _ in range(2)] == rows
    for model, other, words in (
        (plain, Recipe(workers=3, **recipe), "2 workers there, 3 here"),
        (plain, Recipe(workers=2, **{**recipe, "payload": 800}), "payload 400 there, 800 here"),
        (plain, Recipe(workers=2, collective="ring", **recipe), "exchange parameter_server there, ring here"),
        (
            resnet,
            Recipe(workers=2, **recipe),
            "4 tensors there, 23 here, such as 0.weight of 216 elements for conv1.weight of 432 elements",
        ),
    ):
        with pytest.raises(ScenarioError, match=words):
            Trainer(model(), data, other, network=RecordedLossNetwork(tmp_path)).step()
    with pytest.raises(ScenarioError, match="2 steps there, 3 here"):
        Trainer(plain(), data, Recipe(workers=2, **{**recipe, "steps": 3}), network=RecordedLossNetwork(tmp_path))
    table = parquet.read_table(tmp_path / "missing.parquet")
    old = {key: value for key, value in table.schema.metadata.items() if key != b"pushed"}
    parquet.write_table(table.replace_schema_metadata(old), tmp_path / "missing.parquet")
    again = Trainer(plain(), data, Recipe(workers=2, **recipe), network=RecordedLossNetwork(tmp_path))
    assert [again.step() for _ in range(2)] == rows


def test_old_run_folder_is_replayed_with_available_fields(kept: Path, tmp_path: Path) -> None:
    """Fields missing from its training.json are not compared; a scenario that no longer loads is left out."""
    shutil.copytree(kept / "dense", tmp_path / "copy")
    summary = json.loads((tmp_path / "copy" / "training.json").read_text())
    (tmp_path / "copy" / "training.json").write_text(json.dumps({key: summary[key] for key in ("format", "workers")}))
    text = (tmp_path / "copy" / "scenario.toml").read_text()
    (tmp_path / "copy" / "scenario.toml").write_text("old_key = 3\n" + text)
    assert np.isfinite([row["loss"] for row in replay(tmp_path / "copy").steps]).all()
    with pytest.raises(GradwireError, match="2 workers there, 3 here"):
        replay(tmp_path / "copy", "job.workers=3")
