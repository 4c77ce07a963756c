"""Builds a sweep's section of a report page, with its table, plots and the command that resumes it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from gradwire.analysis.report.charts import Axis, Chart, Heat, Lines, Series
from gradwire.analysis.report.html_page import (
    PageSection,
    bullet_list,
    chart,
    code,
    collapsible,
    grid,
    heading,
    paragraph,
)
from gradwire.studies.sweep.outcome import Sweep
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
from gradwire.studies.sweep.plots.plot_kinds import pareto_front, pooled_distribution
from gradwire.studies.sweep.points import name_of
from gradwire.studies.sweep.schema import Plot
from gradwire.studies.sweep.stored_sweep import SWEEP_FILE
from gradwire.studies.sweep.sweep_tables import Line, cell_of, interval_remark, summary_lines

MOST_MEASURES = 4
"""Measures that are plotted if a sweep declares no plots."""
MOST_FAILURES = 20


def sweep_section(sweep: Sweep) -> PageSection:
    """Return the section of a sweep."""
    section = PageSection(sweep.file.name, "sweep", f"{sweep.text}, over {', '.join(sweep.axes) or 'nothing'}.")
    section.add(paragraph(sweep.file.description), bullet_list(_facts(sweep)))
    for plot in sweep.file.plot or _plain_plots(sweep):
        section.add(*(chart(item) for item in charts_of(sweep, plot)))
    explained = paragraph(interval_remark(sweep.points, sweep.records, sweep.file.measures), "remark")
    section.add(heading("Figures"), explained, grid(sweep.grid))
    failed = [f"{point.name}: {record.why}" for point, record in sweep.failures[:MOST_FAILURES]]
    section.add(collapsible(f"{len(sweep.failures)} runs failed", bullet_list(failed)) if failed else "")
    if sweep.folder is not None:
        declared = sweep.folder / SWEEP_FILE
        again = shlex.join(["gradwire", "sweep", str(declared), "--out", str(sweep.folder)])
        section.add(heading("Resume"), code(again))
        if declared.is_file():
            section.add(collapsible("Declaration of the sweep", code(declared.read_text(encoding="utf-8").strip())))
    return section


def _facts(sweep: Sweep) -> Iterator[str]:
    """Yield the minimum and maximum of each measure, and warnings."""
    lines = summary_lines(sweep.points, sweep.records, sweep.file.measures)
    for name in sweep.file.measures:
        known = [line for line in lines if line[name] is not None]
        if len(known) > 1:
            low, high = min(known, key=lambda line: line[name]), max(known, key=lambda line: line[name])
            if low[name] == high[name]:
                yield f"{label_of(name)}: {cell_of(name, low)} everywhere."
                continue
            yield (
                f"{label_of(name)}: from {cell_of(name, low)} ({_at(sweep, low)}) to {cell_of(name, high)} "
                f"({_at(sweep, high)})."
            )
    for text in sweep.axes_without_effect:
        yield f"**{text}.**"
    for point in sweep.broken_bounds:
        yield f"**A loss bound is broken at {point.name}.**"


def _at(sweep: Sweep, line: Line) -> str:
    return ", ".join(name_of({axis: line[axis] for axis in sweep.axes})) or "the only point"


def _plain_plots(sweep: Sweep) -> list[Plot]:
    """Return line plots of the first measures, if there are few enough axes for one plot."""
    axes = sweep.axes
    if not 1 <= len(axes) <= 3:
        return []
    by, panels = [*axes[1:], "", ""][:2]
    return [
        Plot(name=f"measure-{number}", title=label_of(name), kind="lines", x=axes[0], y=name, by=by, panels=panels)
        for number, name in enumerate(sweep.file.measures[:MOST_MEASURES])
    ]


def charts_of(sweep: Sweep, plot: Plot) -> Iterator[Chart]:
    """Yield one chart per panel of a plot; none if no point of it is done."""
    data = PlotData.of(sweep.file, plot, sweep.points, sweep.records)
    if data is None:
        return
    for value, words in data.groups(plot.panels):
        title = plot.title or plot.name
        if plot.panels:
            title = f"{title}, {data.axis(plot.panels).title} = {words}"
        yield _KINDS[plot.kind](data.panel(value), data, title)


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
    plot = data.plot
    at, (y, by) = positions(data, "x", plot.x), _measure(data, "y", plot.y)
    logarithmic = plot.x_scale == "log" or (plot.x_scale is None and is_log(data.values(plot.x)))
    series = []
    for value, label in data.groups(plot.by):
        group = part.having(**{plot.by: value})
        rows = [line for line in group if line[plot.y] is not None and line[plot.x] is not None]
        rows.sort(key=lambda line: at.places[line[plot.x]])
        points = [
            (
                at.places[line[plot.x]],
                *(None if line[name] is None else max(0.0, line[name] / by) for name in _band(plot.y)),
            )
            for line in rows
        ]
        series.append(Series(_title(data, label), points, dots=True))
    axis = Axis(at.label, "log" if logarithmic and not at.named else "linear", at.ticks)
    says = "Means over the seeds; bands are 95 % intervals."
    return Lines(title, says, axis, y, series, whiskers=at.named)


def _band(name: str) -> tuple[str, str, str]:
    return name, f"{name}_low", f"{name}_high"


def _heat(part: PlotData, data: PlotData, title: str) -> Heat:
    plot = data.plot
    value, by = _measure(data, "value", plot.value)
    if plot.kind == "gain":
        value, by = Axis(gain_label(data)), 1.0
    x, y = positions(data, "x", plot.x), positions(data, "y", plot.y)
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


def _distribution(part: PlotData, data: PlotData, title: str) -> Lines:
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
    plot = data.plot
    (x, x_by), (y, y_by) = _measure(data, "x", plot.x), _measure(data, "y", plot.y)
    known = [line for line in part.lines if line[plot.x] is not None and line[plot.y] is not None]
    dots = [(line[plot.x] / x_by, line[plot.y] / y_by) for line in known]
    series = []
    for value, label in data.groups(plot.by):
        indices = [n for n, line in enumerate(known) if not plot.by or line[plot.by] == value]
        notes = [_where(part, known[n]) for n in indices]
        series.append(
            Series(
                _title(data, label) if plot.by else "points",
                [dots[n] for n in indices],
                dots=True,
                line=False,
                note=notes,
            )
        )
    corners = [dots[n] for n in pareto_front(dots)]
    series.append(Series("Pareto front", corners, step="after", grey=True))
    return Lines(title, "One dot per point of the sweep; smaller is better.", x, y, series)


def _where(part: PlotData, line: Line) -> str:
    return ", ".join(name_of({axis.column: line[axis.column] for axis in part.file.axis}))


_KINDS = {
    "lines": _lines,
    "heatmap": _heat,
    "gain": _heat,
    "cdf": _distribution,
    "tail": _distribution,
    "pareto": _pareto,
}
