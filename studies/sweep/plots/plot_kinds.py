"""Each plot kind (lines, heat map, gain, CDF, tail, Pareto) makes a chart of one panel from `part`, its data.

`data`, that of all panels, determines colours, ticks and units.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from gradwire.analysis.report.charts import Axis, Chart, Heat, Lines, Series, pareto_front
from gradwire.scenarios.arrays import Floats
from gradwire.studies.sweep.plots.plot_data import (
    DisplayScale,
    PlotData,
    gain_label,
    is_log,
    is_plain,
    label_of,
    positions,
    quantity_of,
)
from gradwire.studies.sweep.points import name_of
from gradwire.studies.sweep.sweep_tables import Line


def _measure(data: PlotData, which: str, name: str) -> tuple[Axis, float]:
    """Return (axis, divisor of the values) of a measure."""
    scale = DisplayScale.of([line[name] for line in data.lines if line[name] is not None], quantity_of(name))
    label = getattr(data.plot, f"{which}_label", "") or label_of(name)
    return Axis(scale.label(label), getattr(data.plot, f"{which}_scale", None) or "linear"), scale.by


def _title(data: PlotData, label: str) -> str:
    """Return a line's name; with the axis if the names are bare values."""
    by = data.plot.by
    if by and is_plain([name for _, name in data.groups(by)]):
        return f"{data.axis(by).title} {label}"
    return label or label_of(data.plot.y)


def _lines(part: PlotData, data: PlotData, title: str) -> Lines:
    """Return means over an axis with bands: the 95 % interval over the seeds."""
    plot = data.plot
    at, (y, by) = positions(data, "x", plot.x), _measure(data, "y", plot.y)
    logarithmic = plot.x_scale == "log" or (plot.x_scale is None and is_log(data.values(plot.x)))
    series = []
    for value, label in data.groups(plot.by):
        group = part.having(**{plot.by: value})
        rows = [line for line in group if line[plot.y] is not None and line[plot.x] is not None]
        rows.sort(key=lambda line: at.places[line[plot.x]])
        points = [(at.places[line[plot.x]], *_band(line, plot.y, by)) for line in rows]
        series.append(Series(_title(data, label), points, dots=True))
    axis = Axis(at.label, "log" if logarithmic and not at.named else "linear", at.ticks)
    says = "Means over the seeds; bands are 95 % intervals."
    return Lines(title, says, axis, y, series, whiskers=at.named)


def _band(line: Line, name: str, by: float) -> tuple[float | None, float | None, float | None]:
    """Return mean and interval of a measure that is not negative, or whose mean is."""
    mean, low, high = (
        None if (value := line[key]) is None else value / by for key in (name, f"{name}_low", f"{name}_high")
    )
    return mean, None if low is None else min(mean, max(0.0, low)), high


def _heat(part: PlotData, data: PlotData, title: str) -> Heat:
    """Return a map of means, or of gains in percent, over two axes."""
    plot = data.plot
    value, by = _measure(data, "value", plot.value)
    if plot.kind == "gain":
        value, by = Axis(gain_label(data)), 1.0
    x, y = positions(part, "x", plot.x), positions(data, "y", plot.y)
    cells = {(line[plot.y], line[plot.x]): line[plot.value] for line in part.lines}
    rows, columns = list(y.places), list(x.places)
    cells_by_row = [[cells.get((row, column)) for column in columns] for row in rows]
    values = [[None if cell is None else cell / by for cell in row] for row in cells_by_row]
    names = [(float(n), data.label(plot.x, column)) for n, column in enumerate(columns)]
    sides = [(float(n), data.label(plot.y, row)) for n, row in enumerate(rows)]
    axes = [data.axis(column).title for column in (plot.x, plot.y)]
    return Heat(
        title,
        "Means over the seeds.",
        Axis(plot.x_label or axes[0], ticks=names),
        Axis(plot.y_label or axes[1], ticks=sides),
        value.label,
        values,
    )


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


def _distribution(part: PlotData, data: PlotData, title: str) -> Lines:
    """Return the shares of messages up to a time, or slower than it (1 - CDF, including equal ones), over all seeds."""
    plot = data.plot
    distribution, is_tail = plot.x or "completion", plot.kind == "tail"
    groups = [(label, *pooled_distribution(part, value, plot.by)) for value, label in data.groups(plot.by)]
    medians = [values[len(values) // 2] for _, values, _ in groups if len(values)]
    scale = DisplayScale.of(medians, "time" if distribution == "completion" else "")
    series = []
    for label, values, shares in groups:
        before = [0.0, *shares[:-1].tolist()]
        heights = [1 - share for share in before] if is_tail else shares.tolist()
        points = list(zip((values / scale.by).tolist(), heights, strict=True))
        series.append(
            Series(_title(data, label) if plot.by else distribution, points, step="before" if is_tail else "after")
        )
    words = {"completion": "completion time", "slowdown": "slowdown"}[distribution]
    return Lines(
        title,
        "All messages of all seeds together.",
        Axis(plot.x_label or scale.label(words), "linear" if plot.x_scale == "linear" else "log"),
        Axis(
            plot.y_label or ("share of messages slower than x" if is_tail else "share of messages up to x"),
            "log" if is_tail and plot.y_scale != "linear" else "linear",
        ),
        series,
    )


def _pareto(part: PlotData, data: PlotData, title: str) -> Lines:
    """Return two measures of every row of coordinates, and a line through the Pareto front: smaller is better."""
    plot = data.plot
    (x, x_by), (y, y_by) = _measure(data, "x", plot.x), _measure(data, "y", plot.y)
    known = [line for line in part.lines if line[plot.x] is not None and line[plot.y] is not None]
    dots = [(line[plot.x] / x_by, line[plot.y] / y_by) for line in known]
    others = [axis.column for axis in part.file.axis if axis.column not in (plot.by, plot.panels)]
    series = []
    for value, label in data.groups(plot.by):
        indices = [n for n, line in enumerate(known) if not plot.by or line[plot.by] == value]
        notes = [", ".join(name_of({column: known[n][column] for column in others})) for n in indices]
        name = _title(data, label) if plot.by else "points"
        series.append(Series(name, [dots[n] for n in indices], dots=True, line=False, note=notes))
    corners = [dots[n] for n in pareto_front(dots)]
    series.append(Series("Pareto front", corners, step="after", grey=True))
    return Lines(title, "One dot per point of the sweep; smaller is better.", x, y, series)


KINDS: Mapping[str, Callable[[PlotData, PlotData, str], Chart]] = {
    "lines": _lines,
    "heatmap": _heat,
    "gain": _heat,
    "cdf": _distribution,
    "tail": _distribution,
    "pareto": _pareto,
}
