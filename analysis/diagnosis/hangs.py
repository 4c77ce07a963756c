"""Finds collectives that some members have entered and others have not, and members that disagree on a call.

Groups number their calls, so the first call that some members of a group have entered and others have not is where it
stands. A rank that is missing in one group may itself wait in another: it is the root only if it waits nowhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from gradwire.analysis.diagnosis.findings import HANG, Finding
from gradwire.scenarios.arrays import Ints
from gradwire.scenarios.lazily import np
from gradwire.traces.collective_logs.records import KINDS, POINT_TO_POINT, STATES, CollectiveLog

_COMPLETED = STATES.index("completed")


class StuckCall(NamedTuple):
    """A call of a group that some members have entered (`waiting`) and others have not (`missing`)."""

    group: int
    sequence: int
    kind: str
    nbytes: int
    waiting: tuple[int, ...]
    missing: tuple[int, ...]


def stuck_calls(log: CollectiveLog) -> list[StuckCall]:
    """Return the stuck call of each group that has one. It is the first that is not completed somewhere and that a
    member with a log has not entered. Ranks without a log do not count as missing."""
    found = []
    present = set(log.ranks)
    point_to_point = [KINDS.index(kind) for kind in POINT_TO_POINT]
    for number, group in enumerate(log.groups):
        rows = np.flatnonzero((log.group == number) & (log.sequence >= 0) & ~np.isin(log.kind, point_to_point))
        members = [rank for rank in group.members if rank in present]
        if not len(rows) or len(members) < 2:
            continue
        newest = {rank: int(log.sequence[rows[log.rank[rows] == rank]].max(initial=-1)) for rank in members}
        pending = rows[log.state[rows] != _COMPLETED]
        for sequence in sorted(set(log.sequence[pending].tolist())):
            missing = tuple(rank for rank in members if newest[rank] < sequence)
            here = pending[log.sequence[pending] == sequence]
            if missing:
                waiting = tuple(sorted(set(log.rank[here].tolist())))
                first = here[0]
                found.append(
                    StuckCall(number, sequence, KINDS[log.kind[first]], int(log.nbytes[first]), waiting, missing)
                )
                break
    return found


def hang(log: CollectiveLog) -> Finding | None:
    """Return the ranks that all others wait for if calls are stuck; None if none is."""
    stuck = stuck_calls(log)
    if not stuck:
        return None
    waiting = {rank for call in stuck for rank in call.waiting}
    missing = {rank for call in stuck for rank in call.missing}
    root = sorted(missing - waiting) or sorted(missing)
    calls = [call for call in stuck if set(call.missing) & set(root)]
    first = max(calls, key=lambda call: len(call.waiting))
    title = log.groups[first.group].title
    named = ", ".join(map(str, root[:8])) + (", ..." if len(root) > 8 else "")
    plural = "s" * (len(root) > 1)
    what = (
        f"rank{plural} {named} ha{'ve' if plural else 's'} not entered {first.kind} number {first.sequence} of {title}"
    )
    evidence = [
        f"{log.groups[call.group].title}: {call.kind} number {call.sequence} waits for rank"
        f"{'s' * (len(call.missing) > 1)} {', '.join(map(str, call.missing[:8]))}"
        for call in sorted(stuck, key=lambda call: -len(call.waiting))[:8]
    ]
    return Finding(HANG, tuple(root), "compute", title, 1.0, f"{what}; {_waiting(len(waiting))}", evidence)


def _waiting(count: int) -> str:
    return f"{count} ranks wait" if count != 1 else "1 rank waits"


def disagreements(log: CollectiveLog) -> list[str]:
    """Return sentences on the first calls in which members differ in kind, or in bytes of an all-reduce."""
    found: list[str] = []
    for group, sequence, rows in log.calls():
        kinds, sizes = set(log.kind[rows].tolist()), _sizes(log, rows)
        title = log.groups[group].title
        if len(kinds) > 1:
            names = " and ".join(sorted(KINDS[kind] for kind in kinds))
            found.append(f"call {sequence} of {title}: members call {names}")
        elif len(sizes) > 1 and KINDS[next(iter(kinds))] == "all_reduce":
            found.append(f"all_reduce {sequence} of {title}: members have {' and '.join(map(str, sizes))} bytes")
    return found[:8]


def _sizes(log: CollectiveLog, rows: Ints) -> Sequence[int]:
    return sorted({size for size in log.nbytes[rows].tolist() if size >= 0})
