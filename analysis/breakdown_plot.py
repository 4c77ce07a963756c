"""The picture of breakdowns: a bar per run and job, what its mean iteration of the steady state was spent on."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import fill
from typing import TYPE_CHECKING

import matplotlib
from matplotlib.patches import Patch

from gradwire.analysis.breakdown import PARTS, WORDS
from gradwire.analysis.plots import LEGEND_COLUMNS, PAPER, PS_PER_MS, house_figure
from gradwire.scenarios.readable import three_digits

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = {
    "computing": "#D9D9D9", "straggler": "#8C8C8C", "server": "#595959", "scheduler": "#CC79A7", "sharing": "#56B4E9",
    "serialisation": "#0072B2", "queueing": "#E69F00", "retransmission": "#D55E00", "timeouts": "#000000",
}  # fmt: skip


@matplotlib.rc_context(PAPER)
def breakdown_figure(names: Sequence[str], means: Sequence[dict[str, float]]) -> Figure | None:
    """`means` : of every run and job, see `gradwire.analysis.breakdown.Breakdown.means`. None without any."""
    kept = [(name, each) for name, each in zip(names, means, strict=True) if each]
    if not kept:
        return None
    shown = [part for part in PARTS if any(each[part] for _, each in kept)]
    rows = -(-len(shown) // LEGEND_COLUMNS)
    figure, (axes,) = house_figure(1, height=0.8 + 0.2 * rows + 0.42 * len(kept))
    for place, (_, each) in enumerate(kept):
        left = 0.0
        for part in shown:
            wide = each[part] / PS_PER_MS
            axes.barh(place, wide, 0.6, left=left, color=COLOURS[part], linewidth=0)
            left += wide
        axes.annotate(f"{three_digits(left)} ms", (left, place), (4, 0), textcoords="offset points", va="center",
                      fontweight="bold", color="#333333")  # fmt: skip
    axes.set_yticks(range(len(kept)), [fill(name, 24) for name, _ in kept])
    axes.set_ylim(len(kept) - 0.5, -0.5)
    axes.set_xlim(0, axes.dataLim.x1 * 1.12)
    axes.set_xlabel("mean iteration time (ms)")
    axes.grid(axis="y", visible=False)
    handles = [Patch(color=COLOURS[part], label=WORDS[part]) for part in shown]
    figure.legend(handles=handles, loc="outside lower center", ncols=LEGEND_COLUMNS, frameon=False)
    return figure
