"""A sweep on a page: its table, its plots with what they were drawn from, and how to go on with it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from gradwire.analysis.html.charts import Axis, Chart, Heat, Lines, Series
from gradwire.analysis.html.pieces import Section, chart, code, folded, grid, heading, listed, paragraph
from gradwire.analysis.sweeps.checks import shown_points
from gradwire.analysis.sweeps.drawing import Drawn, Scale, is_log, is_plain, positions, quantity_of, words_of
from gradwire.analysis.sweeps.kinds import front, pooled
from gradwire.analysis.sweeps.measures import MEASURES, whose
from gradwire.analysis.sweeps.outcome import Sweep
from gradwire.analysis.sweeps.points import name_of
from gradwire.analysis.sweeps.schema import Plot
from gradwire.analysis.sweeps.shown import cell_of, remark
from gradwire.analysis.sweeps.stored import DECLARED
from gradwire.analysis.sweeps.table import Line, summary_lines

MOST_MEASURES = 4
"""Drawn, where a sweep declares no plots."""
MOST_FAILURES = 20


def sweep_section(found: Sweep) -> Section:
    """The section of a sweep."""
    section = Section(found.file.name, "sweep", f"{found.words}, over {', '.join(found.axes) or 'nothing'}.")
    section.add(paragraph(found.file.description), listed(_facts(found)))
    for plot in found.file.plot or _plain_plots(found):
        section.add(*(chart(each) for each in charts_of(found, plot)))
    explained = paragraph(remark(found.points, found.records, found.file.measures), "remark")
    section.add(heading("Figures"), explained, grid(found.grid))
    failed = [f"{point.name}: {record.why}" for point, record in found.failures[:MOST_FAILURES]]
    section.add(folded(f"{len(found.failures)} runs have failed", listed(failed)) if failed else "")
    if found.folder is not None:
        declared = found.folder / DECLARED
        again = shlex.join(["gradwire", "sweep", str(declared), "--out", str(found.folder)])
        section.add(heading("Go on with it"), code(again))
        if declared.is_file():
            section.add(folded("The sweep, as it was declared", code(declared.read_text(encoding="utf-8").strip())))
    return section


def _facts(found: Sweep) -> Iterator[str]:
    """Where each measure is smallest and largest."""
    lines = summary_lines(found.points, found.records, found.file.measures)
    for name in found.file.measures:
        there = [line for line in lines if line[name] is not None]
        if len(there) > 1:
            low, high = min(there, key=lambda line: line[name]), max(there, key=lambda line: line[name])
            if low[name] == high[name]:
                yield f"{words_of(name)}: {cell_of(name, low)} everywhere."
                continue
            yield (
                f"{words_of(name)}: from {cell_of(name, low)} ({_at(found, low)}) to {cell_of(name, high)} "
                f"({_at(found, high)})."
            )
    for text in found.axes_without_effect:
        yield f"**{text}.**"
    for point in found.broken:
        yield f"**A loss bound is broken at {point.name}.**"


def _at(found: Sweep, line: Line) -> str:
    return ", ".join(name_of({axis: line[axis] for axis in found.axes})) or "the only point"


def _plain_plots(found: Sweep) -> list[Plot]:
    """Lines of the first measures, where none are declared and there is a place for every axis."""
    axes = found.axes
    if not 1 <= len(axes) <= 3:
        return []
    by, panels = [*axes[1:], "", ""][:2]
    return [
        Plot(name=f"measure-{number}", title=words_of(name), kind="lines", x=axes[0], y=name, by=by, panels=panels)
        for number, name in enumerate(found.file.measures[:MOST_MEASURES])
    ]


def charts_of(found: Sweep, plot: Plot) -> Iterator[Chart]:
    """A plot, in as many charts as it has panels; none where nothing of it is done."""
    there = [
        point
        for point in shown_points(found.file, plot, found.points)
        if (record := found.records.get(point.key)) is not None and record.state == "done"
    ]
    if not there:
        return
    measures = [name for name in (plot.x, plot.y, plot.value) if name and whose(name)[1] in MEASURES]
    lines = summary_lines(there, found.records, measures)
    whole = Drawn(found.file, plot, there, found.records, lines)
    for value, words in whole.groups(plot.panels):
        part, title = whole, plot.title or plot.name
        if plot.panels:
            chosen = [point for point in there if point.at[plot.panels] == value]
            part = Drawn(found.file, plot, chosen, found.records, whole.having(**{plot.panels: value}))
            title = f"{title}, {whole.axis(plot.panels).title} = {words}"
        yield _KINDS[plot.kind](part, whole, title)


def _measure(whole: Drawn, which: str, name: str) -> tuple[Axis, float]:
    """(axis, what values are divided by) of a measure."""
    scale = Scale.of([line[name] for line in whole.lines if line[name] is not None], quantity_of(name))
    label = getattr(whole.plot, f"{which}_label", "") or words_of(name)
    return Axis(scale.label(label), getattr(whole.plot, f"{which}_scale", None) or "linear"), scale.by


def _title(whole: Drawn, label: str) -> str:
    """Return a line's name; with the axis where no name says anything by itself."""
    by = whole.plot.by
    if by and is_plain([each for _, each in whole.groups(by)]):
        return f"{whole.axis(by).title} {label}"
    return label or words_of(whole.plot.y)


def _lines(part: Drawn, whole: Drawn, title: str) -> Lines:
    plot = whole.plot
    at, (y, by) = positions(whole, "x", plot.x), _measure(whole, "y", plot.y)
    logarithmic = plot.x_scale == "log" or (plot.x_scale is None and is_log(whole.values(plot.x)))
    series = []
    for value, label in whole.groups(plot.by):
        mine = part.having(**{plot.by: value})
        rows = [line for line in mine if line[plot.y] is not None and line[plot.x] is not None]
        rows.sort(key=lambda line: at.places[line[plot.x]])
        points = [
            (
                at.places[line[plot.x]],
                *(None if line[name] is None else max(0.0, line[name] / by) for name in _band(plot.y)),
            )
            for line in rows
        ]
        series.append(Series(_title(whole, label), points, dots=True))
    axis = Axis(at.label, "log" if logarithmic and not at.named else "linear", at.ticks)
    says = "Means over the seeds; bands are 95 % intervals."
    return Lines(title, says, axis, y, series, whiskers=at.named)


def _band(name: str) -> tuple[str, str, str]:
    return name, f"{name}_low", f"{name}_high"


def _heat(part: Drawn, whole: Drawn, title: str) -> Heat:
    plot = whole.plot
    value, by = _measure(whole, "value", plot.value)
    x, y = positions(whole, "x", plot.x), positions(whole, "y", plot.y)
    cells = {(line[plot.y], line[plot.x]): line[plot.value] for line in part.lines}
    rows, columns = list(y.places), list(x.places)
    found = [[cells.get((row, column)) for column in columns] for row in rows]
    values = [[None if each is None else each / by for each in row] for row in found]
    names = [(float(n), whole.label(plot.x, each)) for n, each in enumerate(columns)]
    sides = [(float(n), whole.label(plot.y, each)) for n, each in enumerate(rows)]
    axes = [whole.axis(column).title for column in (plot.x, plot.y)]
    return Heat(
        title, "Means over the seeds.", Axis(plot.x_label or axes[0], ticks=names),
        Axis(plot.y_label or axes[1], ticks=sides), value.label, values,
    )  # fmt: skip


def _distribution(part: Drawn, whole: Drawn, title: str) -> Lines:
    plot = whole.plot
    which, as_late = plot.x or "completion", plot.kind == "tail"
    groups = [(label, *pooled(part, value, plot.by)) for value, label in whole.groups(plot.by)]
    medians = [values[len(values) // 2] for _, values, _ in groups if len(values)]
    scale = Scale.of(medians, "time" if which == "completion" else "")
    series = []
    for label, values, shares in groups:
        before = [0.0, *shares[:-1].tolist()]
        heights = [1 - each for each in before] if as_late else shares.tolist()
        points = list(zip((values / scale.by).tolist(), heights, strict=True))
        series.append(Series(_title(whole, label) if plot.by else which, points, step="before" if as_late else "after"))
    words = {"completion": "completion time", "slowdown": "slowdown"}[which]
    return Lines(
        title, "All messages of all seeds together.",
        Axis(plot.x_label or scale.label(words), "linear" if plot.x_scale == "linear" else "log"),
        Axis(plot.y_label or ("share as late or later" if as_late else "share as early or earlier"),
             "log" if as_late and plot.y_scale != "linear" else "linear"), series,
    )  # fmt: skip


def _pareto(part: Drawn, whole: Drawn, title: str) -> Lines:
    plot = whole.plot
    (x, x_by), (y, y_by) = _measure(whole, "x", plot.x), _measure(whole, "y", plot.y)
    there = [line for line in part.lines if line[plot.x] is not None and line[plot.y] is not None]
    dots = [(line[plot.x] / x_by, line[plot.y] / y_by) for line in there]
    series = []
    for value, label in whole.groups(plot.by):
        mine = [n for n, line in enumerate(there) if not plot.by or line[plot.by] == value]
        notes = [_where(part, there[n]) for n in mine]
        series.append(Series(_title(whole, label) if plot.by else "points", [dots[n] for n in mine], dots=True,
                             line=False, note=notes))  # fmt: skip
    corners = [dots[n] for n in front(dots)]
    series.append(Series("none is better in both", corners, step="after", grey=True))
    return Lines(title, "A dot for every coordinates; smaller is better.", x, y, series)


def _where(part: Drawn, line: Line) -> str:
    return ", ".join(name_of({axis.column: line[axis.column] for axis in part.file.axis}))


_KINDS = {"lines": _lines, "heatmap": _heat, "cdf": _distribution, "tail": _distribution, "pareto": _pareto}


