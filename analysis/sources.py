"""What the simulator is, and what measures its Results: digests of version and sources, by which what is kept of either
is known to be its own."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

SOURCES = ("components", "experiment", "scenarios", "sim", "traces")
"""Rooms whose Python decides what a run gives."""
MEASURING = ("analysis",)
"""What decides, besides them, which figures are made of it."""


@cache
def engine() -> str:
    """A digest of the simulator's version and sources."""
    import gradwire

    return _digest(gradwire.__version__, SOURCES)


@cache
def measuring() -> str:
    """A digest of all that figures of kept Results depend on."""
    return _digest(engine(), MEASURING)


def _digest(begin: str, rooms: tuple[str, ...]) -> str:
    import gradwire

    root = Path(gradwire.__file__).parent
    total = hashlib.sha256(begin.encode())
    for room in rooms:
        for path in sorted((root / room).resolve().rglob("*.py")):
            total.update(path.name.encode() + path.read_bytes())
    return total.hexdigest()
