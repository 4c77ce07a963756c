"""What the simulator is: a digest of its version and sources, by which kept runs are known to be its own."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

SOURCES = ("components", "experiment", "scenarios", "sim", "traces")
"""Rooms whose Python decides what a run gives."""


@cache
def engine() -> str:
    """A digest of the simulator's version and sources."""
    import gradwire

    root = Path(gradwire.__file__).parent
    total = hashlib.sha256(gradwire.__version__.encode())
    for room in SOURCES:
        for path in sorted((root / room).resolve().rglob("*.py")):
            total.update(path.name.encode() + path.read_bytes())
    return total.hexdigest()
