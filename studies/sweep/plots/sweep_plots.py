"""Plots of a sweep, as declared in its file.

They are as wide as one column of a paper (3.33 in) or two (7 in), with letters of 7 to 8 pt, so they need no scaling
there; `font = "serif"` is like Times. Colours are those of Okabe and Ito, and lines also differ in style and marker for
colour-blind readers and black-and-white printers; maps use cividis. Axes use the unit that fits their values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from gradwire.analysis.comparison.plots import apply_house_style
from gradwire.studies.sweep.checks import shown_points
from gradwire.studies.sweep.measures import MEASURES, split_measure
from gradwire.studies.sweep.plots.plot_data import PlotData, is_plain
from gradwire.studies.sweep.plots.plot_kinds import KINDS
from gradwire.studies.sweep.point_store import Record
from gradwire.studies.sweep.points import PointPlace
from gradwire.studies.sweep.schema import Plot, SweepFile
from gradwire.studies.sweep.sweep_tables import summary_lines

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTHS = {1: 3.33, 2: 7.0}
"""Inches: a column, and the text width of a page in two columns."""
PER_ROW = {1: 2, 2: 4}
"""Panels in a row."""
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
        done = [
            point
            for point in shown_points(file, plot, points)
            if (record := records.get(point.key)) is not None and record.state == "done"
        ]
        if done:
            with matplotlib.rc_context(STYLE | FONTS[plot.font]):
                drawn[plot.name] = _figure_of(file, plot, done, records)
    return drawn


def _figure_of(file: SweepFile, plot: Plot, points: Sequence[PointPlace], records: Mapping[str, Record]) -> Figure:
    measures = [name for name in (plot.x, plot.y, plot.value) if name and split_measure(name)[1] in MEASURES]
    data = PlotData(file, plot, points, records, summary_lines(points, records, measures))
    draw = KINDS[plot.kind]
    panels = data.groups(plot.panels)
    figure, panel_axes = _canvas(plot, len(panels))
    for number, (axes, (value, title)) in enumerate(zip(panel_axes, panels, strict=True)):
        part = data
        if plot.panels:
            chosen = [point for point in points if point.at[plot.panels] == value]
            part = PlotData(file, plot, chosen, records, data.having(**{plot.panels: value}))
            axes.set_title(f"{data.axis(plot.panels).title} = {title}")
        draw(part, axes, data)
        columns = min(len(panels), PER_ROW[plot.columns])
        if number % columns and plot.kind != "heatmap":
            axes.set_ylabel("")
    if plot.title:
        figure.suptitle(plot.title)
    _legend(figure, panel_axes, plot, data)
    return figure


def _canvas(plot: Plot, panels: int) -> tuple[Figure, list[Axes]]:
    columns = min(panels, PER_ROW[plot.columns])
    rows = -(-panels // columns)
    width = WIDTHS[plot.columns]
    panel_width = width / columns
    figure = Figure(figsize=(width, rows * max(1.5, min(0.72 * panel_width, 2.7)) + 0.35), layout="constrained")
    FigureCanvasAgg(figure)
    share = plot.kind != "heatmap"
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
