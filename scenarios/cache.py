"""Where things are kept that are made once: compiled engines, switches of the testbed, the kernel for virtual time."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """$GRADWIRE_CACHE if it is set, else `gradwire` in the user's cache folder ($XDG_CACHE_HOME or ~/.cache). It need
    not exist, nor be writable."""
    named = os.environ.get("GRADWIRE_CACHE")
    if named:
        return Path(named)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "gradwire"
