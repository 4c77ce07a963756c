"""Saves matplotlib figures in the format of the file's ending, byte-identical for the same figure."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING

from gradwire.scenarios.errors import ResultError
from gradwire.scenarios.json_data import Json

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DPI = 120
FORMATS = ("png", "pdf", "svg", "jpg", "jpeg", "eps")
"""File endings of supported formats: pixels, or vector graphics (pdf, svg, eps)."""

PLOT_FORMATS = ("png", "pdf", "svg")
"""Formats of the figures of runs and comparisons."""

METADATA = {
    "png": {"Software": "gradwire"},
    "pdf": {"Creator": "gradwire", "CreationDate": None},
    "svg": {"Creator": "gradwire", "Date": None},
    "eps": {"Creator": "gradwire"},
}
"""Metadata by format, without the date, so that files are reproducible."""


def check_plots(plots: object, where: str) -> None:
    """Raise `ResultError` unless `plots` is a format of figures of runs; `where` names the caller's option."""
    if plots not in list(PLOT_FORMATS):
        raise ResultError("is not a format of plots", f"{where} {plots}", f"one of {', '.join(PLOT_FORMATS)}")


def format_of(path: str | Path) -> str:
    """Return the format that a file's ending selects. Raises `ResultError` if the ending is not one of `FORMATS`."""
    ending = Path(path).suffix[1:].lower()
    if ending not in FORMATS:
        what = f"is not a figure format: got {f'.{ending}' if ending else 'no ending'}"
        raise ResultError(what, str(path), "one of " + ", ".join(f".{name}" for name in FORMATS))
    return ending


def save_all(figures: Mapping[str, Figure], directory: Path, kind: str = "png") -> list[Path]:
    """Write figures, by name, into a directory in one of the formats `PLOT_FORMATS`; return the files."""
    files = []
    for name, figure in figures.items():
        files.append(directory / f"{name}.{kind}")
        save_figure(figure, files[-1])
    return files


def save_figure(figure: Figure, path: str | Path | IO[bytes], name: str | Path | None = None) -> None:
    """Write a figure to a path or an open file, in the format of the ending of `name` (default: of the path). Raises
    `ResultError` if the ending is not one of `FORMATS`."""
    import matplotlib

    kind = format_of(str(path) if name is None else name)
    more: Json = {"metadata": METADATA[kind]} if kind in METADATA else {}
    with matplotlib.rc_context({"svg.hashsalt": "gradwire", "pdf.fonttype": 42, "ps.fonttype": 42}):
        figure.savefig(path, dpi=DPI, format=kind, **more)
