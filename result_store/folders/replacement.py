"""`claim_output` claims an output folder and, with `--force`, replaces one that holds nothing but results of gradwire.
`set_aside` does the same for other files and folders.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path

from gradwire.result_store.folders.output_folder import Claim, register_cleanup, unregister_cleanup, write_error
from gradwire.result_store.table_schema import TABLES
from gradwire.scenarios.errors import ResultError
from gradwire.scenarios.interrupt import defer_interrupt
from gradwire.scenarios.json_data import parse_json

RESULT_MARKERS = ("result.json", "comparison.json", "fidelity.json")
"""Files that mark a folder as results of a command that writes a new one."""
FIGURES = ("iteration_time", "completion_time", "packets_again", "breakdown")
FILES = frozenset(
    {
        *RESULT_MARKERS,
        "timing.json",
        "scenario.toml",
        "comparison.csv",
        "comparison.parquet",
        "flows.csv",
        "report.md",
        "report.html",
        "fidelity.csv",
        "fidelity.png",
        "marks.csv",
        *(f"{table}.parquet" for table in TABLES),
        *(f"{figure}.{kind}" for figure in FIGURES for kind in ("png", "pdf", "svg")),
    }
)
"""Files of such a folder, and of those in its folder `results`."""


@contextmanager
def claim_output(path: str | Path | None, force: bool = False) -> Iterator[Path | None]:
    """Claim `path`, if not None, during the work. With `force`, existing results of gradwire are set aside. They are
    restored unless others replace them."""
    if path is None:
        yield None
    else:
        with set_aside(Path(path), _refuse_foreign) if force else contextlib.nullcontext(), Claim(path) as place:
            yield place


def _refuse_foreign(path: Path) -> None:
    """Raise ResultError unless a folder holds nothing but results."""
    if path.is_symlink() or not _is_results(path):
        expected = f"a folder that gradwire has written, with one of {', '.join(RESULT_MARKERS)}"
        raise ResultError("cannot be replaced (--force)", str(path), expected)
    if foreign := _foreign(path):
        what = f"cannot be replaced (--force): {foreign} in it was not written by gradwire"
        raise ResultError(what, str(path), "another --out, or that file moved elsewhere")


@contextmanager
def set_aside(path: Path, refuse: Callable[[Path], None]) -> Iterator[None]:
    """Move a file or folder aside, and remove it once another has replaced it; else move it back. `refuse` raises an
    error unless it may be replaced; nothing and an empty folder always may."""
    if not os.path.lexists(path) or (path.is_dir() and not path.is_symlink() and not any(path.iterdir())):
        yield
        return
    refuse(path)
    if path.resolve() == Path.cwd():
        raise ResultError("is the working directory", str(path), "another working directory")
    aside = path.with_name(f".{path.name}.{os.getpid()}.replaced")
    leave = partial(_put_back, aside, path)
    register_cleanup(leave)
    try:
        try:
            os.rename(path, aside)
        except OSError as error:
            raise write_error(error, path) from None
        yield
    finally:
        with defer_interrupt():
            leave()
            unregister_cleanup(leave)


def _put_back(backup: Path, path: Path) -> None:
    """Remove what was set aside if it has been replaced; else move it back."""
    if not os.path.lexists(backup):
        return
    if path.is_file() or (path.is_dir() and any(path.iterdir())):
        shutil.rmtree(backup, ignore_errors=True)
        with contextlib.suppress(OSError):
            backup.unlink()
    else:
        with contextlib.suppress(OSError):
            path.rmdir()
        os.rename(backup, path)


def _foreign(folder: Path) -> str:
    """Return the first file or folder in a folder of results that no gradwire command has written, or ""."""
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
    """Return True if a folder contains one of `RESULT_MARKERS` with a format."""
    for mark in RESULT_MARKERS:
        with contextlib.suppress(OSError, ValueError, AttributeError, TypeError):
            if "format" in parse_json((folder / mark).read_text(encoding="utf-8")):
                return True
    return False


PLOT_HEADS = (b"\x89PNG", b"%PDF", b"<?xml", b"\xff\xd8\xff")
"""First bytes of plots: PNG, PDF, SVG, JPEG."""


def replaced_file(path: str | Path | None, force: bool, *heads: bytes) -> AbstractContextManager[None]:
    """Return a context in which, with `force`, an earlier output may be replaced; see `set_aside`. It must begin with
    one of `heads`."""

    def refuse(existing: Path) -> None:
        if existing.is_symlink() or not existing.is_file() or not existing.read_bytes()[:64].startswith(heads):
            raise ResultError("cannot be replaced (--force)", str(existing), "an earlier output of the same kind")

    return set_aside(Path(path), refuse) if force and path is not None else contextlib.nullcontext()


def replaced_folder(path: str | Path, force: bool, names: str) -> AbstractContextManager[None]:
    """Return a context in which, with `force`, a folder may be replaced; see `set_aside`. It must hold only files whose
    names match the pattern `names`."""

    def refuse(existing: Path) -> None:
        entries = [existing] if existing.is_symlink() or not existing.is_dir() else list(existing.iterdir())
        if foreign := [entry.name for entry in entries if not (entry.is_file() and re.fullmatch(names, entry.name))]:
            what = f"cannot be replaced (--force): {foreign[0]} was not written by this command"
            raise ResultError(what, str(existing), "an earlier output of the same kind")

    return set_aside(Path(path), refuse) if force else contextlib.nullcontext()
