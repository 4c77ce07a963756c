"""Charts: plots as plain data, which the page's script draws and lets be looked into.

Three kinds: `Bars`, lying, in parts that add up, with dots of single values; `Lines`, with bands or whiskers, or dots
alone; `Heat`, a map. Each names its axes with their units, and has a sentence that says what is to be seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from gradwire.scenarios.json_data import Json

Points = Sequence[Sequence[float | None]]
Scale = Literal["linear", "log"]


@dataclass(frozen=True)
class Axis:
    """An axis: its label with the unit, its scale, and, where values are names, (place, name) of each."""

    label: str
    scale: Scale = "linear"
    ticks: Sequence[tuple[float, str]] = ()


@dataclass(frozen=True)
class Series:
    """One line. `points` are (x, y), or (x, y, low, high) with a band, or whiskers where values are names.

    step : "before" and "after" hold a value until the next point, or from the one before on.
    dots : a marker at every point; `line` : a line through them. `note`: of each point, words to be shown beside it.
    """

    name: str
    points: Points
    step: Literal["", "before", "after"] = ""
    dots: bool = False
    line: bool = True
    grey: bool = False
    note: Sequence[str] = ()


@dataclass(frozen=True)
class Chart:
    """What all kinds have. `title`: of the plot; `says`: below it."""

    title: str
    says: str

    def as_dict(self) -> Json:
        """Plain values, with the kind."""
        return {"kind": type(self).__name__.lower(), **asdict(self)}


@dataclass(frozen=True)
class Lines(Chart):
    """Curves over an axis; `whiskers` instead of bands."""

    x: Axis = Axis("")
    y: Axis = Axis("")
    series: Sequence[Series] = ()
    whiskers: bool = False


@dataclass(frozen=True)
class Bars(Chart):
    """A bar for each of `rows`, in `parts`: values[row][part]. `dots[row]`: single values (value, words, whether it
    is in the mean)."""

    unit: str = ""
    rows: Sequence[str] = ()
    parts: Sequence[str] = ()
    colours: Sequence[str] = ()
    values: Sequence[Sequence[float]] = ()
    dots: Sequence[Sequence[tuple[float, str, bool]]] = field(default_factory=tuple)


@dataclass(frozen=True)
class Heat(Chart):
    """A map of `values[row][column]` over names of rows and columns; None where there is none."""

    x: Axis = Axis("")
    y: Axis = Axis("")
    unit: str = ""
    values: Sequence[Sequence[float | None]] = ()


def rounded(value: Any) -> Any:
    """Numbers with six digits, which a picture needs at most, in whatever holds them; infinities are none."""
    if isinstance(value, float):
        return float(f"{value:.6g}") if abs(value) < 1e300 else None
    if isinstance(value, dict):
        return {key: rounded(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(each) for each in value]
    return value
