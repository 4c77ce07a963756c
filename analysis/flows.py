"""Computes completion times and slowdowns of the flows in a Result, overall and by size; tabulates them, writes
flows.csv.

The figures cover the flows that begin in the measured window (`[measure]` of the scenario), or all flows without one.

A flow's completion time is from entering its host's NIC to delivery; its slowdown is that over the unloaded transfer
time (`ideal_ps` of the table of flows). Both cover delivered flows only; the number still under way is shown beside
them. Percentiles are values that occurred, as in `gradwire.analysis.metrics`.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

import numpy as np

from gradwire.analysis.comparison.tables import TableRow, headings
from gradwire.analysis.measurement_window import in_window, measured_flows
from gradwire.analysis.metrics import MIN_FOR_P99, Metrics
from gradwire.result_store.arrow import to_numpy
from gradwire.result_store.lazy_table import dictionary_encoded
from gradwire.result_store.result import Result
from gradwire.scenarios.arrays import AnyArray
from gradwire.scenarios.json_data import Json
from gradwire.scenarios.readable import count_text, three_digits, time_text
from gradwire.scenarios.units import format_size

SIZE_EDGES = (10_000, 100_000, 1_000_000, 10_000_000)
"""Borders of the size bins (bytes): a size falls into the first bin whose edge it does not exceed. Up to 100 kB and
beyond 10 MB are pFabric's small and large flows [recalled]; the others are our choice."""


@dataclass(frozen=True)
class Distribution:
    """Mean and percentiles of some values; all zero if there are none. A percentile with no value above it is None: p99
    of fewer than 100, p99.9 of fewer than 1000."""

    mean: float
    p50: float
    p99: float | None
    p999: float | None
    max: float

    @classmethod
    def of(cls, values: AnyArray) -> Distribution:
        """Summarise an array of numbers."""
        if not len(values):
            return cls(0.0, 0.0, None, None, 0.0)
        ordered = np.sort(values)
        middle, high, highest = (
            float(ordered[int(np.ceil(share * len(ordered) - 1e-9)) - 1]) if len(ordered) >= enough else None
            for share, enough in ((0.5, 1), (0.99, MIN_FOR_P99), (0.999, 10 * MIN_FOR_P99))
        )
        assert middle is not None
        return cls(float(values.mean()), middle, high, highest, float(ordered[-1]))


@dataclass(frozen=True)
class FlowTimes:
    """Flows of one traffic in one range of sizes.

    above, up_to : the range, bytes: above < size <= up_to. The first row of a traffic has all sizes (0, None).
    count, under_way : delivered flows, and started ones that are not delivered.
    bytes : of the delivered flows.
    completion : picoseconds.
    slowdown : completion time over the unloaded transfer time. `slowdowns`: of all delivered flows, float64.
    """

    traffic: str
    above: int
    up_to: int | None
    count: int
    under_way: int
    bytes: int
    completion: Distribution
    slowdown: Distribution
    slowdowns: AnyArray = field(repr=False, compare=False)

    @property
    def label(self) -> str:
        """The range of sizes as text."""
        if self.up_to is not None:
            return f"flows up to {format_size(self.up_to)}"
        return f"flows above {format_size(self.above)}" if self.above else "all flows"

    def as_dict(self) -> Json:
        """Return plain values for JSON, without the slowdown of every flow."""
        return {
            entry.name: asdict(value) if isinstance(value, Distribution) else value
            for entry in fields(self)
            if (value := getattr(self, entry.name)) is not self.slowdowns
        }


ALL_SIZES = 0, 2**63
SIZE_RANGES = tuple(zip((0, *SIZE_EDGES), (*SIZE_EDGES, None), strict=True))
"""(above, up to) of every range of sizes, bytes."""


def flow_times(result: Result, traffic: str, ranges: Sequence[tuple[int, int | None]] = ()) -> list[FlowTimes]:
    """Return all flows of a traffic, then those of each range of sizes; empty if the Result has no such traffic.
    Ranges: those of `SIZE_RANGES` with any flows, or all of `ranges`."""
    messages = result.select("messages", "message", "job", "kind", "start_ps", "end_ps", "bytes")
    flows = result.select("flows", "message", "ideal_ps")
    numbers, (jobs, names) = to_numpy(messages["message"]), dictionary_encoded(messages["job"])
    order = np.argsort(numbers, kind="stable")
    rows = order[np.searchsorted(numbers, to_numpy(flows["message"]), sorter=order)]
    selected = jobs[rows] == (names.index(traffic) if traffic in names else -1)
    selected &= in_window(messages, measured_flows(result))[rows]
    measured_rows = rows[selected]
    if not len(measured_rows):
        return []
    ideal = to_numpy(flows["ideal_ps"])[selected]
    start, end, size = (to_numpy(messages[name])[measured_rows] for name in ("start_ps", "end_ps", "bytes"))

    def flows_between(above: int, up_to: int | None) -> FlowTimes:
        inside = size > above if up_to is None else (size > above) & (size <= up_to)
        done = inside & (end >= 0)
        duration = (end - start)[done]
        return FlowTimes(
            traffic=traffic,
            above=above,
            up_to=up_to,
            count=int(done.sum()),
            under_way=int((inside & (end < 0)).sum()),
            bytes=int(size[done].sum()),
            completion=Distribution.of(duration),
            slowdown=Distribution.of(duration / ideal[done]),
            slowdowns=duration / ideal[done],
        )

    if ranges:
        return [flows_between(0, None), *(flows_between(above, up_to) for above, up_to in ranges)]
    parts = [flows_between(above, up_to) for above, up_to in SIZE_RANGES]
    return [flows_between(0, None), *(part for part in parts if part.count or part.under_way)]


def flow_blocks(
    results: Sequence[Result], metrics: Sequence[Sequence[Metrics]]
) -> list[tuple[str, list[str], list[TableRow]]]:
    """Return (traffic, headings of the runs, lines) of a table per traffic.

    The title has the measured window if all runs have the same. `metrics` : of each Result.
    """
    runs_by_traffic: dict[str, list[tuple[Metrics, list[FlowTimes]]]] = {}
    for result, entries in zip(results, metrics, strict=True):
        for entry in entries if result.stored_rows("flows").num_rows else ():
            times = flow_times(result, entry.job)
            if times:
                runs_by_traffic.setdefault(entry.job, []).append((entry, times))
    blocks = []
    for traffic, runs in runs_by_traffic.items():
        entries, times_of_runs = zip(*runs, strict=True)
        words = {entry.window.text for entry in entries}
        title = f"{traffic} {next(iter(words))}".strip() if len(words) == 1 else traffic
        blocks.append((title, headings(entries), _lines(times_of_runs)))
    return blocks


def _lines(runs: Sequence[Sequence[FlowTimes]]) -> list[TableRow]:
    """Return all figures of all flows, and the most telling ones of each range of sizes."""
    lines: list[TableRow] = []
    ranges = {(entry.above, entry.up_to or 2**63) for times in runs for entry in times}
    for above, up_to in sorted(ranges, key=lambda bounds: (bounds != ALL_SIZES, bounds[0])):
        cells = [next((t for t in times if (t.above, t.up_to or 2**63) == (above, up_to)), None) for times in runs]
        label = next(cell.label for cell in cells if cell)
        lines.append(TableRow(label, [count_text(cell.count) if cell else "-" for cell in cells], True))
        wanted = ("mean", "p50", "p99", "p999") if (above, up_to) == ALL_SIZES else ("mean", "p99")
        for what in ("completion", "slowdown"):
            for quantile in _supported(cells, wanted):
                words = f"  {what}, {quantile.replace('p999', 'p99.9')}"
                lines.append(TableRow(words, [_cell(cell, what, quantile) for cell in cells]))
        if any(cell and cell.under_way for cell in cells):
            lines.append(
                TableRow("  not delivered yet", [count_text(cell.under_way) if cell else "-" for cell in cells])
            )
    return lines


def _supported(cells: Sequence[FlowTimes | None], wanted: Sequence[str]) -> list[str]:
    """Return the `wanted` figures that all `cells` have; "max" replaces the missing ones."""
    delivered = [cell for cell in cells if cell and cell.count]
    available = [name for name in wanted if all(getattr(cell.completion, name) is not None for cell in delivered)]
    return available if len(available) == len(wanted) else [*available, "max"]


def _cell(times: FlowTimes | None, what: str, quantile: str) -> str:
    if times is None or not times.count:
        return "-"
    value = getattr(getattr(times, what), quantile)
    return time_text(value) if what == "completion" else three_digits(value)


def write_flows(results: Sequence[Result], metrics: Sequence[Sequence[Metrics]], directory: Path) -> bool:
    """Write flows.csv, one line per run, traffic and range of sizes; return True if there was anything to write."""
    flat = [entry for entries in metrics for entry in entries]
    names = dict(zip(map(id, flat), headings(flat), strict=True))
    lines = []
    for result, entries in zip(results, metrics, strict=True):
        for entry in entries if result.stored_rows("flows").num_rows else ():
            for times in flow_times(result, entry.job):
                line: Json = {"run": names[id(entry)], "traffic": times.traffic}
                line |= {"above_bytes": times.above, "up_to_bytes": times.up_to, "flows": times.count}
                line |= {"under_way": times.under_way, "bytes": times.bytes}
                line |= {f"completion_{name}_ps": value for name, value in asdict(times.completion).items()}
                line |= {f"slowdown_{name}": value for name, value in asdict(times.slowdown).items()}
                lines.append(line)
    if lines:
        with (directory / "flows.csv").open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, list(lines[0]))
            writer.writeheader()
            writer.writerows(lines)
    return bool(lines)
