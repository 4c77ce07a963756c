"""Draws the plots that a sweep's file declares, as figures with a legend; `plot_kinds` draws their panels.

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
from gradwire.studies.sweep.plots.plot_data import PlotData, is_plain
from gradwire.studies.sweep.plots.plot_kinds import KINDS
from gradwire.studies.sweep.point_store import Record
from gradwire.studies.sweep.points import PointPlace
from gradwire.studies.sweep.schema import Plot, SweepFile

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAPS = ("heatmap", "gain")
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
        data = PlotData.of(file, plot, points, records)
        if data is not None:
            with matplotlib.rc_context(STYLE | FONTS[plot.font]):
                drawn[plot.name] = _figure_of(data)
    return drawn


def _figure_of(data: PlotData) -> Figure:
    plot, draw = data.plot, KINDS[data.plot.kind]
    panels = data.groups(plot.panels)
    figure, panel_axes = _canvas(plot, len(panels))
    for number, (axes, (value, title)) in enumerate(zip(panel_axes, panels, strict=True)):
        if plot.panels:
            axes.set_title(f"{data.axis(plot.panels).title} = {title}")
        draw(data.panel(value), axes, data)
        columns = min(len(panels), PER_ROW[plot.columns])
        if number % columns and plot.kind not in MAPS:
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
