"""`gradwire check` of what `gradwire train` would refuse at once: paths, and replays of other trainings; nothing of it
needs torch, and data are not read."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

torch = pytest.importorskip("torch")

from gradwire import cli  # noqa: E402
from gradwire.scenarios.errors import GradwireError  # noqa: E402
from gradwire.scenarios.loading.load import load_scenario  # noqa: E402
from gradwire.studies.training.run import check_trainings, train  # noqa: E402

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "largest_signs.toml"
SHORT = ["training.steps=3", "training.samples=200", "training.size=8", "training.batch=4", "job.workers=2"]
KEEPING = ["training.keep_missing=true", "training.network={loss=0.3}"]
TOPK = 'training.reducer={kind="topk", ratio=0.05}'
SLIMDP = 'training.system={kind="slimdp"}'
RING = ['job.exchange={kind="ring"}', "job.servers=0", "job.push_bound=0.0"]
SIGNS = 'training.reducer={kind="largest_signs:LargestSigns", ratio=0.05}'


def tiny(*more: str):
    return load_scenario("train-tiny", set=[*SHORT, *more], policy="dlcp")


def signs(*more: str):
    return load_scenario(
        EXAMPLE, set=["training.samples=100", "training.steps=3", "training.batch=4", *more], policy="signs"
    )


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kept")
    for name, more in (("dense", ()), ("topk", (TOPK,)), ("slimdp", (SLIMDP,))):
        train(tiny(*KEEPING, *more), folder / name)
    train(signs(*KEEPING), folder / "signs")
    train(tiny("training.network={loss=0.3}"), folder / "unkept")
    (folder / "empty").mkdir()
    (folder / "file").write_text("mine")
    (folder / "pipe.npz").write_bytes(b"nothing")
    return folder


def both(scenario, words: str) -> None:
    """The check refuses it in the words of the training."""
    said = []
    for refused in (lambda: check_trainings([scenario]), lambda: train(scenario)):
        with pytest.raises(GradwireError) as told:
            refused()
        said.append(str(told.value))
    assert words in said[0] and said[0] == said[1], said


@pytest.mark.parametrize(("more", "words"), [
    (['training.data="{}/nope"'], "nope: no such data folder"),
    (['training.data="{}/file"'], "file: no such data folder"),
    (['training.data="{}/empty"'], "empty: holds no train images"),
    (['training.data="{}/nope"', 'training.model="char-lstm"'], "nope: no such text"),
    (['training.data="{}/empty"', 'training.model="char-lstm"'], "empty: holds no text"),
    (['training.network={{replay="{}/nope"}}'], "nope: is not there"),
    (['training.network={{replay="{}/file"}}'], "file: is a file"),
    (['training.network={{replay="{}/unkept"}}'], "unkept: did not record its lost packets"),
    (['training.system={{kind="mp2", predictor="{}/gone.npz"}}', "job.pull_bound=0"], "gone.npz: cannot be read: No such file"),
    (['training.system={{kind="wnn", predictor="{}/gone.npz"}}', "job.pull_bound=0"], "gone.npz: cannot be read: No such file"),
    (['training.system={{kind="mp2", predictor="{}/pipe.npz"}}'], "pipe.npz: is not a predictor"),
])  # fmt: skip
def test_check_rejects_missing_or_invalid_input_paths(kept: Path, more: list[str], words: str) -> None:
    both(tiny(*(each.format(kept) for each in more)), words)


@pytest.mark.parametrize(("name", "more", "words"), [
    ("dense", ["job.workers=3"], "2 workers there, 3 here"),
    ("dense", ["transport.payload=512B"], "payload 4096 there, 512 here"),
    ("dense", RING, "exchange parameter_server there, ring here"),
    ("dense", [TOPK], "reducer none there, topk here"),
    ("topk", ['training.reducer={kind="topk", ratio=0.1}'], "reducer ratio = 0.05 there, ratio = 0.1 here"),
    ("dense", [SLIMDP], "system none there, slimdp here"),
    ("slimdp", ['training.system={kind="slimdp", alpha=0.4}'], "system alpha = 0.3 there, alpha = 0.4 here"),
    ("dense", ["training.steps=4"], "3 steps there, 4 here"),
])  # fmt: skip
def test_check_rejects_replay_of_different_training_run(kept: Path, name: str, more: list[str], words: str) -> None:
    both(tiny(f'training.network={{replay="{kept / name}"}}', *more), words)


@pytest.mark.parametrize(("more", "words"), [
    (['training.compute="trace"'], "resnet20: has other tensors than the trained model"),
    (['training.compute="trace"', 'training.model="resnet20"', 'job.phase="never"'], "trace resnet20 has no phase 'never'"),
    (["job.push_bound={layers=[0.1, 0.2]}"], "job.push_bound.layers: 2 bounds for the 15 layers of the model, resnet8; expected a list of 15"),
    (["job.pull_bound={layers=[0.1, 0.2]}", 'training.compute="trace"', 'training.model="resnet20"'], "pull_bound.layers: 2 bounds for the 39 layers of trace resnet20"),
    (['job.scheduler={kind="tictac"}', 'training.system={kind="asynchronous"}', "job.pull_bound=0"], "job.scheduler: tictac holds messages back"),
])  # fmt: skip
def test_check_rejects_settings_incompatible_with_model_or_system(more: list[str], words: str) -> None:
    both(tiny(*more), words)


def test_check_accepts_trace_with_different_class_count() -> None:
    """The trace of resnet20 has ten classes; tensors sized by class count may be larger in other data."""
    check_trainings([tiny('training.compute="trace"', 'training.model="resnet20"')])
    check_trainings([tiny(f"job.push_bound={{layers={[0.1] * 15}}}")])


def test_keys_without_effect_on_training_are_noted() -> None:
    from gradwire.scenarios.validation.scenario import remarks

    said = " ".join(remarks(tiny('job.start="1ms"', 'job.phase="early"')))
    assert (
        "job[0].start has no effect: it applies to runs" in said
        and "job[0].phase has no effect: it applies to runs" in said
    )
    said = " ".join(remarks(tiny('training.compute="trace"', 'job.phase="early"')))
    assert "phase" not in said
    beside = 'traffic=[{name="others", kind="poisson", load=0.3, sizes="10kB"}]'
    said = {
        network: " ".join(remarks(tiny(beside, f"training.network={network}")))
        for network in ('"ideal"', "{loss=0.1}", '"simulated"')
    }
    assert ["traffic has no effect on training" in each for each in said.values()] == [True, True, False]


def test_check_rejects_replay_with_another_model_name(kept: Path) -> None:
    asked = tiny(f'training.network={{replay="{kept / "dense"}"}}', 'training.model="resnet20"')
    with pytest.raises(GradwireError, match="model resnet8 there, resnet20 here; expected"):
        check_trainings([asked])


def test_run_with_user_defined_reducer_is_replayed(kept: Path, tmp_path: Path) -> None:
    """The module may lie in another folder, and a default may be written out; other parameters are rejected."""
    again = f'training.network={{replay="{kept / "signs"}"}}'
    for each in (EXAMPLE, EXAMPLE.with_suffix(".py")):
        shutil.copy(each, tmp_path)
    elsewhere = load_scenario(
        tmp_path / EXAMPLE.name,
        set=["training.samples=100", "training.steps=3", "training.batch=4", again],
        policy="signs",
    )
    first = train(signs(*KEEPING[1:]))
    for asked in (signs(again), elsewhere, signs(again, 'training.reducer={kind="largest_signs:LargestSigns"}')):
        check_trainings([asked])
        assert [row["loss"] for row in train(asked).steps] == [row["loss"] for row in first.steps]
    both(signs(again, "training.reducer.ratio=0.1"), "reducer ratio = 0.05 there, ratio = 0.1 here")


def test_check_accepts_trainable_scenarios(kept: Path) -> None:
    for more in ([f'training.network={{replay="{kept / "dense"}"}}'], ['training.system={kind="mp2", predictor="several"}'],
                 ['training.system={kind="mp2", predictor="hold"}'], ['training.system={kind="wnn"}']):  # fmt: skip
        check_trainings([tiny(*more)])


def test_check_command_reports_errors_without_torch(kept: Path) -> None:
    done = CliRunner().invoke(cli.app, ["check", "train-tiny", "--set", 'training.data="/nope"'])
    assert done.exit_code == 2 and "/nope: no such data folder" in " ".join(done.output.split())
    program = (
        "import sys; sys.modules['torch'] = None; from gradwire.cli import app; "
        f"sys.argv = ['gradwire', 'check', 'train-tiny', '--policy', 'dlcp', '--set', 'job.workers=3', '--set', "
        f"'training.network={{replay=\"{kept / 'dense'}\"}}']; app()"
    )
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert told.returncode == 2 and "2 workers there, 3 here" in " ".join(told.stderr.split()), told.stderr


@pytest.mark.parametrize(("more", "words"), [
    ([*RING, TOPK], "cannot add up topk"),
    ([*RING, 'training.reducer={kind="randomk"}'], 'expected job.pull_fill = "zero"'),
    (['job.exchange={kind="halving_doubling"}', "job.servers=0", "job.push_bound=0.0"], "halving_doubling cannot be trained"),
    (["job.accumulate=2"], "micro-batches are not accumulated"),
    (["training.samples=7"], "7 samples for 2 workers with 4 each in a step"),
    (['training.model="vgg11-quarter"', "training.size=4"], "4 pixels of a side are too few"),
    ([SLIMDP, "job.pull_bound=0.1"], "would lose what servers send back"),
    ([SLIMDP, "training.resync=3"], "training.resync"),
    (['training.system={kind="mipd"}', 'job.fill="stale"'], "applies to a mean of workers"),
    (['training.system={kind="mipd", computing=["1ms"]}', "job.jitter=0.5"], "job.jitter: 0.5 applies to a trace's times"),
    (['training.system={kind="mipd", computing=["1ms"]}', "job.compute_scale=0.0"], "job.compute_scale: 0 applies to a trace's times"),
])  # fmt: skip
def test_check_rejects_untrainable_scenarios(more: list[str], words: str) -> None:
    both(tiny('training.network="ideal"', *more), words)


@pytest.mark.parametrize(("more", "words"), [
    (["job.exchange.partition=6000B"], "6000 bytes cut packets"),
    (['job.exchange={kind="parameter_server"}', 'job.scheduler={kind="p3"}'], "p3 partitions gradients itself"),
    (['fault=[{kind="link_down", between=["h0","switch0"], at="1ms"}]'], "happens at times of a whole run"),
    (["job.accumulate=2"], "micro-batches are not accumulated"),
    (['training.system={kind="mipd"}', 'job.order="layer"'], "layer holds messages back"),
    (['training.system={kind="mipd"}', 'job.exchange.server_rate="1Gbps"'], "job.exchange.server_rate"),
])  # fmt: skip
def test_check_rejects_settings_unsupported_by_simulated_network(more: list[str], words: str) -> None:
    both(tiny(*more), words)
