"""`gradwire train` in trouble: what is refused leaves nothing behind, and what is stopped says how it goes on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

torch = pytest.importorskip("torch")

from gradwire import cli  # noqa: E402
from gradwire.result_store.folders.resumable_folder import resumable_folder  # noqa: E402
from gradwire.scenarios.errors import GradwireError, ResultError  # noqa: E402
from gradwire.scenarios.loading.load import load_scenario  # noqa: E402
from gradwire.studies.training.run import train  # noqa: E402

SHORT = [
    "training.steps=4",
    "training.samples=100",
    "training.size=8",
    "training.batch=4",
    "job.workers=2",
    'training.network="ideal"',
]
SET = [word for each in SHORT for word in ("--set", each)]


def tiny(*more: str):
    return load_scenario("train-tiny", set=[*SHORT, *more], policy="dlcp")


@pytest.mark.parametrize(
    "setting", ['training.data="{}/none"', "training.batch=4000", 'training.network={{replay="{}/none"}}']
)
def test_rejected_run_leaves_no_folder(setting: str, tmp_path: Path) -> None:
    out = tmp_path / "a" / "b"
    done = CliRunner().invoke(
        cli.app, ["train", "train-tiny", "--policy", "dlcp", *SET, "--set", setting.format(tmp_path), "--out", str(out)]
    )
    assert done.exit_code == 2 and list(tmp_path.iterdir()) == []
    with pytest.raises(GradwireError):
        train(tiny(setting.format(tmp_path)), out)
    assert list(tmp_path.iterdir()) == []


def test_existing_folders_stay_after_errors(tmp_path: Path) -> None:
    """One folder is empty, one has content, and one is resumed."""
    (tmp_path / "empty").mkdir()
    with pytest.raises(GradwireError):
        train(tiny("training.batch=4000"), tmp_path / "empty")
    with pytest.raises(KeyError), resumable_folder(tmp_path / "new", "mark", "anything"):
        (tmp_path / "new" / "something").write_text("done")
        raise KeyError
    with pytest.raises(KeyError), resumable_folder(tmp_path / "new", "mark", "anything"):
        (tmp_path / "new" / "something").unlink()
        raise KeyError
    with pytest.raises(KeyError), resumable_folder(tmp_path / "newer", "mark", "anything"):
        raise KeyError
    assert sorted(each.name for each in tmp_path.iterdir()) == ["empty", "new"]
    assert [each.name for each in (tmp_path / "new").iterdir()] == ["mark"]


def test_rejected_reproduction_leaves_no_files(tmp_path: Path) -> None:
    asked = [
        "reproduce",
        "tolerance",
        "--claim",
        "S7",
        "--pictures",
        str(tmp_path / "none"),
        "--out",
        str(tmp_path / "out"),
    ]
    done = CliRunner().invoke(cli.app, asked)
    assert done.exit_code == 2 and list(tmp_path.iterdir()) == []


def test_damaged_checkpoint_error_hides_library_advice(tmp_path: Path) -> None:
    """The checkpoint is invalid, and later the scenario is not text."""
    train(tiny(), tmp_path / "a")
    (tmp_path / "a" / "checkpoint.pt").write_bytes(b"\x80\x02garbage")
    with pytest.raises(
        ResultError,
        match=r"checkpoint.pt: cannot be resumed: it is damaged, or not a checkpoint of this run; expected a new folder",
    ) as told:
        train(tiny(), tmp_path / "a")
    assert "weights_only" not in str(told.value)
    (tmp_path / "a" / "scenario.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ResultError, match="holds a training run of another scenario"):
        train(tiny(), tmp_path / "a")


@pytest.mark.parametrize(
    "argv",
    [
        ["/somewhere/bin/gradwire", "train", "a b"],
        ["/site/gradwire/__main__.py", "train", "a b"],
        ["mine.py", "a b"],
        [""],
    ],
)
def test_summary_records_calling_command(argv: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Python program that trains is not recorded as a gradwire command."""
    monkeypatch.setattr(sys, "argv", argv)
    train(tiny(), tmp_path)
    command = json.loads((tmp_path / "training.json").read_text())["command"]
    assert command == (
        "gradwire train 'a b'" if "gradwire" in argv[0] else "python mine.py 'a b'" if argv[0] else "python"
    )


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupted_command_reports_complete_runs_and_resume(number: int, code: int, tmp_path: Path) -> None:
    """The signal comes after two of three training runs. The same command resumes; without --out nothing is
    saved."""
    scenario = tmp_path / "two.toml"
    scenario.write_text((Path(__file__).parents[3] / "examples" / "largest_signs.toml").read_text())
    (tmp_path / "largest_signs.py").write_text(
        (Path(__file__).parents[3] / "examples" / "largest_signs.py").read_text()
    )
    for out in ([], ["--out", str(tmp_path / "out")]):
        endless = ["--set", "training.samples=100", "--set", "training.steps=3", "--set", 'training.network="ideal"']
        asked = [sys.executable, "-m", "gradwire", "train", str(scenario), "--all", *endless, *out]
        slow = "import time, gradwire.training.user_code as own; asked = own.RequestedReducer.compress; own.RequestedReducer.compress = lambda *a: time.sleep(60)"
        program = f"{slow}\nimport sys; sys.argv[0] = 'gradwire'\nfrom gradwire.cli import app; app()"
        asked[1:3] = ["-c", program]
        with subprocess.Popen(
            asked, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"}
        ) as child:
            assert child.stderr is not None
            said = ""
            while "topk: 100%" not in said:
                line = child.stderr.readline()
                assert line, said
                said += line
            time.sleep(1)
            child.send_signal(number)
            said = child.stderr.read()
            assert child.wait(30) == code
        assert "2 of 3 training runs are complete; " in said
        kept = f"{tmp_path / 'out'} holds the last checkpoint; the same command resumes from it"
        assert (kept in said) == bool(out) and ("nothing is saved without --out" in said) != bool(out)
    table = (tmp_path / "out" / "trainings.txt").read_text()
    assert (tmp_path / "out" / "accuracy.png").is_file()
    (lost,) = [line for line in table.splitlines() if line.startswith("lost, mean")]
    assert lost.count("|") == 2, "a column of each that is over"
