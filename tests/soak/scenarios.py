"""Random scenarios as a source of cases: many of each combination, one in four with values from the edges."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import count
from random import Random

from tests.soak import Case
from tests.soak.drawn import Scenarios, combination
from tests.soak.played import play, scratch

OF_EACH = 400
"""Scenarios of a combination, which takes seconds to compile."""


def cases(seed: int) -> Iterator[Case]:
    """Scenarios of one combination after the other."""
    folder = scratch()
    for number in count():
        group = Random(f"{seed} {number}").getrandbits(40)
        for member in range(OF_EACH):
            yield f"scenarios {group}:{member}", partial(one, f"{group}:{member}", folder)


def one(label: str, folder: object = None) -> str:
    """Play the scenario of a label, "group:member"."""
    made, tables = tables_of(label, folder)
    return play(tables, made.folder)


def tables_of(label: str, folder: object = None) -> tuple[Scenarios, dict]:  # type: ignore[type-arg]
    """The scenario of a label."""
    group, member = map(int, label.split(":"))
    made = Scenarios(folder or scratch(), combination(Random(group)))  # type: ignore[arg-type]
    odd = 0.1 if member % 4 == 3 else 0.0
    return made, made.tables(group * 1_000_003 + member, odd)
