"""Files that are given by name: what is none is refused, as a device has no end and a pipe may never begin."""

from __future__ import annotations

import errno
from pathlib import Path


def regular(path: Path) -> Path:
    """`path` itself, if it is a regular file or nothing at all. Raises OSError for folders, pipes and devices."""
    if path.is_dir():
        raise OSError(errno.EISDIR, "is a folder")
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "is no regular file")
    return path
