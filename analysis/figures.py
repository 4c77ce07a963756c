"""Figures written to files: the format is that of the file's name, and the same figure gives the same bytes."""

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
"""Endings of files that a figure can be written to: pixels, or lines that scale (pdf, svg, eps)."""

PLOTS = ("png", "pdf", "svg")
"""Those of the pictures of runs and comparisons: what pages and papers take."""

MAKER = {
    "png": {"Software": "gradwire"}, "pdf": {"Creator": "gradwire", "CreationDate": None},
    "svg": {"Creator": "gradwire", "Date": None}, "eps": {"Creator": "gradwire"},
}  # fmt: skip
"""What each format says of where it is from; without the date, which would make every file another one."""


def check_plots(plots: object, where: str) -> None:
    """Raise `ResultError` unless pictures of runs can be drawn in a format; `where` is who asks for it."""
    if plots not in list(PLOTS):
        raise ResultError("is no format of plots", f"{where} {plots}", f"one of {', '.join(PLOTS)}")


def format_of(path: str | Path) -> str:
    """The format that the name of a file asks for.

    Raises
    ------
    ResultError
        Its ending is none of `FORMATS`.
    """
    ending = Path(path).suffix[1:].lower()
    if ending not in FORMATS:
        what = f"is no kind of picture: {f'.{ending}' if ending else 'no ending'}"
        raise ResultError(what, str(path), "one of " + ", ".join(f".{each}" for each in FORMATS))
    return ending


def save_all(figures: Mapping[str, Figure], directory: Path, kind: str = "png") -> list[Path]:
    """Write figures, by name, into a directory, as files of one of `PLOTS`. Returns the files."""
    drawn = []
    for name, figure in figures.items():
        drawn.append(directory / f"{name}.{kind}")
        save_figure(figure, drawn[-1])
    return drawn


def save_figure(figure: Figure, path: str | Path | IO[bytes], name: str | Path | None = None) -> None:
    """Write a figure to a path or an open file, in the format that `name` asks for, by default the path's own.

    Raises
    ------
    ResultError
        An ending that is no format's.
    """
    import matplotlib

    kind = format_of(str(path) if name is None else name)
    more: Json = {"metadata": MAKER[kind]} if kind in MAKER else {}
    with matplotlib.rc_context({"svg.hashsalt": "gradwire", "pdf.fonttype": 42, "ps.fonttype": 42}):
        figure.savefig(path, dpi=DPI, format=kind, **more)
