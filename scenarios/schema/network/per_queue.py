"""`OneForAll` marks a [switch] value that applies to all queues, in place of one value per queue."""

from __future__ import annotations

from typing import Any


class OneForAll(tuple[Any, ...]):
    """A single size or share for all queues, however many there are; a list has one per queue."""


def fits(sizes: tuple[Any, ...], queues: int) -> bool:
    """Return True if there is one value for all queues, or one per queue."""
    return isinstance(sizes, OneForAll) or len(sizes) == queues


def count_text(sizes: tuple[Any, ...]) -> str:
    """Return the number of values as text."""
    return "1 entry" if len(sizes) == 1 else f"{len(sizes)} entries"
