"""Logs of training runs and sweeps, read back with other readers and compared with the tables."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("tensorboard")
pytest.importorskip("wandb")

import gradwire  # noqa: E402
from gradwire.result_store.training_result import TrainingResult  # noqa: E402
from gradwire.scenarios.errors import GradwireError, MissingExtraError  # noqa: E402
from gradwire.studies.run_logs.finished import log_results  # noqa: E402
from gradwire.studies.run_logs.training_log import final_values  # noqa: E402
from tests.support.log_readers import hparams_of, scalars_of, wandb_run  # noqa: E402
from tests.support.sweep_cases import sweep_tables  # noqa: E402
from tests.support.tiny_training import tiny  # noqa: E402

BOTH = ["tensorboard", "wandb:mine"]
STEP_COLUMNS = {
    "train/loss": ("loss", 1), "train/learning_rate": ("rate", 1), "network/time_ms": ("time_ps", 1e9),
    "network/lost_share": ("lost", 1), "network/sent_bytes": ("sent_bytes", 1),
    "network/retransmitted_packets": ("retransmitted", 1),
}  # fmt: skip


@pytest.fixture(autouse=True)
def _in_new_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)


def offline_files(folder: Path = Path()) -> list[Path]:
    return sorted(folder.glob("wandb/offline-run-*/run-*.wandb"))


def assert_tensorboard_equals(folder: Path, result: TrainingResult) -> None:
    """Every row is logged once, as float32, at its step and simulated time."""
    scalars = scalars_of(folder)
    for name, (column, unit) in STEP_COLUMNS.items():
        expected = [
            (row["step"], row["clock_ps"] / 1e12, float(np.float32(row[column] / unit))) for row in result.steps
        ]
        assert scalars[name] == expected, name
    for column in ("accuracy", "loss"):
        expected = [(row["step"], row["clock_ps"] / 1e12, float(np.float32(row[column]))) for row in result.scores]
        assert scalars[f"validation/{column}"] == expected
        by_time = [
            (round(row["clock_ps"] / 1e6), at, value)
            for row, (_, at, value) in zip(result.scores, expected, strict=True)
        ]
        assert scalars[f"validation/{column}_by_simulated_us"] == by_time


def assert_wandb_equals(file: Path, result: TrainingResult) -> dict[str, Any]:
    """Every row is in the history once, exactly."""
    run = wandb_run(file)
    steps = [row["_step"] for row in run["history"]]
    assert steps == sorted(set(steps))
    for name, (column, unit) in STEP_COLUMNS.items():
        logged = [(row["_step"], row[name]) for row in run["history"] if name in row]
        assert logged == [(row["step"], row[column] / unit) for row in result.steps], name
    logged = [
        (row["_step"], row["validation/simulated_s"], row["validation/accuracy"])
        for row in run["history"]
        if "validation/accuracy" in row
    ]
    assert logged == [(row["step"], row["clock_ps"] / 1e12, row["accuracy"]) for row in result.scores]
    return run


def test_both_logs_equal_the_tables(tmp_path: Path) -> None:
    seen: list[tuple[str, int, dict[str, float]]] = []
    result = gradwire.train(
        tiny("training.score_every=2"), "out", until=0.0, log=[*BOTH, lambda *row: seen.append(row)]
    )  # fmt: skip
    assert len(result.steps) == 2  # any accuracy is enough, at the first evaluation
    result = gradwire.train(tiny("training.score_every=2"), "all", log=BOTH)
    assert len(result.steps) == 6 and len(result.scores) == 3 and result.timed
    assert_tensorboard_equals(Path("all/tensorboard"), result)
    files = [file for file in offline_files() if len(wandb_run(file)["history"]) > 3]
    run = assert_wandb_equals(files[0], result)
    assert (run["name"], run["group"], run["project"], run["exit_code"]) == (
        "train-tiny/dlcp/seed-1",
        "train-tiny",
        "mine",
        0,
    )
    assert run["config"]["transport.kind"] == "dlcp" and run["config"]["job[0].workers"] == 2
    assert {name: run["summary"][name] for name in run["summary"] if name.startswith("final/")} == final_values(
        result.tables
    )
    hparams = hparams_of(Path("all/tensorboard"))
    assert (hparams["policy"], hparams["seed"], hparams["training.batch"]) == ("dlcp", 1, 4)
    assert [row[:2] for row in seen] == [("train-tiny/dlcp/seed-1", step) for step in (0, 1, 2)]
    final = scalars_of(Path("out/tensorboard"))
    assert final["final/steps_to_accuracy"][0][2] == 2
    assert final["final/time_to_accuracy_s"][0][2] == float(np.float32(seen and result.scores[0]["clock_ps"] / 1e12))


def test_a_resumed_run_is_logged_once(tmp_path: Path) -> None:
    """An interrupted run has logged steps after its checkpoint; the resumed one repeats them."""

    def stop(share: float, message: str) -> None:
        if share > 0.6:
            raise KeyboardInterrupt

    scenario = tiny("training.score_every=3")
    with pytest.raises(KeyboardInterrupt):
        gradwire.train(scenario, "out", log=BOTH, progress=stop)
    assert len(scalars_of(Path("out/tensorboard"))["train/loss"]) == 4  # the checkpoint has three
    assert wandb_run(offline_files()[0])["exit_code"] == 1
    result = gradwire.train(scenario, "out", log=BOTH)
    assert_tensorboard_equals(Path("out/tensorboard"), result)
    assert len(offline_files()) == 1
    assert_wandb_equals(offline_files()[0], result)


def test_finished_runs_are_logged_alike(tmp_path: Path) -> None:
    """The log of a folder equals that of the run itself; a folder without --out names its runs apart."""
    result = gradwire.train(tiny(), "out", log="tensorboard")
    live = scalars_of(Path("out/tensorboard"))
    assert log_results("out", ["tensorboard:later", "wandb"]) == ["DLCP, 10 %"]
    assert scalars_of(Path("later/train-tiny/dlcp/seed-1")) == live
    assert_wandb_equals(offline_files()[0], result)
    for _ in range(2):
        gradwire.train(tiny("training.steps=1"), log="tensorboard:later")
    assert sorted(path.name for path in Path("later/train-tiny/dlcp").iterdir()) == ["seed-1", "seed-1-2", "seed-1-3"]
    assert scalars_of(Path("later/train-tiny/dlcp/seed-1")) == live


def test_points_of_a_sweep_are_runs(tmp_path: Path) -> None:
    """Axes are parameters and measures metrics; a resumed sweep logs every point once."""
    gradwire.sweep(sweep_tables(seeds=1), out="out", jobs=1, log=BOTH)
    outcome = gradwire.sweep(sweep_tables(), out="out", jobs=1, log=BOTH)
    rows = outcome.points_table.to_pylist()
    assert len(rows) == 8
    runs = {file.parent.name: wandb_run(file) for file in offline_files()}
    assert len(runs) == len(offline_files()) == 8 and {run["group"] for run in runs.values()} == {"small"}
    by_name = {run["name"]: run for run in runs.values()}
    for row in rows:
        name = f"load={row['load']},buffer={row['buffer']},seed={row['seed']}"
        scalars = scalars_of(Path("out/tensorboard") / name)
        assert hparams_of(Path("out/tensorboard") / name) == {
            "load": row["load"],
            "buffer": row["buffer"],
            "seed": row["seed"],
        }
        config = by_name[name]["config"]
        assert (config["load"], config["buffer"], config["seed"]) == (row["load"], row["buffer"], row["seed"])
        for measure in ("slowdown_p99", "all_mean_ps"):
            assert [each[2] for each in scalars[measure]] == [float(np.float32(row[measure]))]
            assert [each[measure] for each in by_name[name]["history"]] == [row[measure]]
    before = {path: path.stat().st_mtime_ns for path in offline_files()}
    log_results("out", BOTH)
    assert {path: path.stat().st_mtime_ns for path in offline_files()} == before


@pytest.mark.parametrize(
    "log, words",
    [
        ("tensorbord", 'is no log: "tensorbord".*did you mean'),
        ("wandb:", 'is no log: "wandb:"'),
        (7, "a list"),
        ([7], "or a function"),
        ("tensorboard:file/below", "cannot be written"),
        (f"tensorboard:{'a' * 300}", "cannot be written"),
    ],
)
def test_invalid_logs_are_refused_first(log: Any, words: str, tmp_path: Path) -> None:
    Path("file").touch()
    with pytest.raises(GradwireError, match=words):
        gradwire.train(tiny(), "out", log=log)
    with pytest.raises(GradwireError, match=words):
        gradwire.sweep(sweep_tables(), out="out", log=log)
    assert not Path("out").exists()


@pytest.mark.parametrize("package", ["tensorboard", "wandb"])
def test_a_missing_package_is_named_first(package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)  # as if it were not installed
    with pytest.raises(
        MissingExtraError, match=rf"{package} is not installed; install it with: pip install .*\[logging\]"
    ):
        gradwire.train(tiny(), "out", log=package)
    assert not Path("out").exists()


BROKEN = """
import os, signal, sys
import gradwire
from tests.support.tiny_training import tiny

def kill(share, message):
    for pid in filter(str.isdecimal, os.listdir("/proc") if 0.4 < share < 0.6 else ()):
        status = open(f"/proc/{pid}/status").read()
        if "wandb-core" in status and f"PPid:\\t{os.getpid()}\\n" in status:
            os.kill(int(pid), signal.SIGKILL)

result = gradwire.train(tiny("training.score_every=1"), "out", log=["tensorboard", "wandb"], progress=kill)
print(len(result.steps))
"""


def test_a_failing_log_does_not_end_the_run(tmp_path: Path) -> None:
    """A file in the place of the event files, and W&B's process killed: one note each, and all results."""
    Path("out").mkdir()
    Path("out/tensorboard").touch()
    environment = os.environ | {"PYTHONPATH": str(Path(gradwire.__file__).parents[1])}
    ended = subprocess.run([sys.executable, "-c", BROKEN], capture_output=True, text=True, timeout=100, env=environment)
    notes = [line for line in ended.stderr.splitlines() if "ScenarioNote" in line]
    assert (ended.returncode, ended.stdout) == (0, "6\n")
    assert [note.partition("ScenarioNote: ")[2].partition(":")[0] for note in notes] == ["tensorboard", "wandb"]
    assert all("the log of train-tiny/dlcp/seed-1 is incomplete" in note for note in notes)
    assert len(TrainingResult.read("out").steps) == 6 and not offline_files() == []


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("unshare"), reason="needs root for a network of its own")
def test_nothing_is_sent(tmp_path: Path) -> None:
    """In a namespace whose only route out is a cable without an end, it carries no packet."""
    script = """
        set -e
        sysctl -qw net.ipv6.conf.all.disable_ipv6=1
        ip link set lo up; ip link add out0 type veth peer name out1; ip link set out0 up; ip link set out1 up
        ip addr add 10.9.0.1/24 dev out0
        ip route add default via 10.9.0.2; ip neigh add 10.9.0.2 lladdr 02:00:00:00:00:02 dev out0
        if [ "$1" = control ]; then (echo > /dev/udp/192.0.2.1/53) ; else "$@"; fi >/dev/null 2>&1
        ip -s -j link show out0
    """
    command = [
        sys.executable,
        "-m",
        "gradwire",
        "train",
        "train-tiny",
        "--policy",
        "dlcp",
        "--log",
        "wandb",
        "--log",
        "tensorboard",
    ]
    command += [
        part for each in ("steps=2", "samples=200", "size=8", "batch=4") for part in ("--set", f"training.{each}")
    ]

    def sent(*words: str) -> int:
        shell = ["unshare", "-n", "bash", "-c", script, "bash", *words]
        ended = subprocess.run(shell, capture_output=True, text=True, check=True, timeout=100)
        return int(json.loads(ended.stdout)[0]["stats64"]["tx"]["packets"])

    assert sent("control") == 1
    assert sent(*command) == 0
    assert len(offline_files()) == 1
