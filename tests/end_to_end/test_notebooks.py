"""The notebooks run from the first cell to the last, print the outputs that they contain, and write their files."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nbclient", reason="runs notebooks (extra: docs)")

import nbformat

from docs.notebooks import NOTEBOOKS, run

WRITTEN_FILES = {
    "what_if": ["what-if.html", "what-if-timelines/dlcp.json", "results/what-if/workers.png"],
    "own_transport": ["own-transport.html"],
    "time_to_accuracy": ["accuracy.pdf", "accuracy.html", "results/accuracy/dlcp/scores.parquet"],
}
APPROXIMATE = {"time_to_accuracy"}
"""Notebooks whose figures depend on the processor's floating-point arithmetic."""


def outputs(notebook: Any) -> list[list[tuple[str, str]]]:
    """Return the text, the tables and the kinds of pictures that each cell of code prints."""
    cells = []
    for cell in notebook.cells:
        if cell.cell_type == "code":
            printed = "".join(output.get("text", "") for output in cell.outputs)
            shown = [(kind, text) for output in cell.outputs for kind, text in sorted(output.get("data", {}).items())]
            cells.append([("", printed), *((kind, "" if "image" in kind else text) for kind, text in shown)])
    return cells


def test_every_notebook_has_expected_files() -> None:
    assert {path.stem for path in NOTEBOOKS} == set(WRITTEN_FILES)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_explain_themselves_and_contain_their_outputs(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    kinds = [cell.cell_type for cell in notebook.cells]
    assert notebook.cells[0].source.startswith("# ") and min(kinds.count("code"), kinds.count("markdown")) >= 4
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    assert sum(bool(cell.outputs) for cell in code) >= 3


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_run_and_print_their_outputs(path: Path, tmp_path: Path) -> None:
    if path.stem == "time_to_accuracy" and importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed")
    new, old = outputs(run(path, tmp_path)), outputs(nbformat.read(path, as_version=4))
    if path.stem in APPROXIMATE:
        new, old = ([[kind for kind, _ in cell] for cell in cells] for cells in (new, old))
    assert new == old, f"to write the outputs anew: python -m docs.notebooks {path.stem}"
    for name in WRITTEN_FILES[path.stem]:
        assert (tmp_path / "examples" / "notebooks" / name).is_file(), name
