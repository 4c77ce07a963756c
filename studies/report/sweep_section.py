"""Builds a sweep's section of a report page, with its table, plots and the command that resumes it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from gradwire.analysis.report import html_page as html
from gradwire.analysis.report.charts import Chart
from gradwire.studies.sweep.outcome import Sweep
from gradwire.studies.sweep.plots.plot_data import PlotData, label_of
from gradwire.studies.sweep.plots.plot_kinds import KINDS
from gradwire.studies.sweep.points import name_of
from gradwire.studies.sweep.schema import Plot
from gradwire.studies.sweep.stored_sweep import SWEEP_FILE
from gradwire.studies.sweep.sweep_tables import Line, cell_of, interval_remark, summary_lines

MOST_MEASURES = 4
"""Measures that are plotted if a sweep declares no plots."""
MOST_FAILURES = 20


def sweep_section(sweep: Sweep) -> html.PageSection:
    """Return the section of a sweep."""
    section = html.PageSection(sweep.file.name, "sweep", f"{sweep.text}, over {', '.join(sweep.axes) or 'nothing'}.")
    section.add(html.paragraph(sweep.file.description), html.bullet_list(_facts(sweep)))
    for plot in sweep.file.plot or _plain_plots(sweep):
        section.add(*(html.chart(item) for item in charts_of(sweep, plot)))
    explained = html.paragraph(interval_remark(sweep.points, sweep.records, sweep.file.measures), "remark")
    section.add(html.heading("Figures"), explained, html.grid(sweep.grid))
    failed = [f"{point.name}: {record.why}" for point, record in sweep.failures[:MOST_FAILURES]]
    section.add(html.collapsible(f"{len(sweep.failures)} runs failed", html.bullet_list(failed)) if failed else "")
    if sweep.folder is not None:
        declared = sweep.folder / SWEEP_FILE
        again = shlex.join(["gradwire", "sweep", str(declared), "--out", str(sweep.folder)])
        section.add(html.heading("Resume"), html.code(again))
        if declared.is_file():
            section.add(
                html.collapsible("Declaration of the sweep", html.code(declared.read_text(encoding="utf-8").strip()))
            )
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
        yield KINDS[plot.kind](data.panel(value), data, title)
