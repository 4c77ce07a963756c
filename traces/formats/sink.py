"""Writing foreign files: complete or not at all, and never over something that is there."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from gradwire.scenarios.errors import TraceError


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
        raise TraceError(
            f"cannot be written ({error.strerror or error})", str(path), "a writable place with room"
        ) from error
    return written


def _refuse_too_much(contents: Mapping[Path, bytes]) -> None:
    """Raise TraceError if there is less room than `contents` need: better at once than after minutes of writing."""
    first = next(iter(contents))
    place = next(parent for parent in first.absolute().parents if parent.exists())
    needed, free = sum(map(len, contents.values())), shutil.disk_usage(place).free
    if needed > free:
        what = f"{len(contents):,} files of {needed / 1e9:.1f} GB in all, and there is room for {free / 1e9:.1f} GB"
        raise TraceError(what, str(first), "a place with room, or fewer of them")
