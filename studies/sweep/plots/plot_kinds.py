"""Each plot kind (lines, heat map, gain, CDF, tail, Pareto) draws one panel of a sweep's figure from its rows.

`whole`, the data of all panels, determines colours, ticks and units.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.ticker import NullFormatter

from gradwire.analysis.comparison.plots import GREY
from gradwire.scenarios.arrays import Floats
from gradwire.studies.sweep.plots.plot_data import (
    MOST_TICKS,
    DisplayScale,
    PlotData,
    begin_at_zero,
    gain_label,
    is_log,
    label_of,
    marker_style,
    quantity_of,
    set_axis,
)
from gradwire.studies.sweep.sweep_tables import Line

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_CELLS = 80
"""Cells of a map up to which their values are written into them."""
CHARACTERS = {1: 36, 2: 80}
"""Characters that fit below a map, by its width in columns; longer labels are rotated."""
MOST_NAMES = 8
"""Dots of a Pareto front with labels."""


def measure_axis(axes: Axes, which: str, data: PlotData, measure: str) -> DisplayScale:
    """Prepare an axis for a measure (label, unit, scale); return its unit."""
    values = [line[measure] for line in data.lines if line[measure] is not None]
    scale = DisplayScale.of(values, quantity_of(measure))
    label = getattr(data.plot, f"{which}_label") or label_of(measure)
    getattr(axes, f"set_{which}label")(scale.label(label))
    requested = getattr(data.plot, f"{which}_scale")
    if requested == "log":
        getattr(axes, f"set_{which}scale")("log")
        plain_numbers(axes, which)
    return scale


def plain_numbers(axes: Axes, which: str) -> None:
    """Label 1, 10, 100 instead of powers of ten, with minor labels only for few decades."""
    at = axes.xaxis if which == "x" else axes.yaxis
    at.set_major_formatter(lambda value, _: f"{value:g}")
    low, high = at.get_view_interval()
    if 0 < low and high < 30 * low:
        at.set_minor_formatter(lambda value, _: f"{value:g}" if f"{value:e}"[0] in "25" else "")
    else:
        at.set_minor_formatter(NullFormatter())


def lines(part: PlotData, axes: Axes, data: PlotData) -> None:
    """Plot means over an axis with bands: the 95 % interval over the seeds."""
    plot = data.plot
    logarithmic = plot.x_scale == "log" or (plot.x_scale is None and is_log(data.values(plot.x)))
    place = set_axis(axes, "x", data, plot.x, logarithmic)
    scale = DisplayScale.of([line[plot.y] for line in data.lines if line[plot.y] is not None], quantity_of(plot.y))
    for number, (value, label) in enumerate(data.groups(plot.by)):
        group = part.having(**{plot.by: value})
        rows = sorted(
            (line for line in group if line[plot.y] is not None and line[plot.x] is not None),
            key=lambda line: place(line[plot.x]),
        )
        if not rows:
            continue
        x = [place(line[plot.x]) for line in rows]
        (drawn,) = axes.plot(x, [line[plot.y] / scale.by for line in rows], label=label or None, **marker_style(number))
        _band(axes, x, rows, plot.y, scale, drawn.get_color())
    measure_axis(axes, "y", data, plot.y)
    begin_at_zero(axes)


def _band(axes: Axes, x: Sequence[float], rows: Sequence[Line], name: str, scale: DisplayScale, colour: Any) -> None:
    low = [np.nan if line[f"{name}_low"] is None else max(0.0, line[f"{name}_low"] / scale.by) for line in rows]
    high = [np.nan if line[f"{name}_high"] is None else line[f"{name}_high"] / scale.by for line in rows]
    if not np.isnan(low).all():
        axes.fill_between(x, low, high, color=colour, alpha=0.18, linewidth=0)


def heatmap(part: PlotData, axes: Axes, data: PlotData) -> None:
    """Plot a map of means over two axes, with the values written into its cells if they fit."""
    values = [line[data.plot.value] for line in data.lines if line[data.plot.value] is not None]
    scale = DisplayScale.of(values, quantity_of(data.plot.value))
    _map(part, axes, data, values, scale, scale.label(label_of(data.plot.value)))


def gain(part: PlotData, axes: Axes, data: PlotData) -> None:
    """Plot a map of gains in percent."""
    values = [line[data.plot.value] for line in data.lines]
    _map(part, axes, data, values, DisplayScale(), gain_label(data))


def _map(part: PlotData, axes: Axes, data: PlotData, values: Sequence[float], scale: DisplayScale, label: str) -> None:
    plot = data.plot
    xs, ys = data.values(plot.x), data.values(plot.y)
    grid = np.full((len(ys), len(xs)), np.nan)
    for line in part.lines:
        if line[plot.value] is not None and line[plot.x] is not None and line[plot.y] is not None:
            grid[ys.index(line[plot.y]), xs.index(line[plot.x])] = line[plot.value] / scale.by
    limits: dict[str, Any] = {"vmin": min(values) / scale.by, "vmax": max(values) / scale.by} if values else {}
    drawn = axes.imshow(grid, origin="lower", aspect="auto", cmap="cividis", **limits)
    axes.grid(visible=False)
    for which, column, axis_values in (("x", plot.x, xs), ("y", plot.y, ys)):
        step = -(-len(axis_values) // (2 * MOST_TICKS))
        texts = [data.label(column, value) for value in axis_values]
        getattr(axes, f"set_{which}ticks")(range(0, len(axis_values), step), texts[::step])
        if which == "x" and sum(len(text) + 2 for text in texts[::step]) > CHARACTERS[plot.columns]:
            axes.tick_params(axis="x", rotation=40)
        getattr(axes, f"set_{which}label")(getattr(plot, f"{which}_label") or data.axis(column).title)
    if grid.size <= MOST_CELLS:
        middle = (limits.get("vmin", 0.0) + limits.get("vmax", 0.0)) / 2
        for (row, column_), value in np.ndenumerate(grid):
            if np.isfinite(value):
                ink = "white" if value < middle else "black"
                axes.text(column_, row, f"{value:.3g}", ha="center", va="center", color=ink, fontsize=6)
    axes.figure.colorbar(drawn, ax=axes, label="\n".join(wrap(label, 36)), pad=0.02, aspect=28, fraction=0.06)


def pooled_distribution(part: PlotData, value: Any, by: str) -> tuple[Floats, Floats]:
    """Return (values, shares up to them) of a distribution over all points with a value on an axis."""
    distribution = part.plot.x or "completion"
    values: list[float] = []
    counts: list[int] = []
    for point in part.points:
        seen = part.records[point.key].of(part.plot.of)
        if (by and point.at[by] != value) or seen is None or distribution not in seen.distributions:
            continue
        values += seen.distributions[distribution].values
        counts += seen.distributions[distribution].counts
    order = np.argsort(values, kind="stable")
    total = np.cumsum(np.array(counts, dtype=np.int64)[order])
    shares = total / total[-1] if len(total) else np.zeros(0)
    return np.array(values, dtype=np.float64)[order], shares


def _distribution(part: PlotData, axes: Axes, data: PlotData, is_tail: bool) -> None:
    plot = data.plot
    which = plot.x or "completion"
    groups = [
        (number, label, *pooled_distribution(part, value, plot.by))
        for number, (value, label) in enumerate(data.groups(plot.by))
    ]
    quantity = "time" if which == "completion" else ""
    medians = [values[len(values) // 2] for _, _, values, _ in groups if len(values)]
    scale = DisplayScale.of(medians, quantity)
    for number, label, values, shares in groups:
        if len(values):
            style = {key: value for key, value in marker_style(number).items() if key != "marker"}
            y = 1 - np.concatenate([[0.0], shares[:-1]]) if is_tail else shares
            axes.step(values / scale.by, y, where="pre" if is_tail else "post", label=label or None, **style)
    if plot.x_scale != "linear":
        axes.set_xscale("log")
        plain_numbers(axes, "x")
    words = {"completion": "completion time", "slowdown": "slowdown"}[which]
    axes.set_xlabel(plot.x_label or scale.label(words))
    if is_tail:
        axes.set_yscale("log" if plot.y_scale != "linear" else "linear")
        axes.set_ylabel(plot.y_label or "share of messages slower than x")
    else:
        axes.set_ylim(0, 1.02)
        axes.set_ylabel(plot.y_label or "share of messages up to x")


def cdf(part: PlotData, axes: Axes, data: PlotData) -> None:
    """Plot the share of messages up to a time, of all seeds together."""
    _distribution(part, axes, data, is_tail=False)


def tail(part: PlotData, axes: Axes, data: PlotData) -> None:
    """Plot the share of messages slower than a time (1 - CDF, including equal ones), on logarithmic axes."""
    _distribution(part, axes, data, is_tail=True)


def pareto_front(dots: Sequence[tuple[float, float]]) -> list[int]:
    """Return the indices of the Pareto front (smaller is better), by their first value."""
    order = sorted(range(len(dots)), key=lambda index: dots[index])
    best, on_front = np.inf, []
    for index in order:
        if dots[index][1] < best:
            best = dots[index][1]
            on_front.append(index)
    return on_front


def pareto(part: PlotData, axes: Axes, data: PlotData) -> None:
    """Plot two measures of every row of coordinates, and a line through the Pareto front: smaller is better."""
    plot = data.plot
    x_scale, y_scale = (measure_axis(axes, which, data, getattr(plot, which)) for which in "xy")
    known = [line for line in part.lines if line[plot.x] is not None and line[plot.y] is not None]
    dots = [(line[plot.x] / x_scale.by, line[plot.y] / y_scale.by) for line in known]
    for number, (value, label) in enumerate(data.groups(plot.by)):
        group = [dot for dot, line in zip(dots, known, strict=True) if not plot.by or line[plot.by] == value]
        if group:
            style = {
                "color": marker_style(number)["color"],
                "marker": marker_style(number)["marker"],
                "linestyle": "none",
            }
            axes.plot(*zip(*group, strict=True), label=label or None, alpha=0.85, **style)
    best = pareto_front(dots)
    corners = [dots[index] for index in best]
    if corners:
        axes.step(*zip(*corners, strict=True), where="post", color=GREY, linewidth=0.9, zorder=1)
    begin_at_zero(axes)
    others = [axis.column for axis in part.file.axis if axis.column not in (plot.by, plot.panels)]
    for index in best[:MOST_NAMES] if others else ():
        words = ", ".join(str(known[index][axis]) for axis in others if known[index][axis] is not None)
        axes.annotate(words, dots[index], (4, 4), textcoords="offset points", fontsize=6, color=GREY)


Draw = Callable[[PlotData, "Axes", PlotData], None]
KINDS: Mapping[str, Draw] = {
    "lines": lines,
    "heatmap": heatmap,
    "gain": gain,
    "cdf": cdf,
    "tail": tail,
    "pareto": pareto,
}
