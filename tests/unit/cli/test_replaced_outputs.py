"""--force of traces and reports: it replaces what gradwire has written, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
from output_cases import SMALL, run

TENSORS = "name,shape,forward_us,backward_us\nconv,64x3,{},45\n"


@pytest.fixture
def trace(own_directory: Path) -> Path:
    """An imported trace, and a file for another one."""
    Path("tensors.csv").write_text(TENSORS.format(90))
    assert run("trace", "import", "tensors.csv", "--out", "mine").returncode == 0
    Path("tensors.csv").write_text(TENSORS.format(70))
    return Path("mine")


IMPORT = ("trace", "import", "tensors.csv", "--out", "mine")


def test_force_replaces_a_trace(trace: Path) -> None:
    before = (trace / "iterations.parquet").read_bytes()
    assert "exists already" in run(*IMPORT).stderr
    done = run(*IMPORT, "--force")
    assert done.returncode == 0, done.stderr
    assert (trace / "iterations.parquet").read_bytes() != before
    assert sorted(path.name for path in Path().iterdir()) == ["mine", "tensors.csv"]


@pytest.mark.parametrize("name", ["mine.txt", "raw"])
def test_force_keeps_traces_with_other_files_or_raw_gradients(trace: Path, name: str) -> None:
    (trace / name).touch()
    done = run(*IMPORT, "--force")
    assert done.returncode == 2 and f"{name} is in it" in done.stderr
    assert (trace / name).exists() and (trace / "manifest.json").exists()


def test_force_keeps_folders_that_are_no_traces(own_directory: Path) -> None:
    Path("tensors.csv").write_text(TENSORS.format(90))
    Path("mine").mkdir()
    Path("mine/manifest.json").write_text("{}")
    done = run(*IMPORT, "--force")
    assert done.returncode == 2 and "cannot be replaced" in done.stderr and Path("mine/manifest.json").exists()


def test_a_trace_is_restored_if_its_replacement_fails(trace: Path) -> None:
    Path("tensors.csv").write_text("name\nconv\n")
    done = run(*IMPORT, "--force")
    assert done.returncode == 2 and (trace / "manifest.json").exists()
    assert sorted(path.name for path in Path().iterdir()) == ["mine", "tensors.csv"]


def test_force_replaces_a_page_and_nothing_else(own_directory: Path) -> None:
    Path("small.toml").write_text(SMALL)
    assert run("run", "small.toml", "--out", "out").returncode == 0
    assert run("report", "out", "--out", "page.html").returncode == 0
    assert "exists already" in run("report", "out", "--out", "page.html").stderr
    done = run("report", "out", "--out", "page.html", "--force", "--title", "again")
    assert done.returncode == 0, done.stderr
    assert "<title>again</title>" in Path("page.html").read_text()
    names = sorted(path.name for path in Path().iterdir())
    assert names == ["out", "page-timelines", "page.html", "small.toml"]
    Path("page.html").write_text("mine")
    done = run("report", "out", "--out", "page.html", "--force")
    assert done.returncode == 2 and "cannot be replaced" in done.stderr and Path("page.html").read_text() == "mine"
