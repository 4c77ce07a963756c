"""Draws the ranking of a recommendation with 95 % intervals, and beside it what each of its changes is worth."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import fill
from typing import TYPE_CHECKING, Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gradwire.analysis.comparison.plots import COLOURS, GREY, PAPER_STYLE
from gradwire.studies.reproduce.plots.panels import finish_rows, panels_of, paper_figure

if TYPE_CHECKING:
    from gradwire.studies.recommend.outcome import Change, Recommendation

CHARACTERS = 44
"""Characters in a line of a row's name."""
LINE, GAP, AROUND = 0.13, 0.12, 0.65
"""Inches of a line of a name, between two rows, and above and below them."""


def ranking_figure(advice: Recommendation) -> Figure:
    """Return the plot: changes of the metric relative to the user's settings, the recommended ones filled."""
    rows = [(advice.name(setting), change, setting == advice.search.chosen) for setting, _, change in advice.shown]
    worths = [(f"without {text}", change, True) for text, change in advice.worths if change is not None]
    panels = [(rows, "your settings"), (worths, "the recommended settings")]
    panels = [panel for panel in panels if panel[0]]
    heights = [sum(LINE * len(_wrapped(name)) + GAP for name, _, _ in entries) for entries, _ in panels]
    with matplotlib.rc_context(PAPER_STYLE):
        figure = paper_figure(sum(heights) + AROUND * len(panels))
        grid = {"gridspec_kw": {"height_ratios": heights}}
        for axes, (entries, label) in zip(panels_of(figure, len(panels), 1, **grid), panels, strict=True):
            _draw(axes, entries)
            axes.set_xlabel(f"{advice.label}, relative to {label} (%)")
    return figure


def _wrapped(name: str) -> list[str]:
    return fill(name, CHARACTERS).splitlines()


def _draw(axes: Axes, entries: Sequence[tuple[str, Change, bool]]) -> None:
    at, ticks = 0.0, []
    for name, change, is_filled in entries:
        height = LINE * len(_wrapped(name)) + GAP
        ticks.append(at + height / 2)
        at += height
        half = 0.0 if change.high is None else 100 * (change.high - change.share)
        colour = COLOURS[0] if is_filled else GREY
        face = colour if is_filled else "white"
        style: Any = {"marker": "o", "markersize": 4.5, "capsize": 2.5, "linewidth": 1, "markerfacecolor": face}
        axes.errorbar(100 * change.share, ticks[-1], xerr=half, color=colour, **style)
    axes.axvline(0, color=GREY, linewidth=0.6)
    axes.set_yticks(ticks, ["\n".join(_wrapped(name)) for name, _, _ in entries])
    axes.set_ylim(at, 0)
    finish_rows(axes)
