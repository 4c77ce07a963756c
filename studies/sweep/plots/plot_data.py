"""Prepares the data that sweep plots share, such as done points, means, display units, labels and axis ticks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from matplotlib.axes import Axes

from gradwire.analysis.comparison.plots import line_style
from gradwire.studies.sweep.checks import shown_points
from gradwire.studies.sweep.measures import MEASURES, split_measure
from gradwire.studies.sweep.point_store import Record
from gradwire.studies.sweep.points import PointPlace
from gradwire.studies.sweep.quantity import Scalar, numbers_of
from gradwire.studies.sweep.schema import Axis, Plot, SweepFile
from gradwire.studies.sweep.sweep_tables import Line, summary_lines

MOST_TICKS = 8
"""Largest number of axis values that each get a tick."""
MARKERS = ("o", "s", "^", "D", "v", "p", "h", "8")
"""As `marker` of chart.js."""
UNITS: dict[str, tuple[tuple[float, str], ...]] = {
    "time": ((1e12, "s"), (1e9, "ms"), (1e6, "us"), (1e3, "ns"), (1, "ps")),
    "size": ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "B")),
    "rate": ((1e12, "Tbps"), (1e9, "Gbps"), (1e6, "Mbps"), (1e3, "kbps"), (1, "bps")),
}


@dataclass(frozen=True)
class DisplayScale:
    """Display of a quantity: numbers are divided by `by` and have a `unit`."""

    by: float = 1.0
    unit: str = ""

    @classmethod
    def of(cls, values: Sequence[float], quantity: str) -> DisplayScale:
        """Choose the largest unit in which the median value is at least one."""
        ordered = sorted(abs(value) for value in values if value) or [0.0]
        middle = ordered[len(ordered) // 2]
        for by, unit in UNITS.get(quantity, ()):
            if middle >= by:
                return cls(by, unit)
        return cls(*UNITS[quantity][-1]) if quantity in UNITS else cls()

    def label(self, words: str) -> str:
        """Return a label with the unit."""
        return f"{words} ({self.unit})" if self.unit else words


def quantity_of(measure: str) -> str:
    """Return the quantity of a measure; "" for plain numbers."""
    name = split_measure(measure)[1]
    return "time" if name.endswith("_ps") else "size" if name.endswith("_bytes") else ""


def label_of(measure: str) -> str:
    """Return the label of a measure."""
    job, name = split_measure(measure)
    return f"{job}: {MEASURES[name]}" if job else MEASURES[name]


@dataclass(frozen=True)
class PlotData:
    """Data of one plot: its done points, and lines of their means."""

    file: SweepFile
    plot: Plot
    points: Sequence[PointPlace]
    records: Mapping[str, Record]
    lines: Sequence[Line]

    @classmethod
    def of(
        cls, file: SweepFile, plot: Plot, points: Sequence[PointPlace], records: Mapping[str, Record]
    ) -> PlotData | None:
        """Return the data of a plot; None if none of its points is done."""
        shown = shown_points(file, plot, points)
        done = [point for point in shown if (record := records.get(point.key)) is not None and record.state == "done"]
        if not done:
            return None
        measures = [name for name in (plot.x, plot.y, plot.value) if name and split_measure(name)[1] in MEASURES]
        data = cls(file, plot, done, records, summary_lines(done, records, measures))
        return replace(data, lines=_gain_lines(data, shown)) if plot.kind == "gain" else data

    def panel(self, value: Scalar | None) -> PlotData:
        """Return the data of the panel of one value; all data without panels."""
        if not self.plot.panels:
            return self
        points = [point for point in self.points if point.at[self.plot.panels] == value]
        return replace(self, points=points, lines=self.having(**{self.plot.panels: value}))

    def axis(self, column: str) -> Axis:
        """Return an axis by its column."""
        return next(axis for axis in self.file.axis if axis.column == column)

    def values(self, column: str) -> list[Scalar]:
        """Return the values of an axis in the plot: ascending if they are numbers, else in order of appearance."""
        values = list(dict.fromkeys(value for point in self.points if (value := point.at[column]) is not None))
        numbers = numbers_of(values)
        if numbers is None:
            return values
        return [value for _, value in sorted(zip(numbers[0], values, strict=True), key=lambda pair: pair[0])]

    def label(self, column: str, value: Scalar) -> str:
        """Return the label of an axis value."""
        named = (point.labels[column] for point in self.points if point.at[column] == value)
        return next(named, str(value))

    def groups(self, column: str) -> list[tuple[Scalar | None, str]]:
        """Return the values of a grouping axis with their labels; one group for everything without an axis."""
        if not column:
            return [(None, "")]
        occurring = list(dict.fromkeys(point.at[column] for point in self.points))
        known = self.values(column)
        return [(value, self.label(column, value)) for value in known] + ([(None, "none")] if None in occurring else [])

    def having(self, **wanted: Scalar | None) -> list[Line]:
        """Return the lines with some values; a column "" matches all."""
        return [line for line in self.lines if all(not key or line[key] == value for key, value in wanted.items())]


def _gain_lines(data: PlotData, shown: Sequence[PointPlace]) -> list[Line]:
    """Return the lines of a plot of kind "gain": coordinates of a cell and of its panel, and the gain in percent. A
    cell has none while one of its points (`shown`: of the plot) is not done: it may be the best."""
    plot = data.plot
    columns = [column for column in (plot.x, plot.y, plot.panels) if column]
    done = {point.key for point in data.points}
    open_cells = {tuple(point.at[column] for column in columns) for point in shown if point.key not in done}
    best: dict[tuple[Scalar | None, ...], dict[bool, float]] = {}
    for line in data.lines:
        value, mine = line[plot.value], str(line[plot.by]) in plot.gain_of
        if value is not None:
            cell = best.setdefault(tuple(line[column] for column in columns), {})
            cell[mine] = min(value, cell.get(mine, value))
    return [
        {**dict(zip(columns, place, strict=True)), plot.value: 100 * (cell[False] / cell[True] - 1)}
        for place, cell in best.items()
        if len(cell) == 2 and place not in open_cells
    ]


def gain_label(data: PlotData) -> str:
    """Return the label of a map of gains."""
    names = " or ".join(data.label(data.plot.by, name) for name in data.plot.gain_of)
    return f"gain of {names} over the best of the others (%)"


def marker_style(number: int) -> dict[str, Any]:
    """Return colour, line style and marker of a line, by its index."""
    return {**line_style(number), "marker": MARKERS[number % len(MARKERS)]}


class Positions(NamedTuple):
    """Positions of axis values: `label` with the unit, position by value, ticks as (position, text).

    `named` : the values are categories, placed side by side.
    """

    label: str
    places: Mapping[Scalar, float]
    ticks: list[tuple[float, str]]
    named: bool


def positions(data: PlotData, which: str, column: str) -> Positions:
    """Return the positions of a sweep axis's values on the x or y axis of a plot."""
    values = data.values(column)
    numbers = numbers_of(values)
    title = getattr(data.plot, f"{which}_label") or data.axis(column).title
    if numbers is None:
        ticks = [(float(index), data.label(column, value)) for index, value in enumerate(values)]
        return Positions(title, {value: float(index) for index, value in enumerate(values)}, ticks, True)
    scale = DisplayScale.of(numbers[0], numbers[1])
    places = {value: number / scale.by for value, number in zip(values, numbers[0], strict=True)}
    ticks = [(at, f"{at:.4g}") for at in places.values()] if len(values) <= MOST_TICKS else []
    return Positions(scale.label(title), places, ticks, False)


def is_plain(labels: Iterable[str]) -> bool:
    """Return True if labels are numbers and the like, which need the name of their axis."""
    return all(label[:1].isdigit() or label in ("true", "false", "none") for label in labels)


def begin_at_zero(axes: Axes) -> None:
    """Start a linear y axis at zero unless its values are far from it; chart.js has the same rule."""
    low, high = axes.dataLim.intervaly
    if axes.get_yscale() == "linear" and 0 <= low < 0.6 * high:
        axes.set_ylim(bottom=0)


def is_log(values: Sequence[Scalar]) -> bool:
    """Return True if values suit a logarithmic axis: they are spaced by factors rather than evenly."""
    numbers = numbers_of(values)
    if numbers is None or len(numbers[0]) < 3 or min(numbers[0]) <= 0:
        return False
    ascending = sorted(numbers[0])
    return ascending[-1] >= 8 * ascending[0] and (ascending[1] - ascending[0]) * 3 < ascending[-1] - ascending[-2]
