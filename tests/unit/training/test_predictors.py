"""Predictors of parameters: how they are made, and what is refused."""

from __future__ import annotations

import errno
import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner
from warm import Warm

torch = pytest.importorskip("torch")

import numpy as np  # noqa: E402

from gradwire import cli  # noqa: E402
from gradwire.scenarios.errors import ResultError, ScenarioError, TraceError  # noqa: E402
from gradwire.studies.training.predictor_making import PredictorPlan, make_predictor  # noqa: E402
from gradwire.training.data import images  # noqa: E402
from gradwire.training.parameter_server.block_predictor import BlockPredictor  # noqa: E402
from gradwire.training.parameter_server.mp2_trainer import Mp2Trainer  # noqa: E402
from gradwire.training.parameter_server.predictor import load_predictor, save_predictor  # noqa: E402
from gradwire.training.parameter_server.predictor_file import BUNDLED, BUNDLED_FILES  # noqa: E402
from gradwire.training.parameter_server.weight_nowcaster import WeightNowcaster  # noqa: E402
from gradwire.training.parameter_server.wnn_trainer import WnnTrainer  # noqa: E402
from gradwire.training.systems.mp2 import MP2  # noqa: E402
from gradwire.training.trainer import Recipe  # noqa: E402
from tests.support.training_cases import resnet  # noqa: E402

DATA = images("synthetic", 8, limit=400)


@pytest.mark.parametrize(("kind", "name"), BUNDLED_FILES)
def test_bundled_predictors_are_small_and_record_provenance(kind: str, name: str) -> None:
    net, manifest = load_predictor(kind, name)
    most = 15_000 if kind == "mp2" else 30_000
    assert sum(p.numel() for p in net.parameters()) < most
    assert (BUNDLED / BUNDLED_FILES[kind, name]).stat().st_size < 6 * most
    assert (
        manifest["command"].startswith("gradwire predictor")
        and manifest["date"]
        and len(manifest["plan"]["seeds"]) >= 2
    )
    assert manifest["error"]["predicted"] < 1, "better than to stay"
    if kind == "mp2":
        assert manifest["error"]["predicted"] < manifest["error"]["hold"]
    else:
        for parameters in ("conv", "fc", "bias"):
            assert manifest["error"][f"predicted_{parameters}"] < manifest["error"][f"linear_{parameters}"]
    if name == "several":
        assert (
            set(manifest["plan"]["models"])
            == set(manifest["error_by_model"])
            == {"resnet8", "vgg11-quarter", "char-lstm"}
        )
        assert all(each["predicted"] < each["hold"] for each in manifest["error_by_model"].values())


def test_every_bundled_predictor_file_is_registered() -> None:
    assert sorted(BUNDLED_FILES.values()) == sorted(each.name for each in BUNDLED.iterdir())


PLAN = PredictorPlan(seeds=(1, 2), size=8, limit=96, workers=2, batch=8, steps=60, epochs=2)


@pytest.mark.parametrize("kind", ["mp2", "wnn"])
def test_predictor_is_made_loaded_and_reused(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[tuple[float, str]] = []
    manifest = make_predictor(
        kind, tmp_path / "new.npz", PLAN, on_progress=lambda share, words: heard.append((share, words))
    )
    shares = [share for share, _ in heard]
    assert shares == sorted(shares) and shares[-1] == 1 and "seed 2" in heard[100][1]
    net, read = load_predictor(kind, tmp_path / "new.npz")
    assert read == json.loads(json.dumps(manifest)) and read["plan"]["seeds"] == [1, 2]
    system = Mp2Trainer if kind == "mp2" else WnnTrainer
    more = (MP2(predictor=str(tmp_path / "new.npz")),) if kind == "mp2" else ()
    named = {} if kind == "mp2" else {"predictor": str(tmp_path / "new.npz")}
    system(resnet(), DATA, Recipe(workers=2, batch=8, steps=2), *more, **named).step()
    for name in ("block_fitting.sample_blocks", "predictor_fitting.sample_scalars"):
        monkeypatch.setattr(
            f"gradwire.training.parameter_server.{name}", lambda *_: pytest.fail("what is done is not done again")
        )
    make_predictor(kind, tmp_path / "new.npz", PLAN)
    again, _ = load_predictor(kind, tmp_path / "new.npz")
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), again.parameters(), strict=True))
    with pytest.raises(ResultError, match="of another plan"):
        make_predictor(kind, tmp_path / "new.npz", PredictorPlan(seeds=(1, 3)))


@pytest.mark.slow
def test_predictor_is_made_from_image_and_text_models(tmp_path: Path) -> None:
    """Each of two models is trained on its own data with its own rate. Held-out errors are reported for both
    together and for each."""
    plan = replace(PLAN, models=("resnet8", "char-lstm"), epochs=1)
    manifest = make_predictor("mp2", tmp_path / "both.npz", plan)
    assert {path.name for path in (tmp_path / "both.npz.work").glob("*.pt")} == {
        "resnet8-1.pt", "resnet8-2.pt", "char-lstm-1.pt", "char-lstm-2.pt", "fitting.pt",
    }  # fmt: skip
    each = manifest["error_by_model"]
    assert set(each) == {"resnet8", "char-lstm"} and each["resnet8"] != each["char-lstm"]
    for how, both in manifest["error"].items():
        assert 0.9 * min(e[how] for e in each.values()) <= both <= 1.1 * max(e[how] for e in each.values())
    lstm = torch.load(tmp_path / "both.npz.work" / "char-lstm-2.pt", weights_only=True)
    assert not lstm["x"][:, 4].any() and len(lstm["target"])


def test_wrong_or_invalid_predictor_files_are_rejected(tmp_path: Path) -> None:
    save_predictor(tmp_path / "wnn.npz", WeightNowcaster(), {"kind": "wnn"})
    save_predictor(tmp_path / "small.npz", BlockPredictor(8), {"kind": "mp2"})
    (tmp_path / "text.npz").write_text("mine")
    np.savez(tmp_path / "bare.npz", x=np.zeros(3))
    for name, words in (
        ("wnn", "is a predictor for wnn"),
        ("small", "is not a predictor"),
        ("text", "is not a predictor"),
        ("bare", "is not a predictor"),
        ("nowhere", "cannot be read"),
    ):
        with pytest.raises(TraceError, match=words):
            load_predictor("mp2", tmp_path / f"{name}.npz")


def test_non_array_predictor_files_give_one_clear_error(tmp_path: Path) -> None:
    """NumPy's own messages, which advise to allow pickles, do not appear."""
    np.save(tmp_path / "one.npy", np.zeros(3))
    np.savez(tmp_path / "objects", manifest=np.array([{}], dtype=object))
    np.savez(tmp_path / "whole", manifest=np.zeros(3))
    whole = (tmp_path / "whole.npz").read_bytes()
    contents = {
        "text": b"mine",
        "empty": b"",
        "zip": b"PK\3\4 and no more",
        "cut": whole[:-30],
        "damaged": whole.replace(b"\x93NUMPY", b"NUMPY\x93"),
    }
    for name, content in contents.items():
        (tmp_path / f"{name}.npz").write_bytes(content)
    for name in ("one.npy", "objects.npz", *(f"{name}.npz" for name in contents)):
        with pytest.raises(
            TraceError,
            match=r"is not a predictor \(not an \.npz file of numbers\); expected a file that `gradwire predictor mp2` wrote",
        ):
            load_predictor("mp2", tmp_path / name)
    np.savez(tmp_path / "texts.npz", manifest=np.array(json.dumps({"kind": "mp2"})), x=np.array("words"))
    for name in ("whole", "texts"):
        with pytest.raises(TraceError, match="is not a predictor"):
            load_predictor("mp2", tmp_path / f"{name}.npz")


def test_unwritable_predictor_path_is_rejected_before_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Paths are folders, have a file as parent, or cannot be written; no file is left there."""
    monkeypatch.setattr("gradwire.studies.training.predictor_making._trainers", lambda *_: pytest.fail("data is read"))
    (tmp_path / "folder").mkdir()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("mine")
    (tmp_path / "file").write_text("mine")
    before = sorted(tmp_path.rglob("*"))
    for name, words in (
        ("folder", "folder: is a folder; expected a file"), ("full", "full: is a folder"), ("file/new.npz", "has a parent that is not a folder"),
        ("", r"make_predictor\(out\): is empty"), ("n" * 300, "the name is too long"), ("folder/a\0b", "zero byte"),
    ):  # fmt: skip
        with pytest.raises(ResultError, match=words):
            make_predictor("mp2", f"{tmp_path / name}" if name else "", PLAN)
    for refused in ("folder", "full"):
        done = CliRunner().invoke(cli.app, ["predictor", "mp2", "--out", str(tmp_path / refused)])
        assert done.exit_code == 2 and "is a folder" in done.stderr
    monkeypatch.setattr(
        "gradwire.studies.training.predictor_making.os.access", lambda *_: False
    )  # root may write anywhere
    with pytest.raises(ResultError, match="file: may not be written there"):
        make_predictor("mp2", tmp_path / "file", PLAN)
    assert sorted(tmp_path.rglob("*")) == before


def test_full_disk_preserves_old_predictor_and_training_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same command can resume from the work folder."""

    def full(path: Path, *_: object) -> None:
        path.write_text("half")
        raise OSError(errno.ENOSPC, "No space left on device")

    (tmp_path / "old.npz").write_text("mine")
    monkeypatch.setattr("gradwire.training.parameter_server.predictor.save_predictor", full)
    with pytest.raises(ResultError, match=r"old\.npz: no space left on device"):
        make_predictor("wnn", tmp_path / "old.npz", replace(PLAN, epochs=1))
    assert (tmp_path / "old.npz").read_text() == "mine" and {each.name for each in tmp_path.iterdir()} == {
        "old.npz",
        "old.npz.work",
    }


@pytest.mark.slow
def test_predictor_command_makes_and_reuses_predictor(tmp_path: Path) -> None:
    """The first call prints the manifest as JSON; the second reuses the files."""
    words = [
        "mp2",
        "--size",
        "8",
        "--samples",
        "200",
        "--steps",
        "60",
        "--epochs",
        "1",
        "--seed",
        "1",
        "--seed",
        "2",
        "--out",
        "p.npz",
    ]
    for more in (["--json"], []):
        done = Warm.with_torch().run("predictor", *words, *more, timeout=240)
        assert done.returncode == 0, done.stderr
        if more:
            manifest = json.loads(done.stdout)
            assert manifest == load_predictor("mp2", tmp_path / "p.npz")[1] and manifest["plan"]["steps"] == 60
    assert "in an unseen training run: predicted 0." in done.stdout and done.stdout.endswith("predictor: p.npz\n")


@pytest.mark.slow
def test_predictor_command_reports_errors_in_one_line(tmp_path: Path) -> None:
    for words, said in (
        (["xyz"], "has no predictor"),
        (["mp2", "--seed", "1"], "two or more"),
        (["mp2", "--model", "resnet9"], "did you mean"),
        (["wnn", "--model", "bert-base"], "learns masked"),
        (["mp2", "--data", "nowhere"], "no such data"),
    ):
        done = Warm.with_torch().run("predictor", *words, "--out", "p.npz")
        assert done.returncode == 2 and said in done.stderr and "Traceback" not in done.stderr, done.stderr
    with pytest.raises(ScenarioError, match="1 seeds"):
        make_predictor("mp2", tmp_path / "p.npz", PredictorPlan(seeds=(1,)))
    assert not list(tmp_path.iterdir())
