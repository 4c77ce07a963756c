"""`write_files` writes the files of other tools' formats, completely or not at all, never over existing files."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from gradwire.result_store.folders.output_folder import write_error
from gradwire.scenarios.errors import TraceError


def write_files(contents: Mapping[Path, bytes]) -> list[Path]:
    """Write each of `contents` to its new path and return the paths. TraceError, with no file left, if one exists, if
    there is too little disk space, or if a write fails."""
    for path in contents:
        if path.exists():
            raise TraceError("exists already", str(path), "a new file")
    _refuse_too_much(contents)
    written: list[Path] = []
    try:
        for path, data in contents.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            building = path.with_name(f".{path.name}-{os.getpid()}")
            written.append(building)
            building.write_bytes(data)
            building.rename(path)
            written[-1] = path
    except OSError as error:
        for file in written:
            with contextlib.suppress(OSError):
                file.unlink()
        raise write_error(error, path, TraceError) from error
    return written


def replace_files(write: Callable[[Path], list[Path]], out: Path) -> list[Path]:
    """Put the files that `write` writes for `out` in place of earlier ones, and return them. These must begin alike:
    their kind is the same. TraceError, with nothing replaced, if another file is there."""
    if not out.parent.is_dir():
        return write(out)
    with tempfile.TemporaryDirectory(prefix=".gradwire-", dir=out.parent) as folder:
        places = {file: out.parent / file.name for file in write(Path(folder) / out.name)}
        for file, place in places.items():
            is_regular = place.is_file() and not place.is_symlink()
            if os.path.lexists(place) and not (is_regular and _head(file) == _head(place)):
                raise TraceError("cannot be replaced (--force)", str(place), "an earlier output of the same kind")
        for file, place in places.items():
            file.replace(place)
    return list(places.values())


def _head(file: Path) -> bytes:
    """Return the first bytes of a file, which depend on its format only."""
    with file.open("rb") as stream:
        return stream.read(8)


def _refuse_too_much(contents: Mapping[Path, bytes]) -> None:
    """Raise TraceError early if there is less disk space than `contents` need."""
    first = next(iter(contents))
    folder = next(parent for parent in first.absolute().parents if parent.exists())
    needed, free = sum(map(len, contents.values())), shutil.disk_usage(folder).free
    if needed > free:
        many = len(contents) > 1
        what = f"{len(contents):,} files of {_size(needed)} in all" if many else f"has {_size(needed)}"
        expected = "a disk with enough space" + ", or fewer files" * many
        raise TraceError(f"{what}, but only {_size(free)} of disk space are free", str(first), expected)


def _size(count: int) -> str:
    """Return bytes as text: 78.1 kB."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} bytes"
