"""Functions create the empty figures and panels of claims, in a page's width, with grid lines and spines."""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from gradwire.analysis.comparison.plots import GREY, WIDTH


def paper_figure(height: float, share: float = 1.0) -> Figure:
    """Return a figure of a height in inches, as wide as a share of a page."""
    figure = Figure(figsize=(WIDTH * share, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def panels_of(figure: Figure, count: int, columns: int, **options: Any) -> list[Axes]:
    """Return `count` panels in rows; those that would fill the last row are hidden."""
    panels = figure.subplots(-(-count // columns), columns, squeeze=False, **options).flatten()
    for panel in panels[count:]:
        panel.set_visible(False)
    return list(panels[:count])


def annotate(
    panel: Axes, words: str, at: tuple[float, float], coordinates: Any, shift: tuple[int, int], ha: str
) -> None:
    """Write small grey words beside a place of a panel."""
    where: Any = {"xycoords": coordinates, "xytext": shift, "textcoords": "offset points", "ha": ha}
    panel.annotate(words, at, fontsize=6.5, color=GREY, **where)


def finish_rows(panel: Axes) -> None:
    """Draw the lines of a panel whose rows are policies."""
    panel.grid(axis="x", color="#DDDDDD", linewidth=0.5)
    panel.set_axisbelow(True)
    panel.spines[["top", "right"]].set_visible(False)
