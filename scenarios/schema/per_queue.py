"""Values of [switch] that are the same for all queues, or one for each of them."""

from __future__ import annotations

from typing import Any


class OneForAll(tuple[Any, ...]):
    """One size or share that was given for all queues, however many there are; a list has one for each of them."""


def fits(sizes: tuple[Any, ...], queues: int) -> bool:
    """Whether there is one for all queues, or one for each of them."""
    return isinstance(sizes, OneForAll) or len(sizes) == queues


def entries(sizes: tuple[Any, ...]) -> str:
    """How many there are, in words."""
    return "1 entry" if len(sizes) == 1 else f"{len(sizes)} entries"
