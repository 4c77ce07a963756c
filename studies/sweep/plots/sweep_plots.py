"""Draws the plots that a sweep's file declares, as figures with a legend; `plot_kinds` draws their panels.

They are as wide as one column of a paper (3.33 in) or two (7 in), with letters of 7 to 8 pt, so they need no scaling
there; `font = "serif"` is like Times. Colours are those of Okabe and Ito, and lines also differ in style and marker for
colour-blind readers and black-and-white printers; maps use cividis. Axes use the unit that fits their values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from textwrap import wrap
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter, NullLocator

from gradwire.analysis.comparison.plots import GREY, apply_house_style
from gradwire.analysis.report.charts import Axis, Heat, Lines
from gradwire.studies.sweep.plots.plot_data import MOST_TICKS, PlotData, begin_at_zero, is_plain, marker_style
from gradwire.studies.sweep.plots.plot_kinds import KINDS
from gradwire.studies.sweep.point_store import Record
from gradwire.studies.sweep.points import PointPlace
from gradwire.studies.sweep.schema import Plot, SweepFile

MAPS = ("heatmap", "gain")
WIDTHS = {1: 3.33, 2: 7.0}
"""Inches: a column, and the text width of a page in two columns."""
PER_ROW = {1: 2, 2: 4}
"""Panels in a row."""
MOST_CELLS = 80
"""Cells of a map up to which their values are written into them."""
CHARACTERS = {1: 36, 2: 80}
"""Characters that fit below a map, by its width in columns; longer labels are rotated."""
MOST_NAMES = 8
"""Dots of a Pareto front with labels."""
DRAW_STYLES: Any = {"": "default", "before": "steps-pre", "after": "steps-post"}
STYLE: Any = {
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "legend.fontsize": 7,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "lines.linewidth": 1.3,
    "lines.markersize": 3.5,
    "axes.unicode_minus": False,
}
FONTS: dict[str, Any] = {
    "sans": {"font.family": "sans-serif", "font.sans-serif": ["DejaVu Sans"], "mathtext.fontset": "dejavusans"},
    "serif": {"font.family": "serif", "font.serif": ["STIXGeneral"], "mathtext.fontset": "stix"},
}


def figures(file: SweepFile, points: Sequence[PointPlace], records: Mapping[str, Record]) -> dict[str, Figure]:
    """Return every declared plot with data, by name."""
    drawn = {}
    for plot in file.plot:
        data = PlotData.of(file, plot, points, records)
        if data is not None:
            with matplotlib.rc_context(STYLE | FONTS[plot.font]):
                drawn[plot.name] = _figure_of(data)
    return drawn


def _figure_of(data: PlotData) -> Figure:
    plot, panels = data.plot, data.groups(data.plot.panels)
    charts: list[Any] = [KINDS[plot.kind](data.panel(value), data, "") for value, _ in panels]
    figure, panel_axes = _canvas(plot, len(panels))
    for number, (axes, chart, (_, title)) in enumerate(zip(panel_axes, charts, panels, strict=True)):
        if plot.panels:
            axes.set_title(f"{data.axis(plot.panels).title} = {title}")
        per_row = min(len(panels), PER_ROW[plot.columns])
        if plot.kind in MAPS:
            _draw_map(axes, chart, charts, plot, (number + 1) % per_row == 0 or number + 1 == len(panels))
        else:
            _draw_lines(axes, chart, data)
        if number % per_row:
            axes.set_ylabel("")
            axes.tick_params(labelleft=plot.kind not in MAPS)
    if plot.title:
        figure.suptitle(plot.title)
    _legend(figure, panel_axes, plot, data)
    return figure


def _draw_lines(axes: Axes, chart: Lines, data: PlotData) -> None:
    labels = [label for _, label in data.groups(data.plot.by)]
    notes = {point: text for series in chart.series for point, text in zip(series.points, series.note, strict=False)}
    for number, (series, label) in enumerate(zip(chart.series, [*labels, ""], strict=False)):
        if not series.points:
            continue
        x, y, *band = np.array(series.points, dtype=np.float64).T
        style = {**marker_style(number), "drawstyle": DRAW_STYLES[series.step]}
        if not series.dots:
            style["marker"] = ""
        if not series.line:
            style |= {"linestyle": "none", "alpha": 0.85}
        if series.grey:
            style |= {"color": GREY, "linestyle": "-", "linewidth": 0.9, "zorder": 1}
            for point in series.points[:MOST_NAMES]:
                axes.annotate(
                    notes[point], (point[0], point[1]), (4, 4), textcoords="offset points", fontsize=6, color=GREY
                )
        (drawn,) = axes.plot(x, y, label=label or None, **style)
        if band and not np.isnan(band[0]).all():
            axes.fill_between(x, *band, color=drawn.get_color(), alpha=0.18, linewidth=0)
    for which, axis in (("x", chart.x), ("y", chart.y)):
        _set_axis(axes, which, axis, data.plot.kind)
    begin_at_zero(axes)
    if data.plot.kind == "cdf":
        axes.set_ylim(0, 1.02)


def _set_axis(axes: Axes, which: str, axis: Axis, kind: str) -> None:
    """Set label, scale and ticks. A logarithmic axis has 1, 10, 100 instead of powers of ten, except for shares, and
    minor labels for few decades only."""
    at = axes.xaxis if which == "x" else axes.yaxis
    getattr(axes, f"set_{which}label")(axis.label)
    getattr(axes, f"set_{which}scale")(axis.scale)
    if axis.ticks:
        at.set_ticks([position for position, _ in axis.ticks], [words for _, words in axis.ticks])
        at.set_minor_locator(NullLocator())
    elif axis.scale == "log" and (which == "x" or kind != "tail"):
        at.set_major_formatter(lambda value, _: f"{value:g}")
        low, high = at.get_view_interval()
        at.set_minor_formatter(NullFormatter())
        if 0 < low and high < 30 * low:
            at.set_minor_formatter(lambda value, _: f"{value:g}" if f"{value:e}"[0] in "25" else "")


def _draw_map(axes: Axes, chart: Heat, charts: Sequence[Heat], plot: Plot, has_scale: bool) -> None:
    """Plot a map, with the values written into its cells if they fit.

    charts : all panels, which have one scale. has_scale : draw it beside this one, the last of a row.
    """
    values = np.concatenate([np.array(each.values, dtype=np.float64).ravel() for each in charts])
    known = values[np.isfinite(values)]
    low, high = (known.min(), known.max()) if len(known) else (0.0, 0.0)
    grid = np.array(chart.values, dtype=np.float64)
    drawn = axes.imshow(grid, origin="lower", aspect="auto", cmap="cividis", vmin=low, vmax=high)
    axes.grid(visible=False)
    for which, axis in (("x", chart.x), ("y", chart.y)):
        texts = [text for _, text in axis.ticks]
        step = -(-len(texts) // (2 * MOST_TICKS))
        getattr(axes, f"set_{which}ticks")(range(0, len(texts), step), texts[::step])
        if which == "x" and sum(len(text) + 2 for text in texts[::step]) > CHARACTERS[plot.columns]:
            axes.tick_params(axis="x", rotation=40)
        getattr(axes, f"set_{which}label")(axis.label)
    for (row, column), value in np.ndenumerate(grid) if grid.size <= MOST_CELLS else ():
        if np.isfinite(value):
            ink = "white" if value < (low + high) / 2 else "black"
            words = str(round(value)) if plot.kind == "gain" else f"{value:.3g}"
            axes.text(column, row, words, ha="center", va="center", color=ink, fontsize=6)
    if has_scale:
        axes.figure.colorbar(drawn, ax=axes, label="\n".join(wrap(chart.unit, 30)), pad=0.02, aspect=28, fraction=0.06)


def _canvas(plot: Plot, panels: int) -> tuple[Figure, list[Axes]]:
    columns = min(panels, PER_ROW[plot.columns])
    rows = -(-panels // columns)
    width = WIDTHS[plot.columns]
    panel_width = width / columns
    figure = Figure(figsize=(width, rows * max(1.5, min(0.72 * panel_width, 2.7)) + 0.35), layout="constrained")
    FigureCanvasAgg(figure)
    share = plot.kind not in MAPS
    panel_axes = figure.subplots(rows, columns, squeeze=False, sharey=share).ravel()
    for spare in panel_axes[panels:]:
        spare.remove()
    for axes in panel_axes[:panels]:
        apply_house_style(axes)
    return figure, list(panel_axes[:panels])


def _legend(figure: Figure, panel_axes: Sequence[Axes], plot: Plot, data: PlotData) -> None:
    """Add one legend above all panels, if there is anything to distinguish."""
    handles: dict[str, Any] = {}
    for axes in panel_axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    if not handles:
        return
    widest = max(map(len, handles)) + 6
    columns = max(1, min(len(handles), int(WIDTHS[plot.columns] * 17 / widest)))
    title = data.axis(plot.by).title if plot.by and is_plain(handles) else None
    figure.legend(
        list(handles.values()),
        list(handles),
        loc="outside upper center",
        ncols=columns,
        frameon=False,
        title=title,
        title_fontsize=7,
        handlelength=2.2,
        columnspacing=1.2,
        borderaxespad=0.2,
    )
