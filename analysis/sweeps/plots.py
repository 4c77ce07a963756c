"""Plots of a sweep, as its file declares them.

They are as wide as one column of a paper (3.33 in) or two (7 in), with letters of 7 to 8 pt, so that they need no
scaling there; `font = "serif"` is like Times. Colours are those of Okabe and Ito, and lines differ in style and
marker as well, so that colour-blind readers and printers without colour tell them apart; maps are in cividis. What
stands on an axis of the plot stands there in the unit that fits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from gradwire.analysis.plots import dress
from gradwire.analysis.sweeps.checks import shown_points
from gradwire.analysis.sweeps.drawing import Drawn, is_plain
from gradwire.analysis.sweeps.kinds import KINDS
from gradwire.analysis.sweeps.measures import MEASURES, whose
from gradwire.analysis.sweeps.points import Place
from gradwire.analysis.sweeps.schema import Plot, SweepFile
from gradwire.analysis.sweeps.store import Record
from gradwire.analysis.sweeps.table import summary_lines

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTHS = {1: 3.33, 2: 7.0}
"""Inches: a column and the text of a page in two columns."""
PER_ROW = {1: 2, 2: 4}
"""Panels beside each other."""
STYLE: Any = {
    "font.size": 8, "axes.titlesize": 8, "axes.labelsize": 8, "legend.fontsize": 7, "xtick.labelsize": 7,
    "ytick.labelsize": 7, "lines.linewidth": 1.3, "lines.markersize": 3.5, "axes.unicode_minus": False,
}  # fmt: skip
FONTS: dict[str, Any] = {
    "sans": {"font.family": "sans-serif", "font.sans-serif": ["DejaVu Sans"], "mathtext.fontset": "dejavusans"},
    "serif": {"font.family": "serif", "font.serif": ["STIXGeneral"], "mathtext.fontset": "stix"},
}


def figures(file: SweepFile, points: Sequence[Place], records: Mapping[str, Record]) -> dict[str, Figure]:
    """Every declared plot that there is something of, by its name."""
    found = {}
    for plot in file.plot:
        there = [
            point
            for point in shown_points(file, plot, points)
            if (record := records.get(point.key)) is not None and record.state == "done"
        ]
        if there:
            with matplotlib.rc_context(STYLE | FONTS[plot.font]):
                found[plot.name] = _figure_of(file, plot, there, records)
    return found


def _figure_of(
    file: SweepFile, plot: Plot, points: Sequence[Place], records: Mapping[str, Record]
) -> Figure:
    measures = [name for name in (plot.x, plot.y, plot.value) if name and whose(name)[1] in MEASURES]
    data = Drawn(file, plot, points, records, summary_lines(points, records, measures))
    draw = KINDS[plot.kind]
    panels = data.groups(plot.panels)
    figure, places = _canvas(plot, len(panels))
    for number, (axes, (value, title)) in enumerate(zip(places, panels, strict=True)):
        part = data
        if plot.panels:
            chosen = [point for point in points if point.at[plot.panels] == value]
            part = Drawn(file, plot, chosen, records, data.having(**{plot.panels: value}))
            axes.set_title(f"{data.axis(plot.panels).title} = {title}")
        draw(part, axes, data)
        columns = min(len(panels), PER_ROW[plot.columns])
        if number % columns and plot.kind != "heatmap":
            axes.set_ylabel("")
    if plot.title:
        figure.suptitle(plot.title)
    _legend(figure, places, plot, data)
    return figure


def _canvas(plot: Plot, panels: int) -> tuple[Figure, list[Axes]]:
    columns = min(panels, PER_ROW[plot.columns])
    rows = -(-panels // columns)
    width = WIDTHS[plot.columns]
    each = width / columns
    figure = Figure(figsize=(width, rows * max(1.5, min(0.72 * each, 2.7)) + 0.35), layout="constrained")
    FigureCanvasAgg(figure)
    share = plot.kind != "heatmap"
    places = figure.subplots(rows, columns, squeeze=False, sharey=share).ravel()
    for spare in places[panels:]:
        spare.remove()
    for axes in places[:panels]:
        dress(axes)
    return figure, list(places[:panels])


def _legend(figure: Figure, places: Sequence[Axes], plot: Plot, data: Drawn) -> None:
    """One legend above all panels, where there is something to tell apart."""
    found: dict[str, Any] = {}
    for axes in places:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    if not found:
        return
    widest = max(map(len, found)) + 6
    columns = max(1, min(len(found), int(WIDTHS[plot.columns] * 17 / widest)))
    title = data.axis(plot.by).title if plot.by and is_plain(found) else None
    figure.legend(list(found.values()), list(found), loc="outside upper center", ncols=columns, frameon=False,
                  title=title, title_fontsize=7, handlelength=2.2, columnspacing=1.2, borderaxespad=0.2)  # fmt: skip

