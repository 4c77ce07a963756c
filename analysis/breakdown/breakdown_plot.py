"""Figure of breakdowns: one bar per run and job, showing its mean steady-state iteration."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import fill
from typing import TYPE_CHECKING

import matplotlib
from matplotlib.patches import Patch

from gradwire.analysis.breakdown.breakdown import PART_LABELS, PARTS
from gradwire.analysis.comparison.plots import LEGEND_COLUMNS, PAPER_STYLE, PS_PER_MS, house_figure
from gradwire.scenarios.readable import three_digits

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = {
    "computing": "#D9D9D9",
    "straggler": "#8C8C8C",
    "server": "#595959",
    "scheduler": "#CC79A7",
    "sharing": "#56B4E9",
    "serialisation": "#0072B2",
    "queueing": "#E69F00",
    "retransmission": "#D55E00",
    "timeouts": "#000000",
}


@matplotlib.rc_context(PAPER_STYLE)
def breakdown_figure(names: Sequence[str], means: Sequence[dict[str, float]]) -> Figure | None:
    """Plot the means of every run and job (see `Breakdown.means`); None if all are empty."""
    bars = [(name, mean) for name, mean in zip(names, means, strict=True) if mean]
    if not bars:
        return None
    shown = [part for part in PARTS if any(mean[part] for _, mean in bars)]
    rows = -(-len(shown) // LEGEND_COLUMNS)
    figure, (axes,) = house_figure(1, height=0.8 + 0.2 * rows + 0.42 * len(bars))
    for row, (_, mean) in enumerate(bars):
        left = 0.0
        for part in shown:
            wide = mean[part] / PS_PER_MS
            axes.barh(row, wide, 0.6, left=left, color=COLOURS[part], linewidth=0)
            left += wide
        axes.annotate(
            f"{three_digits(left)} ms",
            (left, row),
            (4, 0),
            textcoords="offset points",
            va="center",
            fontweight="bold",
            color="#333333",
        )
    axes.set_yticks(range(len(bars)), [fill(name, 24) for name, _ in bars])
    axes.set_ylim(len(bars) - 0.5, -0.5)
    axes.set_xlim(0, axes.dataLim.x1 * 1.12)
    axes.set_xlabel("mean iteration time (ms)")
    axes.grid(axis="y", visible=False)
    handles = [Patch(color=COLOURS[part], label=PART_LABELS[part]) for part in shown]
    figure.legend(handles=handles, loc="outside lower center", ncols=LEGEND_COLUMNS, frameon=False)
    return figure
