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


def test_every_notebook_has_expected_outputs() -> None:
    assert {path.stem for path in NOTEBOOKS} == set(LEAVES)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_alternate_text_and_code_cells(path: Path) -> None:
    """Text and code cells have the format of jupytext and editors."""
    lines = path.read_text(encoding="utf-8").splitlines()
    assert lines[0] == "# %% [markdown]" and lines[1].startswith("# # ")
    assert sum(line == "# %%" for line in lines) >= 4 and sum(line == "# %% [markdown]" for line in lines) >= 4


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_run_and_write_their_outputs(path: Path, tmp_path: Path) -> None:
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
