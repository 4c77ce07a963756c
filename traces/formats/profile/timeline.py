"""`timeline` sorts a profile's kernels by stream and launch; a time that depends on an implausible record raises
`DoubtfulRecord`.

A stream runs its kernels one after the other in the order of their launches. So a kernel is *doubtful* if it begins
before its own launch, is out of its stream's order, overlaps a neighbor, has no duration while others of its name have
one, outlasts the recording, or has no launch although later kernels have one. Doubtful records are counted by kind.
They never determine a time: `DoubtfulRecord` is raised where one would.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from gradwire.scenarios.arrays import Flags, Floats, Ints
from gradwire.traces.formats.draft import Draft
from gradwire.traces.formats.profile.kernel_checks import (
    CLOCK_US,
    MAX_LOST_SHARE,
    Kernels,
    before_launch,
    duplicates,
    long_after_launch,
    on_wrong_stream,
    out_of_order,
    outlasting,
    overlapping,
    without_duration,
)
from gradwire.traces.formats.profile.records import DEVICE, HOST, UNKNOWN, Activities, Records

EARLIER_KERNELS = "kernels launched before the recording began"
_LAUNCHES_KERNELS = ("launch", "enqueue")


class DoubtfulRecord(Exception):
    """Raised if a time depends on a doubtful record."""


class KernelStream:
    """Valid kernels of one stream by launch, and the positions of doubtful ones."""

    def __init__(self, valid: Kernels, doubtful: Kernels, lost_launches: Floats, is_step_lost: bool) -> None:
        order = np.lexsort((valid.start, valid.launch))
        valid = valid.take(order)
        self.launch, self.start = valid.launch, valid.start
        self.end: Floats = np.maximum.accumulate(valid.end) if len(valid) else valid.end
        self.doubtful_after = np.zeros(len(valid) + 1, dtype=bool)  # [k]: after the first k kernels
        launches = [lost_launches]
        if len(valid) and len(doubtful):
            length = max(float(self.end[-1] - self.start[0]), 1.0)
            has_start = (doubtful.start > self.start[0] - length) & (doubtful.start < self.end[-1] + length)
            self._uncertain_after(np.searchsorted(self.start, doubtful.start[has_start], side="right"))
            launch = doubtful.launch
            has_launch = (launch > self.launch[0] - length) & (launch < self.launch[-1] + length)
            launches.append(launch[has_launch])
            # Ids grow from launch to launch: they locate kernels with neither time.
            if (np.diff(valid.correlation) >= 0).all():
                has_no_time = ~has_start & ~has_launch & np.isfinite(doubtful.correlation)
                positions = np.searchsorted(valid.correlation, doubtful.correlation[has_no_time])
                # After all others they belong to the step whose functions were lost as well.
                self._uncertain_after(positions[positions < len(valid)] if is_step_lost else positions)
        self.doubtful_launches = np.sort(np.concatenate(launches))
        self._lost_launches = lost_launches

    def _uncertain_after(self, positions: Ints) -> None:
        self.doubtful_after[positions] = True

    def done(self, moment: float) -> float:
        """Return the end of all kernels launched before `moment`; NaN without any. Raise Doubt if unknown."""
        count = int(np.searchsorted(self.launch, moment, side="left"))
        if self.doubtful_after[count] or self._uncertainties(self.launch[count - 1] if count else -np.inf, moment):
            raise DoubtfulRecord
        return float(self.end[count - 1]) if count else float("nan")

    def first(self, begin: float, end: float) -> int | None:
        """Return the index of the first kernel launched from `begin` up to `end`; None without any."""
        index = int(np.searchsorted(self.launch, begin, side="left"))
        if self._uncertainties(begin, min(end, self.launch[index] if index < len(self.launch) else np.inf)):
            raise DoubtfulRecord
        if index == len(self.launch) or self.launch[index] >= end:
            return None
        if self.doubtful_after[index]:
            raise DoubtfulRecord
        return index

    def count(self, begin: float, end: float) -> int:
        """Return the number of kernels launched from `begin` up to `end`, including those not in the file."""
        first, last = np.searchsorted(self.launch, (begin, end), side="left")
        return int(last - first) + self._lost(begin, end)

    def misses_many(self, begin: float, end: float) -> bool:
        """Return True if the kernels of many launches from `begin` up to `end` are not in the file."""
        return self._lost(begin, end) > MAX_LOST_SHARE * self.count(begin, end)

    def _lost(self, begin: float, end: float) -> int:
        first, last = np.searchsorted(self._lost_launches, (begin, end), side="left")
        return int(last - first)

    def kernel_span(self, begin: float, end: float) -> float | None:
        """Return the time from the first to the last kernel launched from `begin` up to `end`; None without any."""
        index = self.first(begin, end)
        return None if index is None else self.done(end) - float(self.start[index])

    def _uncertainties(self, begin: float, end: float) -> bool:
        first, last = np.searchsorted(self.doubtful_launches, (begin, end), side="left")
        return bool(first < last)


class AcceleratorTimeline:
    """Streams of an accelerator; `compute` is the one with the most kernels, None for a CPU-only profile."""

    def __init__(self, streams: dict[int, KernelStream], compute: int | None, launches: tuple[Floats, Floats]) -> None:
        self.streams = streams
        self.compute = None if compute is None else streams[compute]
        self._launches = launches
        self.title = "accelerator"
        self.has_doubts = False  # kernels are doubtful, or older than the recording
        self.has_launches = len(launches[0]) > 0

    def launched(self, correlations: Iterable[float]) -> Floats:
        """Return the times of the launches with these ids, NaN without one."""
        return _joined(self._launches, np.array(list(correlations), dtype=np.float64))


def timeline(records: Records, draft: Draft) -> AcceleratorTimeline:
    """Return the checked timeline of the records; doubtful and skipped ones are counted in `draft`."""
    host, device = _sides(records, draft)
    launches = _launches(host, device, draft)
    kernels = _kernels(device, launches)
    communicating = _column(device.values(), "communicates").astype(bool)
    computing = kernels.take(~communicating)
    _count_launches(host, kernels, draft)
    lost = _lost_launches(host, kernels, records)
    if not len(computing):
        return AcceleratorTimeline({}, None, launches)
    has_launches = bool(np.isfinite(computing.launch).any())
    if not has_launches:
        draft.doubtful["kernels without launches: taken as launched when they start"] += len(computing)
        computing.launch = computing.start.copy()
    main = _main_row(computing)
    exchange = set(np.unique(kernels.row[communicating]).tolist()) - {main}
    is_moved = on_wrong_stream(computing, main, max(len(records.optimizers), len(records.steps)))
    computing.row = np.where(is_moved, main, computing.row)
    is_repeated = duplicates(computing)
    draft.doubtful["kernels recorded twice"] += int(is_repeated.sum())
    computing, is_moved = computing.take(~is_repeated), is_moved[~is_repeated]
    has_no_duration = without_duration(computing)
    streams = {}
    for row in np.unique(computing.row).tolist():
        if row in exchange:
            continue
        on_row = computing.row == row
        if row != main:
            draft.skipped["kernels of other streams than the one that computes"] += int(on_row.sum())
        streams[row] = _checked(
            computing.take(on_row),
            has_no_duration[on_row],
            is_moved[on_row],
            lost if row == main else lost[:0],
            records.lost["function"] > 0,
            draft,
        )
    checked = AcceleratorTimeline(streams, main, launches)
    if any(launches_of.category.startswith(("cuda", "hip")) for launches_of in host):
        checked.title = "GPU"
    checked.has_doubts = bool(draft.doubtful.total() or draft.skipped[EARLIER_KERNELS])
    return checked


def _sides(records: Records, draft: Draft) -> tuple[list[Activities], dict[str, Activities]]:
    """Return launches, and work by category; records of unknown categories are launches on the CPU's threads."""
    host = [activities for activities in records.activities.values() if activities.side == HOST]
    device = {category: activities for category, activities in records.activities.items() if activities.side == DEVICE}
    cpu = np.array(sorted(records.cpu_rows), dtype=np.int64)
    for category, activities in records.activities.items():
        if activities.side != UNKNOWN:
            continue
        on_cpu = np.isin(np.array(activities.row, dtype=np.int64), cpu)
        for side, mask in ((HOST, on_cpu), (DEVICE, ~on_cpu)):
            part = Activities(side, category)
            for index in np.flatnonzero(mask).tolist():
                for column in ("begin", "end", "correlation", "row", "name", "communicates"):
                    getattr(part, column).append(getattr(activities, column)[index])
            if len(part.begin) and side == HOST:
                host.append(part)
            elif len(part.begin):
                device[category] = part
                draft.understood[f"{category} events"] += len(part.begin)
    return host, device


def _column(activities: Iterable[Activities], name: str) -> Floats:
    parts = [np.array(getattr(part, name), dtype=np.float64) for part in activities]
    return np.concatenate(parts) if parts else np.zeros(0)


def _launches(host: list[Activities], device: dict[str, Activities], draft: Draft) -> tuple[Floats, Floats]:
    """Return (id, time) of the launches that have work, sorted by id; ids of several launches are left out."""
    ids, times, ends = (_column(host, name) for name in ("correlation", "begin", "end"))
    used = np.isin(ids, _column(device.values(), "correlation"))
    ids, times, ends = ids[used], times[used], ends[used]
    order = np.lexsort((times, ids))
    ids, times, ends = ids[order], times[order], ends[order]
    is_repeated = np.zeros(len(ids), dtype=bool)
    is_repeated[1:] = ids[1:] == ids[:-1]
    # A call of the driver within the runtime's call is the same launch; another time is another launch.
    is_other_launch = is_repeated.copy()
    is_other_launch[1:] &= times[1:] > ends[:-1] + CLOCK_US
    ambiguous = np.isin(ids, ids[is_other_launch])
    draft.doubtful["launches with the id of another launch"] += int(ambiguous.sum())
    chosen = ~is_repeated & ~ambiguous
    return ids[chosen], times[chosen]


def _joined(launches: tuple[Floats, Floats], correlations: Floats) -> Floats:
    ids, times = launches
    if not len(ids):
        return np.full(len(correlations), np.nan)
    position = np.minimum(np.searchsorted(ids, correlations), len(ids) - 1)
    return np.where(ids[position] == correlations, times[position], np.nan)


def _kernels(device: dict[str, Activities], launches: tuple[Floats, Floats]) -> Kernels:
    correlation = _column(device.values(), "correlation")
    is_kernel = [np.full(len(activities.begin), not name.startswith("gpu_mem")) for name, activities in device.items()]
    return Kernels(
        start=_column(device.values(), "begin"),
        end=_column(device.values(), "end"),
        launch=_joined(launches, correlation),
        correlation=correlation,
        row=_column(device.values(), "row").astype(np.int64),
        name=_column(device.values(), "name").astype(np.int64),
        is_kernel=np.concatenate(is_kernel) if is_kernel else np.zeros(0, dtype=bool),
    )


def _count_launches(host: list[Activities], kernels: Kernels, draft: Draft) -> None:
    for activities in host:
        has_work = np.isin(np.array(activities.correlation), kernels.correlation)
        draft.understood["launches"] += int(has_work.sum())
        draft.skipped[f"{activities.category} events that launch nothing"] += int((~has_work).sum())


def _lost_launches(host: list[Activities], kernels: Kernels, records: Records) -> Floats:
    """Return the times of launches without a kernel in the file, if others of that name have one."""
    launch_names = [
        number for name, number in records.names.items() if any(w in name.lower() for w in _LAUNCHES_KERNELS)
    ]
    ids, names, times = (_column(host, column) for column in ("correlation", "name", "begin"))
    has_work = np.isin(ids, kernels.correlation)
    lost = [
        times[of_name & ~has_work]
        for of_name in (names == number for number in launch_names)
        if has_work[of_name].any()
    ]
    return np.sort(np.concatenate(lost)) if lost else np.zeros(0)


def launches_nothing(records: Records) -> str:
    """Return the category of launches in a file without work of the accelerator, "" if there are none."""
    if any(activities.side != HOST for activities in records.activities.values()):
        return ""
    names = {number for name, number in records.names.items() if any(w in name.lower() for w in _LAUNCHES_KERNELS)}
    for category, activities in records.activities.items():
        if names.intersection(activities.name):
            return category
    return ""


def _main_row(kernels: Kernels) -> int:
    """Return the stream with the most kernels; copies count only without kernels."""
    rows = kernels.row[kernels.is_kernel] if kernels.is_kernel.any() else kernels.row
    values, counts = np.unique(rows, return_counts=True)
    return int(values[np.argmax(counts)])


def _checked(
    kernels: Kernels, has_no_duration: Flags, is_moved: Flags, lost_launches: Floats, is_step_lost: bool, draft: Draft
) -> KernelStream:
    """Return a stream of the valid kernels; count the others by kind."""
    has_launch = np.isfinite(kernels.launch)
    has_no_time = (kernels.start == 0) & (kernels.end == 0)
    is_before = ~has_launch & ~has_no_time  # also of a stream without any launch
    if (has_launch & ~has_no_time).any():
        first = np.argmin(np.where(has_launch & ~has_no_time, kernels.start, np.inf))
        is_before = ~has_launch & ~has_no_time & (kernels.start < kernels.end[first])
    draft.skipped[EARLIER_KERNELS] += int(is_before.sum())
    kinds: list[tuple[str, Flags]] = [
        ("kernels with ts 0 and dur 0", has_no_time),
        ("kernels whose launch is not in the file", ~has_launch),
        ("kernels on a stream that has fewer kernels than there are steps", is_moved),
        ("kernels that begin before their launch", before_launch(kernels, draft)),
        ("kernels that begin long after the recording", long_after_launch(kernels)),
        ("kernels without a duration", has_no_duration),
    ]
    doubtful = is_before.copy()
    for kind, where in kinds:
        draft.doubtful[kind] += int((where & ~doubtful).sum())
        doubtful |= where
    order = np.flatnonzero(~doubtful)
    order = order[np.lexsort((kernels.start[order], kernels.launch[order]))]
    draft.doubtful["kernels whose record was lost"] += len(lost_launches)
    for kind, check in (
        ("kernels out of their stream's order", out_of_order),
        ("kernels that outlast the recording", outlasting),
        ("kernels that overlap their neighbor", overlapping),
    ):
        where = check(kernels.start[order], kernels.end[order])
        draft.doubtful[kind] += int(where.sum())
        doubtful[order[where]] = True
        order = order[~where]
    return KernelStream(kernels.take(order), kernels.take(doubtful & ~is_before), lost_launches, is_step_lost)
