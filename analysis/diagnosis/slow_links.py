"""Finds links that are always slow: groups whose transfers take longer than comparable ones, and the hop in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from gradwire.analysis.diagnosis.call_times import CallClass, CallTimes, TimedCall
from gradwire.analysis.diagnosis.findings import SLOW_LINK, Finding
from gradwire.analysis.diagnosis.ring_hops import lateness_profile, ring_hops
from gradwire.scenarios.arrays import Floats
from gradwire.scenarios.lazily import np

MIN_RATIO = 1.35
"""Smallest ratio of a group's transfer times to those of its siblings for a slow link; our choice."""
MIN_EXPECTED_RATIO = 2.0
"""Smallest ratio to simulated times, which are less certain."""
MIN_SHARE = 0.005
"""Smallest part of the recorded time that a slow group must cost."""
NAMED_MATCH, NAMED_STRENGTH = 0.2, 2.0
"""Smallest match of the best hop, and its strength in standard errors, to name it in a group that is slow."""
ALONE_LOSS = 0.5
"""Part of such a group's transfers that counts as lost, since nothing shows how fast they would be; our choice."""
ALONE_MATCH, ALONE_STRENGTH, ALONE_MEMBERS = 0.2, 5.0, 16
"""The same for a group whose transfers cannot be compared, and the number of members that it needs; our choice: in
healthy jobs the best match of 64 members stays below 0.15."""


LAG, LAG_REPEATS, LAG_SHARE, LAG_BYTES = 0.3, 0.6, 0.025, 1 << 20
"""A rank lags if it takes this part of the transfer time longer than all others, in this part of the calls of at least
so many bytes, and costs this part of the time; our choice."""


class SlowGroup(NamedTuple):
    """A group, the ratio of its transfer times to the reference, the lost ns, and the source of the reference."""

    group: int
    ratio: float
    lost_ns: float
    reference: str


class HopMatch(NamedTuple):
    """The hop that explains best in which order the members of a group finish. `match` : part of the variance of the
    mean lateness that it explains; `strength` : in standard errors."""

    sender: int
    receiver: int
    match: float
    strength: float

    def is_clear(self, match: float, strength: float) -> bool:
        """Return True if the hop stands out."""
        return self.match >= match and self.strength >= strength


def slow_groups(times: CallTimes, expected_ns: Mapping[CallClass, float]) -> list[SlowGroup]:
    """Return the groups whose transfers are slow, the most lost time first. The reference of a class of calls is the
    lower quartile of its groups; for a single group the expected time, if given."""
    measured: dict[int, float] = {}
    reference: dict[int, float] = {}
    simulated: dict[int, tuple[float, float]] = {}
    for kind, calls in times.by_class.items():
        by_group: dict[int, list[float]] = {}
        for call in calls:
            by_group.setdefault(call.group, []).append(float(call.transfer))
        medians = {group: float(np.median(values)) for group, values in by_group.items()}
        for group, values in by_group.items():
            if len(medians) > 1:
                measured[group] = measured.get(group, 0.0) + medians[group] * len(values)
                typical = float(np.quantile(list(medians.values()), 0.25, method="lower"))
                reference[group] = reference.get(group, 0.0) + typical * len(values)
            elif kind in expected_ns:
                known = simulated.get(group, (0.0, 0.0))
                here = medians[group] * len(values), expected_ns[kind] * len(values)
                simulated[group] = known[0] + here[0], known[1] + here[1]
    slow = [
        SlowGroup(group, total / reference[group], total - reference[group], "comparable groups")
        for group, total in measured.items()
        if total > MIN_RATIO * reference[group] and total - reference[group] > MIN_SHARE * times.span_ns
    ]
    slow += [
        SlowGroup(group, total / wanted, total - wanted, "the simulated time")
        for group, (total, wanted) in simulated.items()
        if total > MIN_EXPECTED_RATIO * wanted and total - wanted > MIN_SHARE * times.span_ns and group not in measured
    ]
    return sorted(slow, key=lambda entry: -entry.lost_ns)


def slow_link(times: CallTimes, calls: Sequence[TimedCall], expected_ns: Mapping[CallClass, float]) -> Finding | None:
    """Return the slow link that costs most; without its ends if no hop stands out. None if no group is slow."""
    groups = slow_groups(times, expected_ns)
    if not groups:
        return _by_order_alone(times, calls) or lagging_rank(times, calls)
    worst = groups[0]
    title = times.log.groups[worst.group].title
    ratio = f"{worst.ratio:.1f} times as long as {worst.reference}"
    evidence = [f"transfers of group {title} take {ratio}"]
    if len(groups) > 1:
        more = ", ".join(times.log.groups[entry.group].title for entry in groups[1:4])
        evidence.append(f"{len(groups) - 1} more groups are slow: {more}{', ...' if len(groups) > 4 else ''}")
    share = worst.lost_ns / times.span_ns
    hop = locate(times, calls, worst.group)
    if hop is None or not hop.is_clear(NAMED_MATCH, NAMED_STRENGTH):
        if (rank := common_rank(times, [entry.group for entry in groups])) is not None:
            evidence.append(f"rank {rank} is the only one in all slow groups")
            what = f"a link of rank {rank} is slow: group {title} takes {ratio}"
            return Finding(SLOW_LINK, (rank,), "link", title, share, what, evidence)
        what = f"a link of group {title} is slow: its collectives take {ratio}; no hop of its rings stands out"
        return Finding(SLOW_LINK, (), "path", title, share, what, evidence)
    what = f"the link from rank {hop.sender} to rank {hop.receiver} is slow: group {title} takes {ratio}"
    return Finding(SLOW_LINK, (hop.sender, hop.receiver), "link", title, share, what, [*evidence, _order_text(hop)])


def common_rank(times: CallTimes, groups: Sequence[int]) -> int | None:
    """Return the only rank that several groups between hosts share; None if there is none, or are more."""
    members = [set(times.log.groups[group].members) for group in groups]
    shared = set.intersection(*members) if len(members) > 1 else set()
    return next(iter(shared)) if len(shared) == 1 else None


def lagging_rank(times: CallTimes, calls: Sequence[TimedCall]) -> Finding | None:
    """Return the rank that alone finishes late in most large calls between hosts: so its own link is slow. A rank that
    had only begun early would have to compute faster than all others."""
    longest, lost = np.zeros(times.log.world_size, dtype=np.int64), np.zeros(times.log.world_size)
    counts = np.zeros(times.log.world_size, dtype=np.int64)
    for call in calls:
        if call.kind.crosses_hosts and call.kind.nbytes >= LAG_BYTES and len(call.ranks) > 3:
            counts[call.ranks] += 1
            second, last = np.argsort(call.durations)[-2:].tolist()
            gap = call.durations[last] - call.durations[second]
            if gap > LAG * call.transfer:
                longest[call.ranks[last]] += 1
                lost[call.ranks[last]] += gap
    rank = int(np.argmax(lost))
    share = float(lost[rank]) / times.span_ns
    if longest[rank] < max(LAG_REPEATS * counts[rank], 3) or share < LAG_SHARE:
        return None
    what = f"a link of rank {rank} is slow: it alone is late in {longest[rank]} of {counts[rank]} large collectives"
    return Finding(SLOW_LINK, (rank,), "link", "", share, what, ())


def _by_order_alone(times: CallTimes, calls: Sequence[TimedCall]) -> Finding | None:
    """Return the slow link of a group without comparable ones, if the order in which members finish shows it."""
    best: tuple[float, HopMatch, int] | None = None
    for group in dict.fromkeys(call.group for call in calls if call.kind.crosses_hosts):
        own = [call for call in calls if call.group == group]
        if own[0].kind.members < ALONE_MEMBERS:
            continue
        hop = locate(times, calls, group)
        if hop is not None and hop.is_clear(ALONE_MATCH, ALONE_STRENGTH):
            lost = ALONE_LOSS * sum(call.transfer for call in own)
            if lost > MIN_SHARE * times.span_ns and (best is None or lost > best[0]):
                best = lost, hop, group
    if best is None:
        return None
    lost, hop, group = best
    title = times.log.groups[group].title
    what = (
        f"the link from rank {hop.sender} to rank {hop.receiver} is slow: it paces collectives of group {title}, whose "
        f"transfers take {100 * lost / ALONE_LOSS / times.span_ns:.0f} % of the time"
    )
    share = lost / times.span_ns
    return Finding(SLOW_LINK, (hop.sender, hop.receiver), "link", title, share, what, [_order_text(hop)])


def _order_text(hop: HopMatch) -> str:
    return (
        f"members behind rank {hop.receiver} finish one after the other, it last: this explains "
        f"{100 * hop.match:.0f} % of the differences ({hop.strength:.0f} standard errors)"
    )


def locate(times: CallTimes, calls: Sequence[TimedCall], group: int) -> HopMatch | None:
    """Return the hop that best explains in which order a group's members finish; None within a host."""
    own = [call for call in calls if call.group == group]
    members = times.log.groups[group].members or tuple(sorted({int(rank) for call in own for rank in call.ranks}))
    hops = ring_hops(members, times.host_of)
    kind = max((call.kind for call in own), key=lambda kind: kind.nbytes, default=None)
    if not hops or kind is None:
        return None
    scores = finishing_order(times, own, members)
    if len(scores) < 3:
        return None
    profiles = np.stack([lateness_profile(kind.kind, hop, times.host_of, members) for hop in hops])
    projections = scores @ profiles.T  # observations x hops
    mean = scores.mean(axis=0)
    best = int(np.argmax(projections.mean(axis=0)))
    size = float(projections[:, best].mean())
    error = float(projections[:, best].std(ddof=1)) / len(scores) ** 0.5
    match = size**2 / max(float(((mean - mean.mean()) ** 2).sum()), 1e-9) if size > 0 else 0.0
    return HopMatch(hops[best].sender, hops[best].receiver, match, size / max(error, 1e-9))


def finishing_order(times: CallTimes, calls: Sequence[TimedCall], members: Sequence[int]) -> Floats:
    """Return how late each member finishes in each call of a group: float64[calls, members], ns around the median.
    Missing members have 0.

    Where logs hold starts, ends are compared, and the smallest calls of all ranks give the hosts' clocks. Otherwise the
    durations are, in which what comes from different starts averages out.
    """
    position = {rank: index for index, rank in enumerate(members)}
    offset = clock_offsets(times)
    rows = []
    for call in calls:
        here = [index for index, rank in enumerate(call.ranks.tolist()) if rank in position]
        if len(here) < max(3, len(members) * 3 // 4):
            continue
        values = call.durations[here].astype(np.float64)
        if offset is not None and (call.started[here] >= 0).all():
            values += call.started[here] - call.started[here].min() - offset[call.ranks[here]]
        values -= np.median(values)
        limit = 5 * float(np.median(np.abs(values))) + 1.0
        row = np.zeros(len(members))
        row[[position[int(rank)] for rank in call.ranks[here]]] = np.clip(values, -limit, limit)
        rows.append(row)
    return np.array(rows)


def clock_offsets(times: CallTimes) -> Floats | None:
    """Return how far each rank's clock is ahead, in ns; None if logs hold no starts. The smallest collectives of all
    ranks, which all leave at about the same time, give it."""
    whole = [call for call in times.calls if len(call.ranks) == len(times.log.ranks) and (call.started >= 0).all()]
    if not whole:
        return None
    smallest = min(call.kind.nbytes for call in whole)
    ends = np.array([call.started + call.durations for call in whole if call.kind.nbytes == smallest], dtype=np.float64)
    offset = np.zeros(times.log.world_size)
    offset[list(times.log.ranks)] = np.median(ends - np.median(ends, axis=1, keepdims=True), axis=0)
    return offset
