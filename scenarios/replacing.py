"""Output folders of commands, and `--force`, which replaces one that holds results of gradwire and nothing else."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from gradwire.scenarios.errors import ResultError
from gradwire.scenarios.interrupt import deferred
from gradwire.scenarios.json_data import parse_json
from gradwire.scenarios.output import Claim, cannot_write, owe, paid
from gradwire.scenarios.result import TABLES

MARKS = ("result.json", "comparison.json", "fidelity.json")
"""Files by which a folder is recognised as results of a command that writes a new one."""
FIGURES = ("iteration_time", "completion_time", "packets_again", "breakdown")
FILES = frozenset({
    *MARKS, "timing.json", "scenario.toml", "comparison.csv", "comparison.parquet", "flows.csv", "report.md",
    "report.html", "fidelity.csv", "fidelity.png", "marks.csv", *(f"{table}.parquet" for table in TABLES),
    *(f"{figure}.{kind}" for figure in FIGURES for kind in ("png", "pdf", "svg")),
})
"""Files of such a folder, and of those in its folder `results`."""


@contextmanager
def claimed(path: str | Path | None, force: bool = False) -> Iterator[Path | None]:
    """Claim `path` while the work goes on, if there is one. With `force`, results of gradwire that are there make room;
    they come back unless others take their place."""
    if path is None:
        yield None
    else:
        with _set_aside(Path(path)) if force else contextlib.nullcontext(), Claim(path) as place:
            yield place


@contextmanager
def _set_aside(path: Path) -> Iterator[None]:
    """Move a folder of results out of the way, and remove it once there are new ones in its place."""
    if not os.path.lexists(path) or (path.is_dir() and not path.is_symlink() and not any(path.iterdir())):
        yield
        return
    if path.is_symlink() or not _is_results(path):
        expected = f"a folder that gradwire has written, with one of {', '.join(MARKS)}"
        raise ResultError("is not replaced (--force)", str(path), expected)
    if foreign := _foreign(path):
        what = f"is not replaced (--force): {foreign} in it is not gradwire's"
        raise ResultError(what, str(path), "another --out, or that file moved elsewhere")
    if path.resolve() == Path.cwd():
        raise ResultError("is the working directory", str(path), "another folder to stand in")
    aside = path.with_name(f".{path.name}.{os.getpid()}.replaced")
    leave = partial(_put_back, aside, path)
    owe(leave)
    try:
        try:
            os.rename(path, aside)
        except OSError as error:
            raise cannot_write(error, path) from None
        yield
    finally:
        with deferred():
            leave()
            paid(leave)


def _put_back(aside: Path, path: Path) -> None:
    """Remove what was moved out of the way if there is something in its place; else move it back."""
    if not os.path.lexists(aside):
        return
    if path.is_dir() and any(path.iterdir()):
        shutil.rmtree(aside, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.rmdir()
        os.rename(aside, path)


def _foreign(folder: Path) -> str:
    """Return the first file or folder in a folder of results that no command of gradwire has written, or ""."""
    for path in sorted(folder.iterdir()):
        is_of_programs = re.fullmatch(r"ranks|trace(\.rank\d+)?", path.name)  # `gradwire exec`: their own output
        if path.name == "results" and path.is_dir():
            for each in sorted(path.iterdir()):
                if not (each.is_dir() and _is_results(each)):
                    return f"results/{each.name}"
                if inner := _foreign(each):
                    return f"results/{each.name}/{inner}"
        elif not is_of_programs and (path.is_dir() or path.name not in FILES):
            return path.name
    return ""


def _is_results(folder: Path) -> bool:
    """Return True if one of `MARKS` is in a folder, and says of which format it is."""
    for mark in MARKS:
        with contextlib.suppress(OSError, ValueError, AttributeError, TypeError):
            if "format" in parse_json((folder / mark).read_text(encoding="utf-8")):
                return True
    return False
