"""All-reduces of which each half is of use by itself: a reduce-scatter that leaves every worker a part of the sums, and
an all-gather of these parts. Sharded training has something between them.

Imported beside tables: nothing here imports NumPy before a schedule is asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from gradwire.scenarios.errors import Mistake

if TYPE_CHECKING:
    from gradwire.experiment.collectives.schedule import Transfers
    from gradwire.scenarios.schema.job import Job

Algorithm = Literal["ring", "all_to_all", "halving", "hierarchical"]


def schedule(algorithm: Algorithm, workers: int, rails: int, inside: int) -> Transfers:
    """Both halves among so many workers, whose hosts have so many network cards, and of which so many follow one
    another in one machine."""
    from gradwire.experiment.collectives.kinds.hierarchical import nested_rings
    from gradwire.experiment.collectives.kinds.ring import rings
    from gradwire.experiment.collectives.schedule import transfers
    from gradwire.experiment.collectives.walks import WALKS

    if algorithm == "ring":
        return rings(workers, rails, inside, inside)
    if algorithm == "hierarchical" and 1 < inside < workers:
        return nested_rings(workers, rails, inside)
    if algorithm == "hierarchical":  # one machine, or workers that are not placed machine by machine
        return rings(workers, rails, inside, inside)
    return transfers(WALKS[algorithm](workers), workers, rails)


def half(plan: Transfers, adds: bool) -> Transfers:
    """The reduce-scatter or the all-gather of an all-reduce."""
    mine = plan.adds == adds
    columns = ("stage", "src", "dst", "first", "count", "adds", "rail")
    return replace(plan, **{name: getattr(plan, name)[mine] for name in columns})


def misfits(algorithm: Algorithm, job: Job) -> Iterator[Mistake]:
    """What of a job does not fit."""
    if algorithm == "halving" and job.workers & (job.workers - 1):
        yield Mistake("workers", "is no power of two, which halving wants", job.workers, "ring or all_to_all")


def unfit(algorithm: Algorithm, job: Job, gpus: int) -> Iterator[Mistake]:
    """The same where hosts have so many accelerators."""
    if algorithm == "hierarchical" and (gpus == 1 or job.workers % gpus):
        what = f"wants hosts full of accelerators, for {job.workers} workers"
        yield Mistake("exchange.algorithm", what, algorithm, "host.gpus of 2 or more that divides the workers")


def parts(algorithm: Algorithm, workers: int) -> int:
    """The largest message is at most the so-manieth part of a bucket."""
    return workers if algorithm in ("ring", "all_to_all") else 2
