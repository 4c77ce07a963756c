"""Schedules all-reduces in two halves, a reduce-scatter that leaves every worker a part of the sums, and an all-gather.

Sharded training computes between the halves.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from gradwire.scenarios.errors import Mistake
from gradwire.scenarios.lazily import np
from gradwire.workload.collectives.common.staged_table import StagedTable
from gradwire.workload.collectives.common.transfer_schedule import (
    TRANSFER_COUNTS,
    WALKS,
    Transfers,
    group_transfers,
    transfers,
)

if TYPE_CHECKING:
    from gradwire.scenarios.schema.job.job import Job

Algorithm = Literal["ring", "all_to_all", "halving", "hierarchical"]

_COLUMNS = ("stage", "src", "dst", "first", "count", "adds", "rail")
"""Columns of `Transfers`."""


def schedule(algorithm: Algorithm, workers: int, rails: int, inside: int) -> Transfers:
    """Return both halves for `workers` whose hosts have `rails` NICs, `inside` of them consecutive in one machine."""
    from gradwire.workload.collectives.allreduce.hierarchical import nested_transfers
    from gradwire.workload.collectives.allreduce.ring import ring_transfers

    if algorithm == "ring":
        return ring_transfers(workers, rails, inside, inside)
    if algorithm == "hierarchical" and 1 < inside < workers:
        return nested_transfers(workers, rails, inside)
    if algorithm == "hierarchical":  # one machine, or workers that are not placed machine by machine
        return ring_transfers(workers, rails, inside, inside)
    return transfers(WALKS[algorithm](workers), workers, rails)


def count_transfers(algorithm: Algorithm, workers: int, rails: int, inside: int) -> int:
    """Return the number of transfers of `schedule`."""
    from gradwire.workload.collectives.allreduce.hierarchical import count_nested_transfers

    if algorithm == "hierarchical" and 1 < inside < workers:
        return count_nested_transfers(workers, rails, inside)
    if algorithm in ("ring", "hierarchical"):
        return TRANSFER_COUNTS["ring"](workers) * rails * inside
    return TRANSFER_COUNTS[algorithm](workers) * rails


def count_first_transfers(algorithm: Algorithm, workers: int, rails: int) -> int:
    """Return a lower bound of the transfers of either half that wait for no other one."""
    return workers * (workers - 1 if algorithm == "all_to_all" else 1) * rails


def half_of(plan: Transfers, adds: bool) -> Transfers:
    """Return the reduce-scatter or the all-gather of an all-reduce."""
    selected = plan.adds == adds
    return replace(plan, **{name: getattr(plan, name)[selected] for name in _COLUMNS})


def grouped_halves(
    algorithm: Algorithm, workers: int, rails: int, inside: int, group: int
) -> tuple[Transfers, Transfers]:
    """Return an all-gather inside groups of consecutive workers, and the reduction that precedes it.

    The reduction leaves each worker of a group its part of the sums over all: a reduce-scatter inside the groups, and
    an all-reduce of every part among its owners.
    """
    within = _within(inside, group)
    whole = schedule(algorithm, group, rails, within)
    gather, scatter = half_of(whole, adds=False), half_of(whole, adds=True)
    replicas = workers // group
    if replicas == 1:
        return gather, scatter
    return _side_by_side(gather, group, replicas), _summed(scatter, gather, algorithm, group, replicas)


def count_grouped_transfers(algorithm: Algorithm, workers: int, rails: int, inside: int, group: int) -> tuple[int, int]:
    """Return the number of transfers of each result of `grouped_halves`."""
    within, replicas = _within(inside, group), workers // group
    per_half = count_transfers(algorithm, group, rails, within) // 2 * replicas
    lanes = rails * (within if algorithm == "ring" or (algorithm == "hierarchical" and not 1 < within < group) else 1)
    across = TRANSFER_COUNTS["ring" if algorithm == "hierarchical" else algorithm](replicas)
    return per_half, per_half + (across * group * lanes if replicas > 1 else 0)


def _within(inside: int, group: int) -> int:
    """Return the consecutive workers of a group in one machine, if machines hold `inside` of all workers."""
    return inside if group % inside == 0 else group if inside % group == 0 else 1


def _side_by_side(plan: Transfers, group: int, replicas: int) -> Transfers:
    """Repeat `plan` in every group, stage by stage, with each segment cut into as many parts as there are groups."""
    plan = group_transfers(plan, np.arange(group * replicas).reshape(replicas, group))
    return replace(plan, first=plan.first * replicas, count=plan.count * replicas, segments=plan.segments * replicas)


def _summed(scatter: Transfers, gather: Transfers, algorithm: Algorithm, group: int, replicas: int) -> Transfers:
    """Return a reduce-scatter in every group, followed by an all-reduce of each segment among its owners, one in every
    group."""
    owner, rail = np.empty((2, gather.segments), dtype=np.int64)
    for row in reversed(range(len(gather))):  # the first sender of a segment has its whole sum
        run = slice(int(gather.first[row]), int(gather.first[row] + gather.count[row]))
        owner[run], rail[run] = gather.src[row], gather.rail[row]
    inner = _side_by_side(scatter, group, replicas)
    outer = transfers(WALKS["ring" if algorithm == "hierarchical" else algorithm](replicas), replicas)
    count, stages = len(owner), int(inner.stage.max()) + 1
    segment = np.tile(np.arange(count), len(outer))
    tail = {name: np.repeat(getattr(outer, name), count) for name in _COLUMNS}
    tail["stage"] += stages
    tail["first"] += segment * replicas
    for name in ("src", "dst"):
        tail[name] = tail[name] * group + owner[segment]
    tail["rail"] = rail[segment]
    columns = {name: np.concatenate((getattr(inner, name), tail[name])) for name in _COLUMNS}
    return Transfers(**columns, segments=inner.segments)


def algorithm_mistakes(algorithm: Algorithm, job: Job, group: int | None = None) -> Iterator[Mistake]:
    """Yield the mistakes of a job whose workers are in groups of `group`, or all in one."""
    if group is not None and (group < 2 or job.workers % group):
        what = f"does not divide {job.workers} workers into groups"
        yield Mistake("exchange.group", what, group, "groups of equal size, two workers or more")
    elif algorithm == "halving":
        for size in [job.workers] if group is None else [group, job.workers // group]:
            if size & (size - 1):
                key = "workers" if group is None else "exchange.group"
                what = "is not a power of two, as halving needs" if group is None else f"makes halving work on {size}"
                yield Mistake(key, what, group or job.workers, "a power of two; or ring or all_to_all")


def host_mistakes(algorithm: Algorithm, job: Job, gpus: int, group: int | None = None) -> Iterator[Mistake]:
    """Yield the mistakes of a job whose hosts have `gpus` accelerators."""
    size = group or job.workers
    if algorithm == "hierarchical" and (gpus == 1 or size % gpus):
        what = f"needs hosts full of accelerators, for {size} workers"
        yield Mistake("exchange.algorithm", what, algorithm, "host.gpus of 2 or more that divides the workers")


def largest_message_divisor(algorithm: Algorithm, workers: int) -> int:
    """Return the divisor of a bucket that bounds the largest message."""
    return workers if algorithm in ("ring", "all_to_all") else 2


class HalfTable(StagedTable):
    """One half of an all-reduce of buckets."""

    adds: ClassVar[bool]
    """True for the half that sums."""

    algorithm: Literal["ring", "all_to_all", "halving"] = "ring"
    """Algorithm: a ring, direct exchange between all workers, or recursive halving (doubling in an all-gather)."""

    def misfits(self, job: Job) -> Iterator[Mistake]:
        yield from super().misfits(job)
        if self.algorithm == "halving" and job.workers & (job.workers - 1):
            yield Mistake("workers", "is not a power of two, as halving needs", job.workers, "ring or all_to_all")

    def parts(self, workers: int) -> int:
        return 2 if self.algorithm == "halving" else workers

    def sent(self, workers: int, rails: int, inside: int) -> int:
        return TRANSFER_COUNTS[self.algorithm](workers) // 2 * rails

    def simultaneous_messages(self, setting: Any) -> int:
        return count_first_transfers(self.algorithm, setting.members, setting.rails) * setting.copies

    def transfers(self, workers: int, rails: int) -> Transfers:
        return transfers([row for row in WALKS[self.algorithm](workers) if row.adds == self.adds], workers, rails)
