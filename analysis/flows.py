"""Flows: completion times and slowdowns of the traffic in a Result, altogether and by size.

They are of the flows that begin in the measured window (`[measure]` of the scenario), of all without one.

A flow's completion time is from entering its host's NIC to delivery; its slowdown is that over the time on the
empty network (`ideal_ps` of the table of flows). Both are of delivered flows only: how many were still under way is
said beside them. Percentiles are values that occurred, as in `gradwire.analysis.metrics`.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

import numpy as np

from gradwire.analysis.measured import in_window, measured_flows
from gradwire.analysis.metrics import ENOUGH, Metrics
from gradwire.analysis.tables import Row, headings
from gradwire.scenarios.arrays import AnyArray
from gradwire.scenarios.arrow import numpy_of
from gradwire.scenarios.json_data import Json
from gradwire.scenarios.kept import numbered
from gradwire.scenarios.readable import count_text, three_digits, time_text
from gradwire.scenarios.result import Result
from gradwire.scenarios.units import format_size

EDGES = (10_000, 100_000, 1_000_000, 10_000_000)
"""Sizes (bytes) at which flows are divided: a size falls into the first bin whose edge it does not exceed. Up to 100 kB
and beyond 10 MB are pFabric's small and large flows [recalled]; the others are our choice."""


@dataclass(frozen=True)
class Spread:
    """Mean and percentiles of some values; all zero if there are none. A percentile that too few values lie above is
    None: p99 of fewer than 100, p99.9 of fewer than 1000."""

    mean: float
    p50: float
    p99: float | None
    p999: float | None
    max: float

    @classmethod
    def of(cls, values: AnyArray) -> Spread:
        """Of an array of numbers."""
        if not len(values):
            return cls(0.0, 0.0, None, None, 0.0)
        ordered = np.sort(values)
        middle, high, highest = (
            float(ordered[int(np.ceil(share * len(ordered) - 1e-9)) - 1]) if len(ordered) >= enough else None
            for share, enough in ((0.5, 1), (0.99, ENOUGH), (0.999, 10 * ENOUGH))
        )
        assert middle is not None
        return cls(float(values.mean()), middle, high, highest, float(ordered[-1]))


@dataclass(frozen=True)
class FlowTimes:
    """Flows of one traffic whose sizes are in one range.

    Attributes
    ----------
    above, up_to : the range, bytes: above < size <= up_to. The first row of a traffic has all sizes (0, None).
    count, under_way : flows delivered, and flows that had started and were not.
    bytes : of the delivered ones.
    completion : picoseconds.
    slowdown : completion time over the time on the empty network. `slowdowns`: those of all delivered flows, float64.
    """

    traffic: str
    above: int
    up_to: int | None
    count: int
    under_way: int
    bytes: int
    completion: Spread
    slowdown: Spread
    slowdowns: AnyArray = field(repr=False, compare=False)

    @property
    def label(self) -> str:
        """The range in words."""
        if self.up_to is not None:
            return f"flows up to {format_size(self.up_to)}"
        return f"flows above {format_size(self.above)}" if self.above else "all flows"

    def as_dict(self) -> Json:
        """Plain values, for JSON, without each flow's slowdown."""
        return {
            each.name: asdict(value) if isinstance(value, Spread) else value
            for each in fields(self)
            if (value := getattr(self, each.name)) is not self.slowdowns
        }


RANGES = tuple(zip((0, *EDGES), (*EDGES, None), strict=True))
"""(above, up to) of every range of sizes, bytes."""


def flow_times(
    result: Result, traffic: str, ranges: Sequence[tuple[int, int | None]] = ()
) -> list[FlowTimes]:
    """All flows of a traffic, then those of each range of sizes: of each of `RANGES` that has any, or of `ranges`.
    Empty if the Result has none of it."""
    messages = result.select("messages", "message", "job", "kind", "start_ps", "end_ps", "bytes")
    flows = result.select("flows", "message", "ideal_ps")
    numbers, (jobs, names) = numpy_of(messages["message"]), numbered(messages["job"])
    order = np.argsort(numbers, kind="stable")
    rows = order[np.searchsorted(numbers, numpy_of(flows["message"]), sorter=order)]
    those = jobs[rows] == (names.index(traffic) if traffic in names else -1)
    those &= in_window(messages, measured_flows(result))[rows]
    mine = rows[those]
    if not len(mine):
        return []
    ideal = numpy_of(flows["ideal_ps"])[those]
    start, end, size = (numpy_of(messages[name])[mine] for name in ("start_ps", "end_ps", "bytes"))

    def measured(above: int, up_to: int | None) -> FlowTimes:
        those = size > above if up_to is None else (size > above) & (size <= up_to)
        done = those & (end >= 0)
        taken = (end - start)[done]
        return FlowTimes(
            traffic=traffic, above=above, up_to=up_to, count=int(done.sum()), under_way=int((those & (end < 0)).sum()),
            bytes=int(size[done].sum()), completion=Spread.of(taken), slowdown=Spread.of(taken / ideal[done]),
            slowdowns=taken / ideal[done],
        )  # fmt: skip

    if ranges:
        return [measured(0, None), *(measured(above, up_to) for above, up_to in ranges)]
    parts = [measured(above, up_to) for above, up_to in RANGES]
    return [measured(0, None), *(part for part in parts if part.count or part.under_way)]


def flow_blocks(
    results: Sequence[Result], metrics: Sequence[Sequence[Metrics]]
) -> list[tuple[str, list[str], list[Row]]]:
    """(traffic, headings of the runs, lines) of a table per traffic, with its measured window where all runs have the
    same. `metrics` are those of each Result."""
    found: dict[str, list[tuple[Metrics, list[FlowTimes]]]] = {}
    for result, entries in zip(results, metrics, strict=True):
        for entry in entries if result.kept("flows").num_rows else ():
            times = flow_times(result, entry.job)
            if times:
                found.setdefault(entry.job, []).append((entry, times))
    return [
        (_named(traffic, [entry for entry, _ in runs]), headings([entry for entry, _ in runs]),
         _lines([times for _, times in runs]))
        for traffic, runs in found.items()
    ]


def _named(traffic: str, entries: Sequence[Metrics]) -> str:
    words = {entry.window.words for entry in entries}
    return f"{traffic} {next(iter(words))}".strip() if len(words) == 1 else traffic


def _lines(runs: Sequence[list[FlowTimes]]) -> list[Row]:
    """All of everything, and of each range of sizes what tells most."""
    lines: list[Row] = []
    ranges = sorted({(each.above, each.up_to or 2**63) for times in runs for each in times}, key=_place)
    for above, up_to in ranges:
        cells = [
            next((t for t in times if (t.above, t.up_to or 2**63) == (above, up_to)), None) for times in runs
        ]
        label = next(cell.label for cell in cells if cell)
        lines.append(Row(label, [count_text(cell.count) if cell else "-" for cell in cells], True))
        wanted = ("mean", "p50", "p99", "p999") if (above, up_to) == (0, 2**63) else ("mean", "p99")
        for what in ("completion", "slowdown"):
            for quantile in _supported(cells, wanted):
                words = f"  {what}, {quantile.replace('p999', 'p99.9')}"
                lines.append(Row(words, [_cell(cell, what, quantile) for cell in cells]))
        if any(cell and cell.under_way for cell in cells):
            lines.append(
                Row("  not delivered yet", [count_text(cell.under_way) if cell else "-" for cell in cells])
            )
    return lines


def _supported(cells: Sequence[FlowTimes | None], wanted: Sequence[str]) -> list[str]:
    """Those of the `wanted` figures that all of `cells` have; the largest value in place of what is missing."""
    there = [cell for cell in cells if cell and cell.count]
    found = [each for each in wanted if all(getattr(cell.completion, each) is not None for cell in there)]
    return found if len(found) == len(wanted) else [*found, "max"]


def _place(bounds: tuple[int, int]) -> tuple[bool, int]:
    return bounds != (0, 2**63), bounds[0]


def _cell(times: FlowTimes | None, what: str, quantile: str) -> str:
    if times is None or not times.count:
        return "-"
    value = getattr(getattr(times, what), quantile)
    return time_text(value) if what == "completion" else three_digits(value)


def write_flows(results: Sequence[Result], metrics: Sequence[Sequence[Metrics]], directory: Path) -> bool:
    """flows.csv: one line per run, traffic and range of sizes. Whether there was anything to write."""
    flat = [entry for entries in metrics for entry in entries]
    names = dict(zip(map(id, flat), headings(flat), strict=True))
    lines = []
    for result, entries in zip(results, metrics, strict=True):
        for entry in entries if result.kept("flows").num_rows else ():
            for each in flow_times(result, entry.job):
                line: Json = {"run": names[id(entry)], "traffic": each.traffic}
                line |= {"above_bytes": each.above, "up_to_bytes": each.up_to, "flows": each.count}
                line |= {"under_way": each.under_way, "bytes": each.bytes}
                line |= {f"completion_{name}_ps": value for name, value in asdict(each.completion).items()}
                line |= {f"slowdown_{name}": value for name, value in asdict(each.slowdown).items()}
                lines.append(line)
    if lines:
        with (directory / "flows.csv").open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, list(lines[0]))
            writer.writeheader()
            writer.writerows(lines)
    return bool(lines)
