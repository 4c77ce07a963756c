"""Random scenarios as a source of cases: many of each combination, one in four with values from the edges."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import count
from random import Random

from tests.soak import Case
from tests.soak.coverage import Coverage, Features
from tests.soak.drawn import Scenarios, combination
from tests.soak.played import play, scratch

OF_EACH = 150
"""Scenarios of a combination, which takes seconds to compile."""


def cases(seed: int, coverage: Coverage | None = None) -> Iterator[Case]:
    """Scenarios of one combination after the other. `coverage` counts those of which engine and oracle agree."""
    folder = scratch()
    for number in count():
        group = Random(f"{seed} {number}").getrandbits(40)
        for member in range(OF_EACH):
            yield f"scenarios {group}:{member}", partial(one, f"{group}:{member}", folder, coverage)


def one(label: str, folder: object = None, coverage: Coverage | None = None) -> str:
    """Play the scenario of a label, "group:member"."""
    made, tables = tables_of(label, folder)
    return play(tables, made.folder, coverage=coverage)


def new_coverage() -> Coverage:
    """Return empty counts of what this source draws."""
    return Coverage(Features())


def tables_of(label: str, folder: object = None) -> tuple[Scenarios, dict]:  # type: ignore[type-arg]
    """The scenario of a label."""
    group, member = map(int, label.split(":"))
    made = Scenarios(folder or scratch(), combination(Random(group)))  # type: ignore[arg-type]
    odd = 0.1 if member % 4 == 3 else 0.0
    return made, made.tables(group * 1_000_003 + member, odd)
