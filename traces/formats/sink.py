"""Writing foreign files: complete or not at all, and never over something that is there."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from gradwire.scenarios.errors import TraceError
from gradwire.scenarios.output import cannot_write


def write_files(contents: Mapping[Path, bytes]) -> list[Path]:
    """Write each of `contents` to its new path; TraceError, and no file left, if one exists, if there is no room for
    all, or if a write fails."""
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
        for left in written:
            with contextlib.suppress(OSError):
                left.unlink()
        raise cannot_write(error, path, TraceError) from error
    return written


def _refuse_too_much(contents: Mapping[Path, bytes]) -> None:
    """Raise TraceError if there is less room than `contents` need: better at once than after minutes of writing."""
    first = next(iter(contents))
    place = next(parent for parent in first.absolute().parents if parent.exists())
    needed, free = sum(map(len, contents.values())), shutil.disk_usage(place).free
    if needed > free:
        many = len(contents) > 1
        what = f"{len(contents):,} files of {_size(needed)} in all" if many else f"has {_size(needed)}"
        expected = "a place with room" + ", or fewer of them" * many
        raise TraceError(f"{what}, and there is room for {_size(free)}", str(first), expected)


def _size(count: int) -> str:
    """Bytes in words: 78.1 kB."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} bytes"
