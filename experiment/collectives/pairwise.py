"""All-to-alls: everybody sends something of its own to everybody else, at once."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gradwire.experiment.collectives.schedule import Rows


def scattering(workers: int, stage: int) -> Iterator[Rows]:
    """Everybody sends segment v to rank v, who adds it: first to the next rank, then to the one behind it, ..."""
    rank = np.arange(workers)
    for distance in range(1, workers):
        other = (rank + distance) % workers
        yield Rows(stage, rank, other, other, 1, True)


def gathering(workers: int, stage: int) -> Iterator[Rows]:
    """Rank v sends segment v to everybody, who puts it in its place."""
    rank = np.arange(workers)
    for distance in range(1, workers):
        yield Rows(stage, rank, (rank + distance) % workers, rank, 1, False)
