"""The example notebooks run as they stand, from the first cell to the last, and leave what they say."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LEAVES = {
    "what_if": ["what-if.html", "what-if-timelines/dlcp.json", "results/what-if/workers.png"],
    "own_transport": ["own-transport.html"],
    "time_to_accuracy": ["accuracy.pdf", "accuracy.html", "results/accuracy/dlcp/scores.parquet"],
}
NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.py"))


def test_all_of_them_are_known() -> None:
    assert {path.stem for path in NOTEBOOKS} == set(LEAVES)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_they_are_cells(path: Path) -> None:
    """Words and code by turns, as Jupyter (jupytext) and editors take them."""
    lines = path.read_text(encoding="utf-8").splitlines()
    assert lines[0] == "# %% [markdown]" and lines[1].startswith("# # ")
    assert sum(line == "# %%" for line in lines) >= 4 and sum(line == "# %% [markdown]" for line in lines) >= 4


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_they_run(path: Path, tmp_path: Path) -> None:
    if path.stem == "time_to_accuracy" and importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "MPLBACKEND": "Agg"}
    done = subprocess.run(
        [sys.executable, str(path)], cwd=tmp_path, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout
    for name in LEAVES[path.stem]:
        assert (tmp_path / name).is_file(), name
