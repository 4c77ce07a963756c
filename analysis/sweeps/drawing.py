"""What plots of a sweep are drawn from: its points and their means, and how values stand on an axis."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from matplotlib.ticker import NullFormatter, NullLocator

from gradwire.analysis.plots import look
from gradwire.analysis.sweeps.measures import MEASURES, whose
from gradwire.analysis.sweeps.points import Place
from gradwire.analysis.sweeps.quantity import Scalar, numbers_of
from gradwire.analysis.sweeps.schema import Axis, Plot, SweepFile
from gradwire.analysis.sweeps.store import Record
from gradwire.analysis.sweeps.table import Line

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_TICKS = 8
"""Values of an axis that all have a tick of their own."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
UNITS: dict[str, tuple[tuple[float, str], ...]] = {
    "time": ((1e12, "s"), (1e9, "ms"), (1e6, "us"), (1e3, "ns"), (1, "ps")),
    "size": ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "B")),
    "rate": ((1e12, "Tbps"), (1e9, "Gbps"), (1e6, "Mbps"), (1e3, "kbps"), (1, "bps")),
}


@dataclass(frozen=True)
class Scale:
    """How numbers of a quantity are shown: divided by `by`, in a `unit`."""

    by: float = 1.0
    unit: str = ""

    @classmethod
    def of(cls, values: Sequence[float], quantity: str) -> Scale:
        """The largest unit that the middle one of the values is at least one of."""
        ordered = sorted(abs(value) for value in values if value) or [0.0]
        middle = ordered[len(ordered) // 2]
        for by, unit in UNITS.get(quantity, ()):
            if middle >= by:
                return cls(by, unit)
        return cls(*UNITS[quantity][-1]) if quantity in UNITS else cls()

    def label(self, words: str) -> str:
        """A label with the unit."""
        return f"{words} ({self.unit})" if self.unit else words


def quantity_of(measure: str) -> str:
    """The quantity of a measure, as of an axis; "" for plain numbers."""
    name = whose(measure)[1]
    return "time" if name.endswith("_ps") else "size" if name.endswith("_bytes") else ""


def words_of(measure: str) -> str:
    """A measure in words."""
    job, name = whose(measure)
    return f"{job}: {MEASURES[name]}" if job else MEASURES[name]


@dataclass(frozen=True)
class Drawn:
    """What a plot is drawn from: its points that are done, and lines of their means."""

    file: SweepFile
    plot: Plot
    points: Sequence[Place]
    records: Mapping[str, Record]
    lines: Sequence[Line]

    def axis(self, column: str) -> Axis:
        """An axis by its column."""
        return next(axis for axis in self.file.axis if axis.column == column)

    def values(self, column: str) -> list[Scalar]:
        """The values of an axis, in their order, of what is drawn; rising ones where they are numbers."""
        found = list(dict.fromkeys(value for point in self.points if (value := point.at[column]) is not None))
        numbers = numbers_of(found)
        if numbers is None:
            return found
        return [value for _, value in sorted(zip(numbers[0], found, strict=True), key=lambda pair: pair[0])]

    def label(self, column: str, value: Scalar) -> str:
        """What a value of an axis is called."""
        named = (point.labels[column] for point in self.points if point.at[column] == value)
        return next(named, str(value))

    def groups(self, column: str) -> list[tuple[Scalar | None, str]]:
        """The values of an axis that parts a plot, with what they are called; one for everything without an axis."""
        if not column:
            return [(None, "")]
        there = list(dict.fromkeys(point.at[column] for point in self.points))
        known = self.values(column)
        return [(value, self.label(column, value)) for value in known] + ([(None, "none")] if None in there else [])

    def having(self, **wanted: Scalar | None) -> list[Line]:
        """The lines with some values; a column "" is none."""
        return [line for line in self.lines if all(not key or line[key] == value for key, value in wanted.items())]


def look_of(number: int) -> dict[str, Any]:
    """Colour, line and marker of a line, by its place."""
    return {**look(number), "marker": MARKERS[number % len(MARKERS)]}


class Positions(NamedTuple):
    """Where the values of an axis stand: `label` with the unit, place by value, ticks as (place, words); `named` are
    values that are no numbers, which stand side by side."""

    label: str
    places: Mapping[Scalar, float]
    ticks: list[tuple[float, str]]
    named: bool


def positions(data: Drawn, which: str, column: str) -> Positions:
    """Where the values of a sweep's axis stand on the x or y axis of a plot."""
    values = data.values(column)
    numbers = numbers_of(values)
    title = getattr(data.plot, f"{which}_label") or data.axis(column).title
    if numbers is None:
        ticks = [(float(place), data.label(column, value)) for place, value in enumerate(values)]
        return Positions(title, {value: float(place) for place, value in enumerate(values)}, ticks, True)
    scale = Scale.of(numbers[0], numbers[1])
    places = {value: number / scale.by for value, number in zip(values, numbers[0], strict=True)}
    ticks = [(place, f"{place:.4g}") for place in places.values()] if len(values) <= MOST_TICKS else []
    return Positions(scale.label(title), places, ticks, False)


def set_axis(axes: Axes, which: str, data: Drawn, column: str, logarithmic: bool) -> Callable[[Scalar], float]:
    """Prepare the x or y axis of a plot for the values of a sweep's axis; returns where each of them is."""
    found = positions(data, which, column)
    at = axes.xaxis if which == "x" else axes.yaxis
    if logarithmic and not found.named:
        getattr(axes, f"set_{which}scale")("log")
    if found.ticks:
        at.set_ticks([place for place, _ in found.ticks], [words for _, words in found.ticks])
    if found.ticks and not found.named:
        at.set_minor_locator(NullLocator())
        at.set_minor_formatter(NullFormatter())
    getattr(axes, f"set_{which}label")(found.label)
    return lambda value: found.places[value]


def is_plain(labels: Iterable[str]) -> bool:
    """Return True if labels are numbers and the like, which say nothing without the name of their axis."""
    return all(label[:1].isdigit() or label in ("true", "false", "none") for label in labels)


def begin_at_zero(axes: Axes) -> None:
    """Let a linear y axis begin at zero, unless its values are far from it; chart.js has the same rule."""
    low, high = axes.dataLim.intervaly
    if axes.get_yscale() == "linear" and 0 <= low < 0.6 * high:
        axes.set_ylim(bottom=0)


def is_log(values: Sequence[Scalar]) -> bool:
    """Whether values that rise are better shown on a logarithmic axis: they are spaced by factors rather than
    evenly."""
    numbers = numbers_of(values)
    if numbers is None or len(numbers[0]) < 3 or min(numbers[0]) <= 0:
        return False
    found = sorted(numbers[0])
    return found[-1] >= 8 * found[0] and (found[1] - found[0]) * 3 < found[-1] - found[-2]
