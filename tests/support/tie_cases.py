"""Packets that reach one node at one time: who comes first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import count

from gradwire.jit.counter_rng import TIE_DRAWS, key_of, tie_break


def first_come(links: Iterable[int], time: int, seed: int = 1) -> list[int]:
    """Directed links that bring a packet each to one node at `time`, in the order in which the packets are taken: by the
    hash of time and link, then by the number of the link."""
    return sorted(links, key=lambda link: (tie_break.py_func(key_of(seed, TIE_DRAWS, link), time), link))


def seed_for(links: Sequence[int], time: int) -> int:
    """The first seed with which they come in this order."""
    return next(seed for seed in count(1) if first_come(links, time, seed) == list(links))
