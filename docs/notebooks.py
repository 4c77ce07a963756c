"""Runs the notebooks of examples/notebooks, and writes their outputs: `python -m docs.notebooks [NAME ...]`.

Outputs that depend on the machine are neither written nor compared: the progress bars below cells, and the speed of the
simulator in tables.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))
SPEED = re.compile(r"<tr><td>[^<]*simulated per second</td>.*?</tr>")
LIMIT_S = 300
"""No cell takes longer."""


def run(path: Path, folder: Path) -> Any:
    """Execute a notebook in a copy of examples/ below `folder`, and return it with its new outputs."""
    place = folder / "examples" / "notebooks"
    shutil.copytree(ROOT / "examples", folder / "examples", ignore=shutil.ignore_patterns("__pycache__", "results"))
    notebook = nbformat.read(path, as_version=4)
    os.environ["PYTHONPATH"] = str(ROOT)  # for the kernel
    resources = {"metadata": {"path": str(place)}}
    NotebookClient(notebook, timeout=LIMIT_S, resources=resources, coalesce_streams=True).execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)  # when it ran
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if not is_progress(output)]
            for output in cell.outputs:
                if "text/html" in output.get("data", {}):
                    output.data["text/html"] = SPEED.sub("", output.data["text/html"])
    return notebook


def is_progress(output: Any) -> bool:
    """Return True for the progress bar of a cell, which ends with the time that the cell took."""
    return output.output_type == "display_data" and " after " in output.data.get("text/html", "")


def main(names: list[str]) -> None:
    """Write the outputs of all notebooks, or of those named."""
    for path in NOTEBOOKS:
        if not names or path.stem in names:
            with tempfile.TemporaryDirectory(prefix="gradwire-notebook-") as folder:
                nbformat.write(run(path, Path(folder)), path)


if __name__ == "__main__":
    main(sys.argv[1:])
