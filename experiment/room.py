"""How many messages there is room for. Nothing here imports NumPy, so that tables may ask."""

from __future__ import annotations

from gradwire.components.limits import LAID_BYTES, MAX_LAID
from gradwire.traces.room import installed


def most_laid() -> int:
    """Messages that may be laid out at once: by the engine's words, and by what memory this machine has."""
    return min(MAX_LAID, installed() // LAID_BYTES)
