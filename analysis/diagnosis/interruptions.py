"""Finds links that come and go: calls that take far longer than the same call at other times, and the hop behind them.

In a *stall* many members of a call take far longer at once. If a single rank, host or group does not, the others have
waited for it: that is a *pause*, such as a garbage collection. What follows a stall is its consequence.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from gradwire.analysis.diagnosis.call_times import CallClass, CallTimes, TimedCall
from gradwire.analysis.diagnosis.findings import FLAPPING, Finding
from gradwire.analysis.diagnosis.ring_hops import ring_hops, stalled_members
from gradwire.analysis.diagnosis.slow_links import common_rank
from gradwire.scenarios.arrays import Flags, Ints
from gradwire.scenarios.lazily import np

FACTOR, SLACK_NS = 3.0, 10_000_000
"""A call is stalled if it takes longer than FACTOR times its group's usual duration, and SLACK_NS more; our choice."""
USUAL = 0.6
"""Quantile that counts as usual: some calls may be stalled, and some rank may always be late."""
MIN_STALLS, MIN_CALLS = 2, 6
"""Interruptions that make a link come and go, and calls of a group that show what is usual; our choice."""
MIN_SHARE = 0.01
NAMED_SHARE, NAMED_MARGIN = 0.6, 0.4
"""Part of the partial stalls that a hop must explain, and its lead over the next one in stalls, to be named."""


class Stall(NamedTuple):
    """A call in which members are `late` (by position in the call), by `excess_ns`, and when it was enqueued."""

    call: TimedCall
    late: Flags
    excess_ns: float
    at_ns: float
    is_pause: bool


def stalls(times: CallTimes) -> list[Stall]:
    """Return the stalls and pauses of all calls, by time."""
    by_group: dict[tuple[CallClass, int], list[TimedCall]] = {}
    for call in times.calls:
        by_group.setdefault((call.kind, call.group), []).append(call)
    found = []
    for calls in by_group.values():
        if len(calls) < MIN_CALLS:
            continue
        usual = float(np.quantile(np.concatenate([call.durations for call in calls]), USUAL))
        for call in calls:
            longest = int(call.durations.max())
            if longest <= FACTOR * usual + SLACK_NS:
                continue
            late = call.durations > (usual + longest) / 2
            is_pause = _come_late(times, call, call.ranks[~late])
            known = call.enqueued[call.enqueued >= 0]
            at = float(np.median(known)) if len(known) else float(call.sequence)
            found.append(Stall(call, late, float(np.median(call.durations[late])) - usual, at, is_pause))
    return sorted(found, key=lambda stall: stall.at_ns)


def _come_late(times: CallTimes, call: TimedCall, normal: Ints) -> bool:
    """Return True if the others have only waited for the `normal` members. These are then at most half of them, all
    on one host, or all in one smaller group that has delayed them."""
    if not 0 < len(normal) <= len(call.ranks) // 2:
        return False
    if len(set(times.host_of[normal].tolist())) == 1:
        return True
    ranks = set(normal.tolist())
    return any(len(group.members) < call.kind.members and ranks <= set(group.members) for group in times.log.groups)


def roots(found: Sequence[Stall]) -> list[Stall]:
    """Return one stall of each interruption, the first long one between hosts. Stalls that follow each other within
    the excess are one interruption; those with pauses only are left out."""
    clusters: list[list[Stall]] = []
    until = -np.inf
    for stall in found:
        if stall.at_ns > until:
            clusters.append([])
        clusters[-1].append(stall)
        until = max(until, stall.at_ns + stall.excess_ns)
    chosen = []
    for cluster in clusters:
        candidates = [stall for stall in cluster if not stall.is_pause and stall.call.kind.crosses_hosts]
        if candidates:
            longest = max(stall.excess_ns for stall in candidates)
            first = next(stall for stall in candidates if stall.excess_ns > longest / 2)
            chosen.append(_cause(first, cluster))
    return chosen


def _cause(stall: Stall, cluster: Sequence[Stall]) -> Stall:
    """Return the stall that has made members late for this one: its late members are those that are on time here."""
    on_time = set(stall.call.ranks[~stall.late].tolist())
    for other in cluster:
        if other is stall:
            break
        if on_time and set(other.call.ranks[other.late].tolist()) == on_time:
            return other
    return stall


def flapping_link(times: CallTimes) -> tuple[Finding | None, list[Stall]]:
    """Return the link that is interrupted repeatedly, if there is one, and all stalls and pauses."""
    found = stalls(times)
    events = roots(found)
    share = sum(stall.excess_ns for stall in events) / times.span_ns
    if len(events) < MIN_STALLS or share < MIN_SHARE:
        return None, found
    group, count = Counter(stall.call.group for stall in events).most_common(1)[0]
    chosen = [stall for stall in events if stall.call.group == group]
    title = times.log.groups[group].title
    ends, matched, partial = _locate(times, chosen, group)
    longest = max(stall.excess_ns for stall in events) / 1e6
    evidence = [
        f"{len(events)} interruptions of up to {longest:,.0f} ms; {count} in collectives of group {title}",
        f"at other times the same collectives take {_usual_ms(times, chosen[0]):,.1f} ms",
    ]
    frequent = [
        number for number, often in Counter(stall.call.group for stall in events).items() if often >= MIN_STALLS
    ]
    if not matched and (rank := common_rank(times, frequent)) is not None:
        evidence.append(f"rank {rank} is the only one in all interrupted groups")
        what = f"a link of rank {rank} comes and goes: {len(events)} interruptions of up to {longest:,.0f} ms"
        return Finding(FLAPPING, (rank,), "link", title, share, what, evidence), found
    if not matched:
        what = f"a link of group {title} comes and goes: {len(events)} interruptions of up to {longest:,.0f} ms"
        return Finding(FLAPPING, (), "path", title, share, what + "; no hop stands out", evidence), found
    evidence.append(f"in {matched} of {partial} partial interruptions the late members begin behind rank {ends[1]}")
    what = f"the link from rank {ends[0]} to rank {ends[1]} comes and goes: {len(events)} interruptions"
    return Finding(FLAPPING, ends, "link", title, share, f"{what} of up to {longest:,.0f} ms", evidence), found


def _usual_ms(times: CallTimes, stall: Stall) -> float:
    calls = [call for call in times.by_class[stall.call.kind] if call.group == stall.call.group]
    return float(np.median([call.transfer for call in calls])) / 1e6


def _locate(times: CallTimes, found: Sequence[Stall], group: int) -> tuple[tuple[int, int], int, int]:
    """Return (sender, receiver) of the hop that explains most partial stalls; in how many it does, and of how many."""
    members = times.log.groups[group].members
    hops = ring_hops(members, times.host_of) if members else []
    partial = [stall for stall in found if not stall.late.all() and stall.call.is_whole]
    if not hops or not partial:
        return (-1, -1), 0, len(partial)
    order = {rank: position for position, rank in enumerate(members)}
    patterns = np.stack([[stalled_members(hop, count) for count in range(1, len(members))] for hop in hops])
    votes = np.zeros(len(hops))
    for stall in partial:
        late = np.zeros(len(members), dtype=np.bool_)
        late[[order[rank] for rank in stall.call.ranks.tolist()]] = stall.late
        distance = (patterns != late).sum(axis=2).min(axis=1)
        if distance.min() <= len(members) // 8:
            votes += np.where(distance == distance.min(), 1.0 / (distance == distance.min()).sum(), 0.0)
    second, best = np.argsort(votes)[-2:].tolist() if len(votes) > 1 else (0, 0)
    if votes[best] < NAMED_SHARE * len(partial) or votes[best] - votes[second] < NAMED_MARGIN:
        return (-1, -1), 0, len(partial)
    return (hops[best].sender, hops[best].receiver), round(float(votes[best])) or 1, len(partial)
