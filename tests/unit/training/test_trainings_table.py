"""What `gradwire train --out` leaves of the comparison: the table that it prints, in trainings.txt."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

torch = pytest.importorskip("torch")

from gradwire import cli  # noqa: E402
from gradwire.result_store.folders.resumable_folder import resumable_folder  # noqa: E402

SHORT = [
    "training.steps=2",
    "training.samples=100",
    "training.size=8",
    "training.batch=4",
    "job.workers=2",
    'training.network="ideal"',
]
SENTENCE = "This folder holds training runs by gradwire, which resumes it.\n"


def command(out: Path, *words: str):
    sets = [word for each in SHORT for word in ("--set", each)]
    return CliRunner().invoke(cli.app, ["train", "train-tiny", *sets, "--out", str(out), *words])


def test_table_file_holds_table_of_last_complete_command(tmp_path: Path) -> None:
    """The file holds the printed table, also if the command printed JSON."""
    out, file = tmp_path / "out", tmp_path / "out" / "trainings.txt"
    done = command(out, "--all")
    assert done.exit_code == 0, done.output
    table = file.read_text()
    shown, _, order = table.partition("\nIn the order of their scenario:\n")
    assert shown.startswith(f"{SENTENCE}\n") and shown.removeprefix(f"{SENTENCE}\n") in done.stdout
    assert order.splitlines() == ["dctcp", "dlcp", "topk"]
    for words in ("DCTCP, top 1 %", "DLCP, 10 %", "final accuracy", "sent by all workers"):
        assert words in table
    assert command(out, "--all", "--json").exit_code == 0 and file.read_text() == table
    assert command(out, "--policy", "dlcp", "--until", "accuracy=0.9").exit_code == 0
    assert "time to accuracy 0.9" in file.read_text() and "top 1 %" not in file.read_text()
    refused = command(out, "--policy", "dlcp", "--set", "training.steps=3")
    assert refused.exit_code == 2 and "time to accuracy 0.9" in file.read_text()
    assert command(out, "--all").exit_code == 0 and file.read_text() == table


def test_resumable_folder_leaves_existing_marker_content_unchanged(tmp_path: Path) -> None:
    with resumable_folder(tmp_path, "trainings.txt", "training runs"):
        assert (tmp_path / "trainings.txt").read_text() == SENTENCE
        (tmp_path / "trainings.txt").write_bytes(b"mine \xff")
    with resumable_folder(tmp_path, "trainings.txt", "training runs"):
        assert (tmp_path / "trainings.txt").read_bytes() == b"mine \xff"
