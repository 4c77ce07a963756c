"""`require_regular_file` rejects paths that are not regular files, since reading a device or pipe may never end."""

from __future__ import annotations

import errno
from pathlib import Path


def require_regular_file(path: Path) -> Path:
    """Return `path` if it is a regular file or does not exist. Raises OSError for folders, pipes and devices."""
    if path.is_dir():
        raise OSError(errno.EISDIR, "is a folder")
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "is not a regular file")
    return path
