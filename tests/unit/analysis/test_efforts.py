"""Reproductions that take hours: what they would run and how long, and that they go on wherever they are stopped."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from warm import Warm

pytest.importorskip("torch")

from gradwire.result_store.training_result import TrainingResult
from gradwire.studies.reproduce import claims_of
from gradwire.studies.reproduce import runner as reproductions
from gradwire.studies.reproduce.claim import Claim, Setting
from gradwire.studies.reproduce.run_plan import all_runs, runs_of_claim
from gradwire.studies.reproduce.run_store import RunStore
from gradwire.studies.training import cost_estimate as door
from gradwire.studies.training.cost_estimate import TrainingCost, estimate_costs, held_out_samples, steps_of
from tests.support.reproduction_cases import interrupted

ROOT = Path(__file__).resolve().parents[3]


def _steps(setting: str, steps: int, full_only: bool = False) -> Setting:
    training: dict[str, Any] = {
        "model": "resnet8", "data": "synthetic", "size": 8, "samples": 200, "batch": 4, "steps": steps, "augment": False,
        "network": "ideal", "score_every": 4,
    }  # fmt: skip
    changes = {"training": training, "job": {"workers": 2}}
    return Setting(setting, "train-tiny", ("lossless", "p0.3"), changes, full_only, baseline="lossless")


CLAIM = Claim("T", "[ours]", "s", "p", (_steps("long", 9, True), _steps("short", 6)), (), "accuracy")


def test_training_cost_matches_hand_computed_value() -> None:
    """The cost is 9 steps of 2 s, three evaluations of 200 pictures at 10 ms, and 5 s."""
    (run, *_) = runs_of_claim(CLAIM, 1, True)
    assert steps_of(run) == 9 and held_out_samples(run.scenario.training) == 200
    assert TrainingCost(2.0, 0.01, 5.0).of(run) == pytest.approx(9 * 2 + 3 * 200 * 0.01 + 5)


def test_step_counts_follow_from_epochs() -> None:
    """8 workers with batches of 16 take 390 steps per epoch of 50,000 pictures."""
    found = {}
    data = {"pictures": "synthetic", "text": __file__}
    for run in runs_of_claim(claims_of(["tolerance"], ["S6"])[0], 1, True, data):
        found[run.setting] = steps_of(run), held_out_samples(run.scenario.training)
    assert found["ResNet-20, 50,000 pictures, 20 epochs"] == (7800, 10_000)
    assert found["ResNet-8, 10,000 pictures, 3 epochs"] == (234, 10_000)
    assert found["LSTM of characters, 3,000 steps"] == (3000, Path(__file__).stat().st_size // 10 // 32)


def test_cost_estimate_times_each_kind_of_training_run_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seeds and lengths share a kind, variants do not, and simulations are not timed."""
    timed: list[Any] = []
    monkeypatch.setattr(door, "_time_steps", lambda run, read: (timed.append(run), TrainingCost(1.0, 0.0, 0.0))[1])
    runs = runs_of_claim(CLAIM, 3, True)
    found = estimate_costs(runs, lambda share, words: None)
    assert sorted({run.policy for run in timed}) == ["lossless", "p0.3"] and len(timed) == 2
    assert {(run.setting, found[run.key]) for run in runs} == {("long", 9.0), ("short", 6.0)}
    assert estimate_costs(runs_of_claim(claims_of(["dlcp"], ["S2"])[0], 1, False), lambda share, words: None) == {}


def test_listing_leaves_the_output_directory_unchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A listing counts begun runs by their steps and damaged runs as missing."""
    monkeypatch.setattr("gradwire.studies.reproduce.claims_of", lambda name, chosen: [CLAIM])
    monkeypatch.setattr(door, "_time_steps", lambda run, read: TrainingCost(1.0, 0.0, 0.0))
    out = tmp_path / "out"
    before = reproductions.Reproduction(["tolerance"], out, full=True, seeds=1).costs()
    assert not out.exists() and [(row.setting, row.runs, row.kept, row.steps, row.left_s) for row in before] == [
        ("long", 2, 0, 9, 18.0), ("short", 2, 0, 6, 12.0),
    ]  # fmt: skip
    reproductions.Reproduction(["tolerance"], out, seeds=1).run()
    store, runs = RunStore(out), all_runs([runs_of_claim(CLAIM, 1, True)])
    begun, done = (
        next(run for run in runs if run.setting == name and run.policy == "p0.3") for name in ("long", "short")
    )
    with pytest.raises(KeyboardInterrupt), interrupted(after=5):
        reproductions._one(begun, store)
    (store.place(done.key) / "training.json").write_text("no")
    files = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    after = {row.setting: row for row in reproductions.Reproduction(["tolerance"], out, full=True, seeds=1).costs()}
    assert files == {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    assert (after["long"].kept, after["long"].begun, after["long"].left_s) == (0, 1, pytest.approx(9 + 9 * 5 / 9))
    assert (after["short"].kept, after["short"].begun, after["short"].left_s) == (1, 0, 6.0)


def test_cost_estimate_times_training_steps_and_evaluations(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fake clock advances by a second with each step and each evaluation."""
    from gradwire.training.trainer import Trainer

    now = [0.0]
    step, score = Trainer.step, Trainer.score

    def slow(of: Any) -> Any:
        return lambda self, *more: (now.__setitem__(0, now[0] + 1.0), of(self, *more))[1]

    monkeypatch.setattr(Trainer, "step", slow(step))
    monkeypatch.setattr(Trainer, "score", slow(score))
    monkeypatch.setattr("gradwire.studies.training.cost_estimate.time.process_time", lambda: now[0])
    runs = runs_of_claim(CLAIM, 1, False)
    assert set(estimate_costs(runs, lambda share, words: None).values()) == {6 * 1.0 + 2 * 200 * 1.0 / 200}


def test_full_reproduction_starts_with_the_shortest_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Progress is weighted by the estimated times of runs."""
    monkeypatch.setattr("gradwire.studies.reproduce.claims_of", lambda name, chosen: [CLAIM])
    monkeypatch.setattr(door, "_time_steps", lambda run, read: TrainingCost(1.0, 0.0, 0.0))
    made, heard = [], []
    one = reproductions._one
    monkeypatch.setattr(reproductions, "_one", lambda run, store: (made.append(run.setting), one(run, store))[1])
    reproduction = reproductions.Reproduction(["tolerance"], tmp_path / "out", full=True, seeds=1)
    reproduction.run(on_progress=lambda share, words: heard.append((share, words)))
    assert made == ["short", "short", "long", "long"]
    shares = [share for share, words in heard if "runs" in words and "timing" not in words]
    assert shares == pytest.approx([0, 6 / 30, 12 / 30, 21 / 30, 1])


def _command(out: Path, *more: str, at: str = "", after: int = 0) -> subprocess.CompletedProcess[str]:
    """A full reproduction of a small claim in a process of its own, to which a signal is sent in the step after so many."""
    code = f"from tests.support.reproduction_cases import main; main({at!r}, {after})"
    line = ["-c", code, "reproduce", "tolerance", "--full", "--seeds", "1", "--jobs", "1", "--out", str(out), *more]
    return Warm.with_torch().run(*line, timeout=240)


@pytest.mark.parametrize(("at", "code"), [("SIGINT", 130), ("SIGKILL", -signal.SIGKILL)])
def test_stopped_reproduction_resumes_from_its_checkpoint(
    tmp_path: Path, at: str, code: int, whole: dict[str, Any]
) -> None:
    """Finished runs are not repeated, begun runs continue, and the figures stay equal."""
    out = tmp_path / "out"
    stopped = _command(out, at=at, after=2 * 2 + 6 + 4)
    assert stopped.returncode == code and "Traceback" not in stopped.stderr, stopped.stderr
    kept = {
        path.parent.name: TrainingResult.read(path.parent).summary["steps_done"] for path in out.rglob("training.json")
    }
    assert sorted(kept.values()) == [4, 6], "one is over, one has a checkpoint"
    rows = json.loads(_command(out, "--list", "--json").stdout)
    assert (
        (rows["runs"], rows["kept"]) == (2, 1)
        and 0 < rows["left_s"]
        and [row["begun"] for row in rows["settings"]] == [1]
    )
    over = next(out / "runs" / key / "steps.parquet" for key, steps in kept.items() if steps == 6)
    before = over.stat().st_mtime_ns
    done = _command(out, at="SIGKILL", after=2 + 2)
    assert done.returncode == 0, f"no more than two steps that are timed, and two that were left: {done.stderr}"
    assert over.stat().st_mtime_ns == before
    figures = json.loads((out / "claims.json").read_text())
    assert (
        len(figures["claims"][0]["measures"]) == 2
        and figures["claims"][0]["measures"] == whole["claims"][0]["measures"]
    )


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The values of a reproduction in one go."""
    out = tmp_path_factory.mktemp("whole") / "out"
    assert _command(out).returncode == 0
    found: dict[str, Any] = json.loads((out / "claims.json").read_text())
    return found


def test_cost_estimate_prices_a_system_whose_first_step_sends_nothing() -> None:
    """Local SGD exchanges at its ninth step; the step times at other rates are those of all parameters."""
    training = {
        **_steps("local", 20).changes["training"],
        "system": {"kind": "partial_averaging", "share": 1.0, "every": 9},
    }
    setting = Setting(
        "local", "train-tiny", ("lossless",), {"training": training, "job": {"workers": 2}}, rates=("1Gbps",)
    )
    (run, *_) = runs_of_claim(Claim("T", "[ours]", "s", "p", (setting,), (), "accuracy"), 1, False)
    (seconds,) = estimate_costs([run], lambda share, words: None).values()
    assert seconds > 0
