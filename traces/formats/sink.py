"""Writing foreign files: complete or not at all, and never over something that is there."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path

from scenarios.errors import TraceError


def write_files(contents: Mapping[Path, bytes]) -> list[Path]:
    """Write each of `contents` to its new path; TraceError, and no file left, if one exists or a write fails."""
    for path in contents:
        if path.exists():
            raise TraceError("exists already", str(path), "a new file")
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
