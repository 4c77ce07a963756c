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

_COLUMNS = ("stage", "src", "dst", "first", "count", "adds", "rail")
"""Of transfers."""


def schedule(algorithm: Algorithm, workers: int, rails: int, inside: int) -> Transfers:
    """Both halves among so many workers, whose hosts have so many network cards, and of which so many follow one
    another in one machine."""
    from gradwire.experiment.collectives.kinds.hierarchical import nested
    from gradwire.experiment.collectives.kinds.ring import rings
    from gradwire.experiment.collectives.schedule import transfers
    from gradwire.experiment.collectives.walks import WALKS

    if algorithm == "ring":
        return rings(workers, rails, inside, inside)
    if algorithm == "hierarchical" and 1 < inside < workers:
        return nested(workers, rails, inside)
    if algorithm == "hierarchical":  # one machine, or workers that are not placed machine by machine
        return rings(workers, rails, inside, inside)
    return transfers(WALKS[algorithm](workers), workers, rails)


def sent(algorithm: Algorithm, workers: int, rails: int, inside: int) -> int:
    """How many transfers `schedule` has."""
    from gradwire.experiment.collectives.kinds.hierarchical import sent_nested
    from gradwire.experiment.collectives.walks import SENT

    if algorithm == "hierarchical" and 1 < inside < workers:
        return sent_nested(workers, rails, inside)
    if algorithm in ("ring", "hierarchical"):
        return SENT["ring"](workers) * rails * inside
    return SENT[algorithm](workers) * rails


def first_of(algorithm: Algorithm, workers: int, rails: int) -> int:
    """How many transfers of either half wait for no other one, at the least."""
    return workers * (workers - 1 if algorithm == "all_to_all" else 1) * rails


def half(plan: Transfers, adds: bool) -> Transfers:
    """The reduce-scatter or the all-gather of an all-reduce."""
    mine = plan.adds == adds
    return replace(plan, **{name: getattr(plan, name)[mine] for name in _COLUMNS})


def in_groups(algorithm: Algorithm, workers: int, rails: int, inside: int, group: int) -> tuple[Transfers, Transfers]:
    """An all-gather inside of groups of workers that follow one another, and what leaves each of them its part of the
    sums over all: a reduce-scatter inside of the groups, and an all-reduce of every part among those who have it.
    """
    within = _within(inside, group)
    whole = schedule(algorithm, group, rails, within)
    gather, scatter = half(whole, adds=False), half(whole, adds=True)
    replicas = workers // group
    if replicas == 1:
        return gather, scatter
    return _side_by_side(gather, group, replicas), _summed(scatter, gather, algorithm, group, replicas)


def sent_in_groups(
    algorithm: Algorithm, workers: int, rails: int, inside: int, group: int
) -> tuple[int, int]:
    """How many transfers each of `in_groups` has."""
    from gradwire.experiment.collectives.walks import SENT

    within, replicas = _within(inside, group), workers // group
    each = sent(algorithm, group, rails, within) // 2 * replicas
    lanes = rails * (
        within if algorithm == "ring" or (algorithm == "hierarchical" and not 1 < within < group) else 1
    )
    across = SENT["ring" if algorithm == "hierarchical" else algorithm](replicas)
    return each, each + (across * group * lanes if replicas > 1 else 0)


def _within(inside: int, group: int) -> int:
    """Workers of a group that follow one another in one machine each time, of which so many do so in all."""
    return inside if group % inside == 0 else group if inside % group == 0 else 1


def _side_by_side(plan: Transfers, group: int, replicas: int) -> Transfers:
    """The same in every group, stage by stage, of segments that are cut into as many as there are groups."""
    import numpy as np

    from gradwire.experiment.collectives.schedule import Transfers

    made = {name: np.repeat(getattr(plan, name), replicas) for name in _COLUMNS}
    for name in ("src", "dst"):
        made[name] += np.tile(group * np.arange(replicas), len(plan))
    for name in ("first", "count"):
        made[name] *= replicas
    return Transfers(**made, segments=plan.segments * replicas)


def _summed(scatter: Transfers, gather: Transfers, algorithm: Algorithm, group: int, replicas: int) -> Transfers:
    """A reduce-scatter in every group, and behind it an all-reduce of each segment among its owners, of whom there is
    one in every group."""
    import numpy as np

    from gradwire.experiment.collectives.schedule import Transfers, transfers
    from gradwire.experiment.collectives.walks import WALKS

    owner, rail = np.empty((2, gather.segments), dtype=np.int64)
    for place in reversed(range(len(gather))):  # who sends a segment first has all of its sum
        run = slice(int(gather.first[place]), int(gather.first[place] + gather.count[place]))
        owner[run], rail[run] = gather.src[place], gather.rail[place]
    inner = _side_by_side(scatter, group, replicas)
    outer = transfers(WALKS["ring" if algorithm == "hierarchical" else algorithm](replicas), replicas)
    many, behind = len(owner), int(inner.stage.max()) + 1
    segment = np.tile(np.arange(many), len(outer))
    tail = {name: np.repeat(getattr(outer, name), many) for name in _COLUMNS}
    tail["stage"] += behind
    tail["first"] += segment * replicas
    for name in ("src", "dst"):
        tail[name] = tail[name] * group + owner[segment]
    tail["rail"] = rail[segment]
    columns = {name: np.concatenate((getattr(inner, name), tail[name])) for name in _COLUMNS}
    return Transfers(**columns, segments=inner.segments)


def misfits(algorithm: Algorithm, job: Job, group: int | None = None) -> Iterator[Mistake]:
    """What of a job does not fit, whose workers are in groups of so many, or all in one."""
    if group is not None and (group < 2 or job.workers % group):
        what = f"does not divide {job.workers} workers into groups"
        yield Mistake("exchange.group", what, group, "groups of two workers or more, all as large")
    elif algorithm == "halving":
        for each in [job.workers] if group is None else [group, job.workers // group]:
            if each & (each - 1):
                key = "workers" if group is None else "exchange.group"
                what = "is no power of two, which halving wants" if group is None else f"makes halving go among {each}"
                yield Mistake(key, what, group or job.workers, "a power of two; or ring or all_to_all")


def unfit(algorithm: Algorithm, job: Job, gpus: int, group: int | None = None) -> Iterator[Mistake]:
    """The same where hosts have so many accelerators."""
    of = group or job.workers
    if algorithm == "hierarchical" and (gpus == 1 or of % gpus):
        what = f"wants hosts full of accelerators, for {of} workers"
        yield Mistake("exchange.algorithm", what, algorithm, "host.gpus of 2 or more that divides the workers")


def parts(algorithm: Algorithm, workers: int) -> int:
    """The largest message is at most the so-manieth part of a bucket."""
    return workers if algorithm in ("ring", "all_to_all") else 2
