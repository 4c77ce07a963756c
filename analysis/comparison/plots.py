"""Draws the figures of a comparison and defines the house style of all figures.

    iteration_time     mean iteration time of the steady state, split into compute and exposed communication, with
                       every worker's iteration as a dot
    completion_time    share of messages slower than a time, a panel per kind of message; p99 if there is one
    packets_again      packets lost by cause and retransmissions, per 100 data packets, of everything in a run together

They are as wide as two columns of a paper (7.16 in) with letters of 8 pt, so they need no scaling there. Colours
and lines are those of pages (`gradwire.analysis.palette`); a run has the same in all figures.
matplotlib is used without a display (Agg) and without pyplot's global state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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

from gradwire.analysis.breakdown.breakdown import PART_LABELS, PARTS
from gradwire.analysis.comparison.tables import KIND_LABELS, headings, whole_networks
from gradwire.analysis.measurement_window import completion_times, durations, steady_state
from gradwire.analysis.metrics import DROPS, Metrics, tail
from gradwire.analysis.palette import CAUSE_COLOURS, COLOURS, DASHES, LIGHT, PART_COLOURS, colour_and_dash
from gradwire.result_store.result import Result
from gradwire.result_store.table_schema import KINDS
from gradwire.scenarios.json_data import Json
from gradwire.scenarios.readable import three_digits

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

Run = tuple[Result, Metrics]

STYLES: tuple[object, ...] = tuple((0, tuple(length / 2 for length in dash)) if dash else "-" for dash in DASHES)
"""`DASHES` in widths of a line."""
WIDTH = 7.16
"""Inches: the text width of a page in two columns."""
PAPER_STYLE: Any = {
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "legend.fontsize": 7.5,
    "xtick.labelsize": 7.5,
    "ytick.labelsize": 7.5,
}
GREY = LIGHT["dim"]
CAUSE_LABELS: Mapping[str, str] = {
    "drops_tail": "dropped: buffer full",
    "drops_selective": "dropped: droppable, above K",
    "drops_loss": "lost on a link",
    "drops_evicted": "dropped: evicted",
    "drops_down": "lost on a cut link",
    "drops_no_route": "dropped: no route",
    "retransmitted": "retransmissions",
}
"""Labels of lost packets by cause, and of retransmissions."""
PS_PER_MS = 1e9
LEGEND_COLUMNS = 3
PANELS_PER_ROW = 2
"""Panels in a row."""


def figures(results: Sequence[Result], metrics: Sequence[Sequence[Metrics]]) -> dict[str, Figure]:
    """Return every figure with data, by name."""
    runs = [(result, entry) for result, entries in zip(results, metrics, strict=True) for entry in entries]
    drawn = {
        "iteration_time": iteration_time(runs),
        "completion_time": completion_time(runs),
        "packets_again": retransmissions(whole_networks(metrics)),
    }
    return {name: figure for name, figure in drawn.items() if figure is not None}


def line_style(number: int, dash: int = -1) -> Json:
    """Return colour and line of a run's curves, by its index; they repeat every 56 runs. `dash` : another line."""
    return {"color": COLOURS[number % len(COLOURS)], "linestyle": STYLES[(number if dash < 0 else dash) % len(STYLES)]}


@matplotlib.rc_context(PAPER_STYLE)
def iteration_time(runs: Sequence[Run]) -> Figure | None:
    """Bars: mean compute, then mean exposed communication, in the steady state. Dots: iterations of single workers,
    first on top; hollow ones are not in the means."""
    names = headings([metrics for _, metrics in runs])
    shown = [(colour_and_dash(runs, n)[0], run, names[n]) for n, run in enumerate(runs) if run[1].iteration.count]
    if not shown:
        return None
    figure, (axes,) = house_figure(1, height=1.1 + 0.62 * len(shown))
    for row, (number, (result, metrics), _) in enumerate(shown):
        colour = COLOURS[number % len(COLOURS)]
        mean, exposed = metrics.iteration.mean_ps / PS_PER_MS, metrics.exposed.mean_ps / PS_PER_MS
        compute = mean - exposed
        axes.barh(row - 0.18, compute, 0.36, color=_pale(colour), linewidth=0)
        axes.barh(row - 0.18, exposed, 0.36, left=compute, color=colour, linewidth=0)
        _iteration_dots(axes, row, result, metrics.job, colour)
        longest = axes.dataLim.x1
        for left, wide, ink in ((0.0, compute, "#333333"), (compute, exposed, _ink(colour))):
            if wide > 0.1 * longest:
                axes.text(left + wide / 2, row - 0.18, three_digits(wide), ha="center", va="center", color=ink)
        write_beside(axes, f"{three_digits(mean)} ms", mean, row - 0.18, fontweight="bold", color="#333333")
    _name_bars(axes, [name for _, _, name in shown], "iteration time (ms)", 1.12)
    handles = _iteration_legend([metrics for _, (_, metrics), _ in shown])
    figure.legend(handles=handles, loc="outside lower center", ncols=2, frameon=False)
    return figure


def write_beside(axes: Axes, text: str, x: float, y: float, **style: Any) -> None:
    """Write a text to the right of a bar that ends at (x, y)."""
    axes.annotate(text, (x, y), (4, 0), textcoords="offset points", va="center", **style)


def _name_bars(axes: Axes, names: Sequence[str], label: str, wide: float) -> None:
    """Name horizontal bars, the first on top, and leave space for texts beside them: `wide` times the longest bar."""
    axes.set_yticks(range(len(names)), [fill(name, 24) for name in names])
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_xlim(0, axes.dataLim.x1 * wide)
    axes.set_xlabel(label)
    axes.grid(axis="y", visible=False)


def _iteration_dots(axes: Axes, row: int, result: Result, job: str, colour: str) -> None:
    numbers, times, _ = durations(result, job)
    _, chosen = steady_state(numbers)
    heights = row + 0.1 + 0.28 * numbers / max(int(numbers.max()), 1)
    for mask, face in ((chosen, colour), (~chosen, "none")):
        look: Json = {"markerfacecolor": face, "markeredgecolor": colour, "markeredgewidth": 0.7, "alpha": 0.6}
        axes.plot(times[mask] / PS_PER_MS, heights[mask], "o", markersize=3.5, **look)


def _iteration_legend(shown: Sequence[Metrics]) -> list[Artist]:
    dot: Json = {"linestyle": "none", "marker": "o", "markersize": 3.5, "markeredgecolor": GREY}
    steady = any(metrics.steady.is_steady for metrics in shown)
    handles: list[Artist] = [
        Patch(color=_pale(GREY), label="computing (mean)"),
        Patch(color=GREY, label="waiting for the network (mean)"),
        Line2D([], [], markerfacecolor=GREY, label="iterations of single workers, first on top", **dot),
    ]
    hollow = Line2D([], [], markerfacecolor="none", label="first and last iteration, not in the means", **dot)
    return [*handles, hollow] if steady else handles


@matplotlib.rc_context(PAPER_STYLE)
def completion_time(runs: Sequence[Run]) -> Figure | None:
    """Tail of completion times per kind: share of messages that took a time or longer, on logarithmic axes."""
    names = headings([metrics for _, metrics in runs])
    times = [completion_times(result, metrics.job) for result, metrics in runs]
    kinds = [kind for kind in KINDS if any(kind in times_by_kind for times_by_kind in times)]
    if not kinds:
        return None
    rows = -(-len(kinds) // PANELS_PER_ROW)
    figure, panels = house_figure(len(kinds), height=2.7 * rows + 0.17 * len(runs) / 2, sharey=True)
    curves: Json = {}
    for axes, kind in zip(panels, kinds, strict=True):
        supported = False
        for number, ((_, metrics), times_by_kind) in enumerate(zip(runs, times, strict=True)):
            if kind not in times_by_kind:
                continue
            values, shares = tail(times_by_kind[kind])
            (line,) = axes.step(
                values / PS_PER_MS, shares, where="pre", linewidth=1.4, **line_style(*colour_and_dash(runs, number))
            )
            curves.setdefault(names[number], line)
            late = metrics.completion[kind].p99_ps
            if late is not None:
                supported = True
                share = 100 * float(np.mean(times_by_kind[kind] >= late))
                axes.plot([late / PS_PER_MS], [share], "o", markersize=5, color=line.get_color())
        logarithmic(axes)
        axes.set_yscale("log")
        axes.set_ylim(top=130)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.yaxis.set_minor_formatter(NullFormatter())
        if supported:
            axes.axhline(1, color=GREY, linewidth=0.8, linestyle=(0, (2, 2)), zorder=1)
        axes.set_title(f"{KIND_LABELS[kind]} messages" + (" (dot: p99)" if supported else ""), loc="left")
        axes.set_xlabel("completion time (ms)")
    for axes in panels[::PANELS_PER_ROW]:
        axes.set_ylabel("messages slower than x (%)")
    widest = max(map(len, curves))
    columns = max(1, min(LEGEND_COLUMNS, len(curves), 120 // (widest + 10)))  # that fit the width
    figure.legend(list(curves.values()), list(curves), loc="outside lower center", ncols=columns, frameon=False)
    return figure


@matplotlib.rc_context(PAPER_STYLE)
def retransmissions(networks: Sequence[Metrics]) -> Figure | None:
    """Costs of losses: packets lost by cause, and retransmissions, per 100 data packets. One bar per run, since ports
    do not count by job: `networks` are from `whole_networks`."""
    names = headings(networks)
    shown_runs = [(metrics, name) for metrics, name in zip(networks, names, strict=True) if metrics.data_packets]
    if not any(max(m.dropped, 0) + m.retransmitted for m, _ in shown_runs):
        return None
    causes = [
        cause
        for cause in CAUSE_LABELS
        if cause in ("drops_tail", "drops_selective", "retransmitted")
        or any(getattr(m, cause) > 0 for m, _ in shown_runs)
    ]
    lines = -(-len(causes) // LEGEND_COLUMNS)
    figure, (axes,) = house_figure(1, height=0.8 + 0.2 * lines + 0.5 * len(shown_runs))
    for row, (metrics, _) in enumerate(shown_runs):
        scale = 100 / metrics.data_packets
        left = 0.0
        for cause in DROPS:
            wide = max(getattr(metrics, cause), 0) * scale
            axes.barh(row - 0.17, wide, 0.3, left=left, color=LIGHT[CAUSE_COLOURS[cause]], linewidth=0)
            left += wide
        retransmitted = metrics.retransmitted * scale
        axes.barh(row + 0.17, retransmitted, 0.3, color=LIGHT[CAUSE_COLOURS["retransmitted"]], linewidth=0)
        for value, height in ((left, row - 0.17), (retransmitted, row + 0.17)):
            text = f"{value:.2g}" if value < 10 else f"{value:.0f}"
            write_beside(axes, text, value, height, color=GREY)
    axes.set_yticks(range(len(shown_runs)), [fill(name, 24) for _, name in shown_runs])
    axes.invert_yaxis()
    axes.set_xlim(0, 1.08 * axes.dataLim.x1)  # leaves space for the number beside the longest bar
    axes.set_xlabel("packets per 100 data packets")
    axes.grid(axis="y", visible=False)
    handles = [axes.barh(0, 0, color=LIGHT[CAUSE_COLOURS[cause]], label=CAUSE_LABELS[cause]) for cause in causes]
    figure.legend(handles=handles, loc="outside upper center", ncols=LEGEND_COLUMNS, frameon=False)
    return figure


@matplotlib.rc_context(PAPER_STYLE)
def breakdown_figure(names: Sequence[str], means: Sequence[dict[str, float]]) -> Figure | None:
    """Plot the means of every run and job (see `Breakdown.means`); None if all are empty."""
    bars = [(name, mean) for name, mean in zip(names, means, strict=True) if mean]
    if not bars:
        return None
    shown = [part for part in PARTS if any(mean[part] for _, mean in bars)]
    waits = [part for part in shown if part != "computing"]
    panels = [(shown, "mean iteration time (ms)"), *([(waits, "exposed waits alone (ms)")] if waits else [])]
    rows = -(-len(shown) // LEGEND_COLUMNS)
    figure, drawn = house_figure(len(panels), height=0.8 + 0.2 * rows + 0.42 * len(bars))
    for axes, (parts, label) in zip(drawn, panels, strict=True):
        for row, (_, mean) in enumerate(bars):
            left = 0.0
            for part in parts:
                wide = mean[part] / PS_PER_MS
                axes.barh(row, wide, 0.6, left=left, color=LIGHT[PART_COLOURS[part]], linewidth=0)
                left += wide
            write_beside(axes, f"{three_digits(left)} ms", left, row, fontweight="bold", color="#333333")
        _name_bars(axes, [name for name, _ in bars], label, 1.24)
    for axes in drawn[1:]:
        axes.tick_params(labelleft=False)
    handles = [Patch(color=LIGHT[PART_COLOURS[part]], label=PART_LABELS[part]) for part in shown]
    figure.legend(handles=handles, loc="outside lower center", ncols=LEGEND_COLUMNS, frameon=False)
    return figure


def _pale(colour: str) -> tuple[float, float, float]:
    """Mix three parts of white with one of `colour`; opaque, so that the grid does not show through."""
    red, green, blue = (0.3 * part + 0.7 for part in to_rgb(colour))
    return red, green, blue


def _ink(colour: str) -> str:
    """Return black or white, whichever is readable on `colour` (weights of ITU-R BT.601)."""
    red, green, blue = to_rgb(colour)
    return "#222222" if 0.299 * red + 0.587 * green + 0.114 * blue > 0.5 else "white"


def logarithmic(axes: Axes) -> None:
    """Make the x axis logarithmic with plain numbers: 1, 2 and 5 of few decades, 1 of many."""
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    if high <= 100 * low:
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0), numticks=20))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.xaxis.set_minor_formatter(NullFormatter())


def house_figure(panels: int, height: float, sharey: bool = False) -> tuple[Figure, list[Axes]]:
    """Return a figure with axes for `panels`, `PANELS_PER_ROW` in a row, in the house style."""
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    FigureCanvasAgg(figure)
    columns = min(panels, PANELS_PER_ROW)
    axes = figure.subplots(-(-panels // columns), columns, sharey=sharey, squeeze=False).ravel()
    for spare in axes[panels:]:
        spare.remove()
    for panel in axes[:panels]:
        apply_house_style(panel)
    return figure, list(axes[:panels])


def apply_house_style(axes: Axes) -> None:
    """Apply the house style to axes: a pale grid behind, grey lines left and below."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(GREY)
    axes.tick_params(colors=GREY)
    axes.grid(color="#E6E6E6", linewidth=0.8)
    axes.set_axisbelow(True)
