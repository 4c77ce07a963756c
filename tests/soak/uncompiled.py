"""Runs random scenarios by the engine as plain Python, each with components of its own, beside the oracle.

Nothing is compiled, so a minute tries hundreds of combinations; `tests.soak.scenarios` tries the machine code.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import count
from random import Random

from tests.soak import Case
from tests.soak.coverage import Coverage
from tests.soak.played import play, scratch
from tests.soak.scenarios import new_coverage as new_coverage
from tests.soak.scenarios import tables_of


def cases(seed: int, coverage: Coverage | None = None) -> Iterator[Case]:
    """Yield scenarios, each of another combination. `coverage` counts those of which engine and oracle agree."""
    folder = scratch()
    for number in count():
        rng = Random(f"uncompiled {seed} {number}")
        label = f"{rng.getrandbits(40)}:{rng.randrange(4)}"
        yield f"uncompiled {label}", partial(one, label, folder, coverage)


def one(label: str, folder: object = None, coverage: Coverage | None = None) -> str:
    """Run the scenario of a label, "group:member"."""
    made, tables = tables_of(label, folder)
    return play(tables, made.folder, coverage=coverage, compiled=False)
