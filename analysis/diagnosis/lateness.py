"""Finds ranks that the others wait for, and whether their accelerator or their host is slow.

A slow rank waits in none of its groups, while all others wait for it, directly or not: ranks
that share a tensor-parallel group with it are late for their own gradient groups, but wait in the shared one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from gradwire.analysis.diagnosis.call_times import CallTimes, TimedCall
from gradwire.analysis.diagnosis.findings import STRAGGLER, Finding
from gradwire.scenarios.arrays import Floats, Ints
from gradwire.scenarios.lazily import np

MIN_SHARE = 0.025
"""Smallest part of the recorded time that a late rank must cost to be named; our choice."""
MIN_REPEATS, MIN_CALLS = 0.08, 5
"""Smallest part and number of its calls in which it must be the last."""
HOST_SHARE = 0.5
"""Part of the lateness that must be visible when the call is enqueued for it to come from the host."""


class Waits(NamedTuple):
    """Sums per rank, float64[ranks] in ns.

    `total`, the time that it waits in calls; `caused`, what the others wait for
    it alone; `last`, in how many calls it is the last; `calls`, in how many it takes part."""

    total: Floats
    caused: Floats
    last: Ints
    calls: Ints


def waits(times: CallTimes, calls: Sequence[TimedCall]) -> Waits:
    """Return the waits of all ranks in calls."""
    count = times.log.world_size
    total, caused = np.zeros(count), np.zeros(count)
    last, taking_part = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
    for call in calls:
        order = np.argsort(call.durations, kind="stable")
        total[call.ranks] += call.durations - call.durations[order[0]]
        first = call.ranks[order[0]]
        gap = call.durations[order[1]] - call.durations[order[0]]
        caused[first] += gap
        last[first] += gap > 0.05 * np.median(call.durations)
        taking_part[call.ranks] += 1
    return Waits(total, caused, last, taking_part)


def late_rank(times: CallTimes, calls: Sequence[TimedCall]) -> Finding | None:
    """Return the rank that costs most by being late, if it costs enough; None if no rank does."""
    sums = waits(times, calls)
    present = np.flatnonzero(sums.calls > 0)
    if len(present) < 3:
        return None
    order = present[np.argsort(sums.total[present] / sums.calls[present] * sums.calls[present].max(), kind="stable")]
    rank, runner_up = int(order[0]), int(order[1])
    lost = float(min(sums.caused[rank], sums.total[runner_up] - sums.total[rank]))
    share = lost / times.span_ns
    repeats = sums.last[rank] / sums.calls[rank]
    if share < MIN_SHARE or repeats < MIN_REPEATS or sums.last[rank] < MIN_CALLS:
        return None
    why = "host" if _host_part(times, calls, rank) > HOST_SHARE else "compute"
    cause = "its host enqueues calls late" if why == "host" else "its accelerator computes slowly"
    others = float(np.median(sums.total[present])) / 1e6
    return Finding(
        STRAGGLER,
        (rank,),
        why,
        "",
        share,
        f"rank {rank} is late: {cause}, and others wait {lost / 1e6:,.0f} ms ({100 * share:.1f} % of the time) for it",
        (
            f"rank {rank} waits {sums.total[rank] / 1e6:,.0f} ms in all, the median rank {others:,.0f} ms",
            f"it is the last of its group in {sums.last[rank]} of {sums.calls[rank]} collectives",
        ),
    )


def _host_part(times: CallTimes, calls: Sequence[TimedCall], rank: int) -> float:
    """Return the part of a rank's lateness that shows when it enqueues calls; 0 if not known. Only ranks of its host,
    which share its clock, are compared."""
    parts = []
    for call in calls:
        here = np.flatnonzero(call.ranks == rank)
        if not len(here) or call.enqueued[here[0]] < 0:
            continue
        same = (times.host_of[call.ranks] == times.host_of[rank]) & (call.ranks != rank) & (call.enqueued >= 0)
        wait = float(np.median(np.delete(call.durations, here[0])) - call.durations[here[0]])
        if same.any() and wait > 0:
            parts.append((float(call.enqueued[here[0]] - np.median(call.enqueued[same])), wait))
    if not parts:
        return 0.0
    late, waited = np.array(parts).T
    return float(np.maximum(late, 0).sum() / waited.sum())
