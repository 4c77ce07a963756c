"""The kinds of plots: each draws one panel. `part` is what is in the panel, `whole` what is in all of them: colours,
ticks and units are those of the whole."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.ticker import NullFormatter

from gradwire.analysis.plots import GREY
from gradwire.analysis.sweeps.drawing import (
    MOST_TICKS,
    Drawn,
    Scale,
    begin_at_zero,
    is_log,
    look_of,
    quantity_of,
    set_axis,
    words_of,
)
from gradwire.analysis.sweeps.table import Line
from gradwire.scenarios.arrays import Floats

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_CELLS = 80
"""Of a map, whose values are written into them."""
CHARACTERS = {1: 36, 2: 80}
"""Beside each other below a map, by its width in columns; longer labels are turned."""
MOST_NAMES = 8
"""Dots of a front that are named."""


def measure_axis(axes: Axes, which: str, whole: Drawn, measure: str) -> Scale:
    """Prepare an axis for a measure: label, unit, and whether it is logarithmic. Returns its unit."""
    values = [line[measure] for line in whole.lines if line[measure] is not None]
    scale = Scale.of(values, quantity_of(measure))
    label = getattr(whole.plot, f"{which}_label") or words_of(measure)
    getattr(axes, f"set_{which}label")(scale.label(label))
    asked = getattr(whole.plot, f"{which}_scale")
    if asked == "log":
        getattr(axes, f"set_{which}scale")("log")
        plain_numbers(axes, which)
    return scale


def plain_numbers(axes: Axes, which: str) -> None:
    """1, 10, 100 in place of powers of ten, and nothing between them unless there are few decades."""
    at = axes.xaxis if which == "x" else axes.yaxis
    at.set_major_formatter(lambda value, _: f"{value:g}")
    low, high = at.get_view_interval()
    if 0 < low and high < 30 * low:
        at.set_minor_formatter(lambda value, _: f"{value:g}" if f"{value:e}"[0] in "25" else "")
    else:
        at.set_minor_formatter(NullFormatter())


def lines(part: Drawn, axes: Axes, whole: Drawn) -> None:
    """Means over an axis with bands: the 95 % interval over the seeds."""
    plot = whole.plot
    logarithmic = plot.x_scale == "log" or (plot.x_scale is None and is_log(whole.values(plot.x)))
    place = set_axis(axes, "x", whole, plot.x, logarithmic)
    scale = Scale.of([line[plot.y] for line in whole.lines if line[plot.y] is not None], quantity_of(plot.y))
    for number, (value, label) in enumerate(whole.groups(plot.by)):
        found = part.having(**{plot.by: value})
        rows = sorted(
            (line for line in found if line[plot.y] is not None and line[plot.x] is not None),
            key=lambda line: place(line[plot.x]),
        )
        if not rows:
            continue
        x = [place(line[plot.x]) for line in rows]
        (drawn,) = axes.plot(x, [line[plot.y] / scale.by for line in rows], label=label or None, **look_of(number))
        _band(axes, x, rows, plot.y, scale, drawn.get_color())
    measure_axis(axes, "y", whole, plot.y)
    begin_at_zero(axes)


def _band(axes: Axes, x: Sequence[float], rows: Sequence[Line], name: str, scale: Scale, colour: Any) -> None:
    low = [np.nan if line[f"{name}_low"] is None else max(0.0, line[f"{name}_low"] / scale.by) for line in rows]
    high = [np.nan if line[f"{name}_high"] is None else line[f"{name}_high"] / scale.by for line in rows]
    if not np.isnan(low).all():
        axes.fill_between(x, low, high, color=colour, alpha=0.18, linewidth=0)


def heatmap(part: Drawn, axes: Axes, whole: Drawn) -> None:
    """A map of means over two axes, with the values written into its cells where there is room."""
    plot = whole.plot
    xs, ys = whole.values(plot.x), whole.values(plot.y)
    values = [line[plot.value] for line in whole.lines if line[plot.value] is not None]
    scale = Scale.of(values, quantity_of(plot.value))
    grid = np.full((len(ys), len(xs)), np.nan)
    for line in part.lines:
        if line[plot.value] is not None and line[plot.x] is not None and line[plot.y] is not None:
            grid[ys.index(line[plot.y]), xs.index(line[plot.x])] = line[plot.value] / scale.by
    limits = {"vmin": min(values) / scale.by, "vmax": max(values) / scale.by} if values else {}
    drawn = axes.imshow(grid, origin="lower", aspect="auto", cmap="cividis", **limits)
    axes.grid(visible=False)
    for which, column, there in (("x", plot.x, xs), ("y", plot.y, ys)):
        step = -(-len(there) // (2 * MOST_TICKS))
        texts = [whole.label(column, value) for value in there]
        getattr(axes, f"set_{which}ticks")(range(0, len(there), step), texts[::step])
        if which == "x" and sum(len(text) + 2 for text in texts[::step]) > CHARACTERS[plot.columns]:
            axes.tick_params(axis="x", rotation=40)
        getattr(axes, f"set_{which}label")(getattr(plot, f"{which}_label") or whole.axis(column).title)
    if grid.size <= MOST_CELLS:
        middle = (limits.get("vmin", 0.0) + limits.get("vmax", 0.0)) / 2
        for (row, column_), value in np.ndenumerate(grid):
            if np.isfinite(value):
                ink = "white" if value < middle else "black"
                axes.text(column_, row, f"{value:.3g}", ha="center", va="center", color=ink, fontsize=6)
    axes.figure.colorbar(drawn, ax=axes, label=scale.label(words_of(plot.value)), pad=0.02, aspect=28, fraction=0.06)


def pooled(part: Drawn, value: Any, by: str) -> tuple[Floats, Floats]:
    """(values, shares that are as large or smaller) of a distribution over all points with a value on an axis."""
    which = part.plot.x or "completion"
    values: list[float] = []
    counts: list[int] = []
    for point in part.points:
        seen = part.records[point.key].of(part.plot.of)
        if (by and point.at[by] != value) or seen is None or which not in seen.distributions:
            continue
        values += seen.distributions[which].values
        counts += seen.distributions[which].counts
    order = np.argsort(values, kind="stable")
    total = np.cumsum(np.array(counts, dtype=np.int64)[order])
    shares = total / total[-1] if len(total) else np.zeros(0)
    return np.array(values, dtype=np.float64)[order], shares


def _distribution(part: Drawn, axes: Axes, whole: Drawn, later: bool) -> None:
    plot = whole.plot
    which = plot.x or "completion"
    groups = [
        (number, label, *pooled(part, value, plot.by)) for number, (value, label) in enumerate(whole.groups(plot.by))
    ]
    quantity = "time" if which == "completion" else ""
    medians = [values[len(values) // 2] for _, _, values, _ in groups if len(values)]
    scale = Scale.of(medians, quantity)
    for number, label, values, shares in groups:
        if len(values):
            style = {key: value for key, value in look_of(number).items() if key != "marker"}
            y = 1 - np.concatenate([[0.0], shares[:-1]]) if later else shares
            axes.step(values / scale.by, y, where="pre" if later else "post", label=label or None, **style)
    if plot.x_scale != "linear":
        axes.set_xscale("log")
        plain_numbers(axes, "x")
    words = {"completion": "completion time", "slowdown": "slowdown"}[which]
    axes.set_xlabel(plot.x_label or scale.label(words))
    if later:
        axes.set_yscale("log" if plot.y_scale != "linear" else "linear")
        axes.set_ylabel(plot.y_label or "share as late or later")
    else:
        axes.set_ylim(0, 1.02)
        axes.set_ylabel(plot.y_label or "share as early or earlier")


def cdf(part: Drawn, axes: Axes, whole: Drawn) -> None:
    """The share of messages that took so long or less, of all seeds together."""
    _distribution(part, axes, whole, later=False)


def tail(part: Drawn, axes: Axes, whole: Drawn) -> None:
    """The share that took so long or longer (1 - CDF, those of the value itself among them), on logarithmic axes."""
    _distribution(part, axes, whole, later=True)


def front(dots: Sequence[tuple[float, float]]) -> list[int]:
    """Places of those that no other one is better than in both (smaller is better), by their first value."""
    order = sorted(range(len(dots)), key=lambda place: dots[place])
    best, found = np.inf, []
    for place in order:
        if dots[place][1] < best:
            best = dots[place][1]
            found.append(place)
    return found


def pareto(part: Drawn, axes: Axes, whole: Drawn) -> None:
    """Two measures of every coordinates, and a line through those that none is better than in both: smaller is
    better."""
    plot = whole.plot
    x_scale, y_scale = (measure_axis(axes, which, whole, getattr(plot, which)) for which in "xy")
    there = [line for line in part.lines if line[plot.x] is not None and line[plot.y] is not None]
    dots = [(line[plot.x] / x_scale.by, line[plot.y] / y_scale.by) for line in there]
    for number, (value, label) in enumerate(whole.groups(plot.by)):
        mine = [dot for dot, line in zip(dots, there, strict=True) if not plot.by or line[plot.by] == value]
        if mine:
            style = {"color": look_of(number)["color"], "marker": look_of(number)["marker"], "linestyle": "none"}
            axes.plot(*zip(*mine, strict=True), label=label or None, alpha=0.85, **style)
    best = front(dots)
    corners = [dots[place] for place in best]
    if corners:
        axes.step(*zip(*corners, strict=True), where="post", color=GREY, linewidth=0.9, zorder=1)
    begin_at_zero(axes)
    others = [axis for axis in [each.column for each in part.file.axis] if axis not in (plot.by, plot.panels)]
    for place in best[:MOST_NAMES] if others else ():
        words = ", ".join(str(there[place][axis]) for axis in others if there[place][axis] is not None)
        axes.annotate(words, dots[place], (4, 4), textcoords="offset points", fontsize=6, color=GREY)


Draw = Callable[[Drawn, "Axes", Drawn], None]
KINDS: Mapping[str, Draw] = {"lines": lines, "heatmap": heatmap, "cdf": cdf, "tail": tail, "pareto": pareto}
