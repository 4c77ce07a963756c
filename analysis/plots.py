"""Plots: three pictures of a comparison, as PNG, PDF or SVG files.

    iteration_time     mean iteration time of the steady state, split into compute and exposed communication, with
                       every worker's iteration as a dot
    completion_time    share of messages that took so long or longer, a panel per kind of message; p99 where there is
                       one
    packets_again      packets lost by cause and sent again, per 100 packets of data, of everything in a run together

They are as wide as two columns of a paper (7.16 in) with letters of 8 pt, so that they need no scaling there. Colours
are those of Okabe and Ito, which remain distinct for colour-blind readers; a run keeps colour and line in all pictures.
matplotlib is used without a display (Agg) and without pyplot's global state.
"""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import fill
from typing import TYPE_CHECKING, Any

import matplotlib
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import LogLocator, NullFormatter

from gradwire.analysis.measured import completion_times, durations, steady_state
from gradwire.analysis.metrics import DROPS, Metrics
from gradwire.analysis.tables import KIND_WORDS, headings, whole_networks
from gradwire.analysis.tail import later
from gradwire.scenarios.json_data import Json
from gradwire.scenarios.readable import three_digits
from gradwire.scenarios.result import KINDS, Result

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

Run = tuple[Result, Metrics]

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#8C8C8C", "#000000")
STYLES: tuple[object, ...] = (
    "-", "--", "-.", ":", (0, (7, 2)), (0, (1, 2.5)), (0, (5, 1, 1, 1, 1, 1)),
)  # fmt: skip
"""As many as have no divisor in common with the colours, so that 56 curves differ."""
WIDTH = 7.16
"""Inches: the text of a page in two columns."""
PAPER: Any = {"font.size": 8, "axes.titlesize": 8, "axes.labelsize": 8, "legend.fontsize": 7.5, "xtick.labelsize": 7.5,
         "ytick.labelsize": 7.5}  # fmt: skip
GREY = "#595959"
CAUSE_COLOURS = {
    "drops_tail": "#D55E00",
    "drops_selective": "#56B4E9",
    "drops_loss": "#CC79A7",
    "drops_evicted": "#E69F00",
    "drops_down": "#000000",
    "drops_no_route": "#0072B2",
    "retransmitted": "#BFBFBF",
}
CAUSE_WORDS = {
    "drops_tail": "dropped: buffer full",
    "drops_selective": "dropped: droppable, above K",
    "drops_loss": "lost on a link",
    "drops_evicted": "dropped: pushed out",
    "drops_down": "lost on a cut link",
    "drops_no_route": "dropped: no route",
    "retransmitted": "sent again",
}
PS_PER_MS = 1e9
LEGEND_COLUMNS = 3
PANELS = 2
"""Panels beside each other."""


def figures(results: Sequence[Result], metrics: Sequence[Sequence[Metrics]]) -> dict[str, Figure]:
    """Every picture that there is data for, by its name."""
    runs = [(result, entry) for result, own in zip(results, metrics, strict=True) for entry in own]
    found = {
        "iteration_time": iteration_time(runs),
        "completion_time": completion_time(runs),
        "packets_again": packets_again(whole_networks(metrics)),
    }
    return {name: figure for name, figure in found.items() if figure is not None}


def look(number: int) -> Json:
    """Colour and line of a run's curves, by its place; alike only every 56 places."""
    return {"color": COLOURS[number % len(COLOURS)], "linestyle": STYLES[number % len(STYLES)]}


@matplotlib.rc_context(PAPER)
def iteration_time(runs: Sequence[Run]) -> Figure | None:
    """Bars: mean compute, then mean exposed communication, in the steady state. Dots: single iterations of single
    workers, from top to bottom as they follow each other; hollow ones are not in the means.
    """
    names = headings([metrics for _, metrics in runs])
    kept = [(n, run, names[n]) for n, run in enumerate(runs) if run[1].iteration.count]
    if not kept:
        return None
    figure, (axes,) = house_figure(1, height=1.1 + 0.62 * len(kept))
    for place, (number, (result, metrics), _) in enumerate(kept):
        colour = COLOURS[number % len(COLOURS)]
        mean, exposed = metrics.iteration.mean_ps / PS_PER_MS, metrics.exposed.mean_ps / PS_PER_MS
        compute = mean - exposed
        axes.barh(place - 0.18, compute, 0.36, color=_pale(colour), linewidth=0)
        axes.barh(place - 0.18, exposed, 0.36, left=compute, color=colour, linewidth=0)
        _iteration_dots(axes, place, result, metrics.job, colour)
        longest = axes.dataLim.x1
        for left, wide, ink in ((0.0, compute, "#333333"), (compute, exposed, _ink(colour))):
            if wide > 0.1 * longest:
                axes.text(left + wide / 2, place - 0.18, three_digits(wide), ha="center", va="center", color=ink)
        axes.annotate(f"{three_digits(mean)} ms", (mean, place - 0.18), (4, 0), textcoords="offset points", va="center",
                      fontweight="bold", color="#333333")  # fmt: skip
    axes.set_yticks(range(len(kept)), [fill(name, 24) for _, _, name in kept])
    axes.set_ylim(len(kept) - 0.5, -0.5)
    axes.set_xlim(0, axes.dataLim.x1 * 1.12)
    axes.set_xlabel("iteration time (ms)")
    axes.grid(axis="y", visible=False)
    figure.legend(handles=_iteration_legend([metrics for _, (_, metrics), _ in kept]), loc="outside lower center",
                  ncols=2, frameon=False)  # fmt: skip
    return figure


def _iteration_dots(axes: Axes, place: int, result: Result, job: str, colour: str) -> None:
    numbers, times, _ = durations(result, job)
    _, chosen = steady_state(numbers)
    heights = place + 0.1 + 0.28 * numbers / max(int(numbers.max()), 1)
    for those, face in ((chosen, colour), (~chosen, "none")):
        axes.plot(times[those] / PS_PER_MS, heights[those], "o", markersize=3.5, markerfacecolor=face,
                  markeredgecolor=colour, markeredgewidth=0.7, alpha=0.6)  # fmt: skip


def _iteration_legend(kept: Sequence[Metrics]) -> list[Artist]:
    dot: Json = {"linestyle": "none", "marker": "o", "markersize": 3.5, "markeredgecolor": GREY}
    steady = any(metrics.steady.is_steady for metrics in kept)
    handles: list[Artist] = [
        Patch(color=_pale(GREY), label="computing (mean)"),
        Patch(color=GREY, label="waiting for the network (mean)"),
        Line2D([], [], markerfacecolor=GREY, label="iterations of single workers, first on top", **dot),
    ]
    hollow = Line2D([], [], markerfacecolor="none", label="first and last iteration, not in the means", **dot)
    return [*handles, hollow] if steady else handles


@matplotlib.rc_context(PAPER)
def completion_time(runs: Sequence[Run]) -> Figure | None:
    """The share of messages that took a time or longer, per kind, on logarithmic axes: what is late can be seen."""
    names = headings([metrics for _, metrics in runs])
    times = [completion_times(result, metrics.job) for result, metrics in runs]
    kinds = [kind for kind in KINDS if any(kind in found for found in times)]
    if not kinds:
        return None
    rows = -(-len(kinds) // PANELS)
    figure, panels = house_figure(len(kinds), height=2.7 * rows + 0.17 * len(runs) / 2, sharey=True)
    curves: Json = {}
    for axes, kind in zip(panels, kinds, strict=True):
        supported = False
        for number, ((_, metrics), found) in enumerate(zip(runs, times, strict=True)):
            if kind not in found:
                continue
            values, shares = later(found[kind])
            (line,) = axes.step(values / PS_PER_MS, shares, where="pre", linewidth=1.4, **look(number))
            curves.setdefault(names[number], line)
            late = metrics.completion[kind].p99_ps
            if late is not None:
                supported = True
                share = 100 * float(np.mean(found[kind] >= late))
                axes.plot([late / PS_PER_MS], [share], "o", markersize=5, color=line.get_color())
        logarithmic(axes)
        axes.set_yscale("log")
        axes.set_ylim(top=130)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.yaxis.set_minor_formatter(NullFormatter())
        if supported:
            axes.axhline(1, color=GREY, linewidth=0.8, linestyle=(0, (2, 2)), zorder=1)
        axes.set_title(f"{KIND_WORDS[kind]} messages" + (" (dot: p99)" if supported else ""), loc="left")
        axes.set_xlabel("completion time (ms)")
    for axes in panels[::PANELS]:
        axes.set_ylabel("took so long or longer (%)")
    figure.legend(
        list(curves.values()), list(curves), loc="outside lower center", ncols=_columns(list(curves)), frameon=False
    )
    return figure


@matplotlib.rc_context(PAPER)
def packets_again(networks: Sequence[Metrics]) -> Figure | None:
    """What losses cost: packets lost by cause, and packets sent again, per 100 packets of data. One bar per run, since
    ports do not know whose packets they drop: `networks` are those of `whole_networks`."""
    names = headings(networks)
    kept = [(metrics, name) for metrics, name in zip(networks, names, strict=True) if metrics.data_packets]
    if not kept or not any(max(m.dropped, 0) + m.retransmitted for m, _ in kept):
        return None
    shown = [
        cause
        for cause in CAUSE_WORDS
        if cause in ("drops_tail", "drops_selective", "retransmitted")
        or any(getattr(m, cause) > 0 for m, _ in kept)
    ]
    lines = -(-len(shown) // LEGEND_COLUMNS)
    figure, (axes,) = house_figure(1, height=0.8 + 0.2 * lines + 0.5 * len(kept))
    for place, (metrics, _) in enumerate(kept):
        scale = 100 / metrics.data_packets
        left = 0.0
        for cause in DROPS:
            wide = max(getattr(metrics, cause), 0) * scale
            axes.barh(place - 0.17, wide, 0.3, left=left, color=CAUSE_COLOURS[cause], linewidth=0)
            left += wide
        again = metrics.retransmitted * scale
        axes.barh(place + 0.17, again, 0.3, color=CAUSE_COLOURS["retransmitted"], linewidth=0)
        for value, height in ((left, place - 0.17), (again, place + 0.17)):
            axes.annotate(f"{value:.2g}" if value < 10 else f"{value:.0f}", (value, height), (4, 0),
                          textcoords="offset points", va="center", color=GREY)  # fmt: skip
    axes.set_yticks(range(len(kept)), [fill(name, 24) for _, name in kept])
    axes.invert_yaxis()
    axes.set_xlim(0, 1.08 * axes.dataLim.x1)  # room for the number beside the longest bar
    axes.set_xlabel("packets per 100 packets of data")
    axes.grid(axis="y", visible=False)
    handles = [
        axes.barh(0, 0, color=CAUSE_COLOURS[cause], label=CAUSE_WORDS[cause]) for cause in shown
    ]
    figure.legend(handles=handles, loc="outside upper center", ncols=LEGEND_COLUMNS, frameon=False)
    return figure


def _pale(colour: str) -> tuple[float, float, float]:
    """Three parts of white to one of `colour`; opaque, so that the grid does not show through."""
    red, green, blue = (0.3 * part + 0.7 for part in to_rgb(colour))
    return red, green, blue


def _ink(colour: str) -> str:
    """Black or white, whichever can be read on `colour` (weights of ITU-R BT.601)."""
    red, green, blue = to_rgb(colour)
    return "#222222" if 0.299 * red + 0.587 * green + 0.114 * blue > 0.5 else "white"


def logarithmic(axes: Axes) -> None:
    """A logarithmic x axis for what has been drawn, with plain numbers: 1, 2 and 5 of few decades, 1 of many."""
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    if high <= 100 * low:
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0), numticks=20))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.xaxis.set_minor_formatter(NullFormatter())


def _columns(names: Sequence[str]) -> int:
    """As many columns of a legend as fit the width."""
    widest = max(map(len, names), default=1)
    return max(1, min(LEGEND_COLUMNS, len(names), 120 // (widest + 10)))


def house_figure(panels: int, height: float, sharey: bool = False) -> tuple[Figure, list[Axes]]:
    """A figure with axes for `panels`, `PANELS` beside each other, in the house style."""
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    FigureCanvasAgg(figure)
    columns = min(panels, PANELS)
    axes = figure.subplots(-(-panels // columns), columns, sharey=sharey, squeeze=False).ravel()
    for spare in axes[panels:]:
        spare.remove()
    for each in axes[:panels]:
        dress(each)
    return figure, list(axes[:panels])


def dress(axes: Axes) -> None:
    """Axes in the house style: a pale grid behind, grey lines left and below."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(GREY)
    axes.tick_params(colors=GREY)
    axes.grid(color="#E6E6E6", linewidth=0.8)
    axes.set_axisbelow(True)
