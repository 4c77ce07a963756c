"""Data classes describe a page's charts (lines, bars, heat maps) as plain values; the page's script draws them.

Three kinds: `Bars`, horizontal and stacked, with dots of single values; `Lines`, with bands or whiskers, or dots alone;
`Heat`, a map. Each labels its axes with units and has a caption.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from math import inf
from typing import Any, Literal

from gradwire.scenarios.json_data import Json

Points = Sequence[Sequence[float | None]]
Scale = Literal["linear", "log"]


@dataclass(frozen=True)
class Axis:
    """An axis: its label with the unit, its scale, and, for categories, the (position, name) of each."""

    label: str
    scale: Scale = "linear"
    ticks: Sequence[tuple[float, str]] = ()


@dataclass(frozen=True)
class Series:
    """One line. `points` are (x, y), or (x, y, low, high) with a band, or with whiskers for categories.

    step : "before" or "after" holds a value until the next point, or from the previous one on.
    colour : number of its colour and dashes, so that a run looks the same in all plots; -1: its place among the lines.
    dash : number of its dashes if they are not those of the colour. labels : text drawn beside each point.
    grey : in place of its colour; `dim` : a paler one.
    dots : draw a marker at every point; `line` : draw a line through them. `note` : text in each point's tooltip.
    """

    name: str
    points: Points
    step: Literal["", "before", "after"] = ""
    dots: bool = False
    line: bool = True
    grey: bool = False
    dim: bool = False
    colour: int = -1
    dash: int = -1
    note: Sequence[str] = ()
    labels: Sequence[str] = ()


@dataclass(frozen=True)
class Chart:
    """Common fields of all charts. `title` : above the plot; `says` : caption below it."""

    title: str
    says: str

    def as_dict(self) -> Json:
        """Return plain values, with the kind."""
        return {"kind": type(self).__name__.lower(), **asdict(self)}


@dataclass(frozen=True)
class Lines(Chart):
    """Curves, with bands or `whiskers`."""

    x: Axis = Axis("")
    y: Axis = Axis("")
    series: Sequence[Series] = ()
    whiskers: bool = False


@dataclass(frozen=True)
class Bars(Chart):
    """Stacked bars: one for each of `rows`, in `parts`: values[row][part].

    `dots[row]` : single values as (value, text, whether it is in the mean). `runs[row]` : number of the run's colour.
    """

    unit: str = ""
    rows: Sequence[str] = ()
    parts: Sequence[str] = ()
    colours: Sequence[str] = ()
    values: Sequence[Sequence[float]] = ()
    dots: Sequence[Sequence[tuple[float, str, bool]]] = field(default_factory=tuple)
    runs: Sequence[int] = ()


@dataclass(frozen=True)
class Heat(Chart):
    """A map of `values[row][column]` over named rows and columns; None if there is no value."""

    x: Axis = Axis("")
    y: Axis = Axis("")
    unit: str = ""
    values: Sequence[Sequence[float | None]] = ()


def pareto_front(dots: Sequence[tuple[float, float]]) -> list[int]:
    """Return the indices of the Pareto front (smaller is better), by their first value."""
    order = sorted(range(len(dots)), key=lambda index: dots[index])
    best, on_front = inf, []
    for index in order:
        if dots[index][1] < best:
            best = dots[index][1]
            on_front.append(index)
    return on_front


def rounded(value: Any) -> Any:
    """Round all numbers in a structure to six digits, enough for a plot; infinities become None."""
    if isinstance(value, float):
        return float(f"{value:.6g}") if abs(value) < 1e300 else None
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(item) for item in value]
    return value
