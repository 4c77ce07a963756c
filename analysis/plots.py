"""Plots: three pictures of a comparison as PNG files.

    iteration_time.png     mean iteration time, split into compute and exposed communication, with every worker's
                           iteration as a dot
    completion_time.png    distribution of message completion times, one panel per kind of message
    packets_again.png      packets lost by cause and sent again, per 100 packets of data

Colours are those of Okabe and Ito, which remain distinct for colour-blind readers; a run keeps its colour in all
pictures. matplotlib is used without a display (Agg) and without pyplot's global state.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from analysis.figures import save_figure
from analysis.metrics import DROPS, Metrics, completion_times, durations, percentile
from analysis.tables import KIND_WORDS, headings
from scenarios.result import KINDS, Result

Run = tuple[Result, Metrics]

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#8C8C8C", "#000000")
STYLES = ("-", "--", "-.", ":")
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
MANY_POINTS = 2000
LEGEND_COLUMNS = 3


def draw_all(runs: Sequence[Run], directory: Path) -> list[Path]:
    """Draw what there is data for into `directory`. Returns the files."""
    drawn = []
    for name, draw in (
        ("iteration_time.png", iteration_time),
        ("completion_time.png", completion_time),
        ("packets_again.png", packets_again),
    ):
        figure = draw(runs)
        if figure is not None:
            save_figure(figure, directory / name)
            drawn.append(directory / name)
    return drawn


def iteration_time(runs: Sequence[Run]) -> Figure | None:
    """Bars: mean compute below, mean exposed communication above. Dots: single iterations of single workers, from
    left to right as they follow each other: the first waits for nothing at its start, the last for everything.
    """
    names = headings([metrics for _, metrics in runs])
    kept = [(n, run, names[n]) for n, run in enumerate(runs) if run[1].iteration.count]
    if not kept:
        return None
    figure, (axes,) = _figure(1, width=max(7.0, 1.6 + 1.9 * len(kept)), height=4.0)
    highest = 0.0
    for place, (number, (result, metrics), _) in enumerate(kept):
        colour = COLOURS[number % len(COLOURS)]
        mean, exposed = metrics.iteration.mean_ps / PS_PER_MS, metrics.exposed.mean_ps / PS_PER_MS
        compute = mean - exposed
        axes.bar(place, compute, 0.44, color=_pale(colour), linewidth=0)
        axes.bar(place, exposed, 0.44, bottom=compute, color=colour, linewidth=0)
        times = durations(result, metrics.job)[0] / PS_PER_MS
        order = _order(result, metrics.job)
        axes.plot(
            place + 0.27 + 0.24 * order, times, "o", markersize=4, color=colour, alpha=0.5, markeredgewidth=0
        )
        highest = max(highest, float(times.max()))
        if exposed > 0.1 * mean:
            axes.text(
                place, compute + exposed / 2, f"{exposed:.1f}", ha="center", va="center", color=_ink(colour)
            )
        if compute > 0.1 * mean:
            axes.text(place, compute / 2, f"{compute:.1f}", ha="center", va="center", color="#333333")
        axes.text(place, mean, f"{mean:.1f} ms", ha="center", va="bottom", fontweight="bold", color="#333333")
    axes.set_xticks(range(len(kept)), [fill(name, 22) for _, _, name in kept])
    axes.set_xlim(-0.4, len(kept) - 0.35)
    axes.set_ylim(0, highest * 1.06)
    axes.set_ylabel("iteration time (ms)")
    axes.set_title(
        "pale: computing, full colour: waiting for the network (means); dots: every worker's iterations, first to last",
        loc="left", fontsize=9,
    )  # fmt: skip
    axes.grid(axis="x", visible=False)
    return figure


def completion_time(runs: Sequence[Run]) -> Figure | None:
    """The share of messages delivered within a time, per kind; the time axis is logarithmic."""
    names = headings([metrics for _, metrics in runs])
    times = [completion_times(result, metrics.job) for result, metrics in runs]
    kinds = [kind for kind in KINDS if any(kind in found for found in times)]
    if not kinds:
        return None
    figure, panels = _figure(len(kinds), width=max(7.0, 4.6 * len(kinds)), height=4.0, sharey=True)
    for axes, kind in zip(panels, kinds, strict=True):
        for number, found in enumerate(times):
            if kind not in found:
                continue
            values = np.sort(found[kind])
            shares = np.arange(1, len(values) + 1) / len(values)
            kept = np.unique(np.linspace(0, len(values) - 1, MANY_POINTS).astype(np.int64))
            axes.step(
                values[kept] / PS_PER_MS, 100 * shares[kept], where="post", label=names[number],
                color=COLOURS[number % len(COLOURS)], linestyle=STYLES[number % len(STYLES)], linewidth=1.8,
            )  # fmt: skip
            late = percentile(found[kind], 0.99) / PS_PER_MS
            axes.plot([late], [99], "o", markersize=6, color=COLOURS[number % len(COLOURS)], clip_on=False)
        logarithmic(axes)
        axes.set_ylim(0, 101)
        axes.set_title(f"{KIND_WORDS[kind]} messages (dot: p99)", loc="left", fontsize=10)
        axes.set_xlabel("completion time (ms)")
    panels[0].set_ylabel("messages delivered (%)")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(3, len(labels)), frameon=False)
    return figure


def packets_again(runs: Sequence[Run]) -> Figure | None:
    """What losses cost: packets lost by cause, and packets sent again, per 100 packets of data."""
    names = headings([metrics for _, metrics in runs])
    kept = [(metrics, name) for (_, metrics), name in zip(runs, names, strict=True) if metrics.data_packets]
    if not kept or not any(max(m.dropped, 0) + m.retransmitted for m, _ in kept):
        return None
    shown = [
        cause
        for cause in CAUSE_WORDS
        if cause in ("drops_tail", "drops_selective", "retransmitted")
        or any(getattr(m, cause) > 0 for m, _ in kept)
    ]
    lines = -(-len(shown) // LEGEND_COLUMNS)
    figure, (axes,) = _figure(1, width=7.0, height=1.3 + 0.2 * lines + 0.62 * len(kept))
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
                          textcoords="offset points", va="center", fontsize=9, color=GREY)  # fmt: skip
    axes.set_yticks(range(len(kept)), [fill(name, 22) for _, name in kept])
    axes.invert_yaxis()
    axes.margins(x=0.08)
    axes.set_xlabel("packets per 100 packets of data")
    axes.grid(axis="y", visible=False)
    handles: list[Any] = [
        axes.barh(0, 0, color=CAUSE_COLOURS[cause], label=CAUSE_WORDS[cause]) for cause in shown
    ]
    figure.legend(
        handles=handles, loc="outside upper center", ncols=LEGEND_COLUMNS, fontsize=9, frameon=False
    )
    return figure


def _order(result: Result, job: str) -> Any:
    """Where each iteration of `durations` stands among those of its job, from 0 (first) to 1 (last)."""
    table = result.iterations
    number = table["iteration"].to_numpy()[np.asarray(table["job"].to_pylist()) == job]
    return number / max(int(number.max()), 1)


def _pale(colour: str) -> tuple[float, ...]:
    """Three parts of white to one of `colour`; opaque, so that the grid does not show through."""
    return tuple(0.3 * part + 0.7 for part in to_rgb(colour))


def _ink(colour: str) -> str:
    """Black or white, whichever can be read on `colour` (weights of ITU-R BT.601)."""
    red, green, blue = to_rgb(colour)
    return "#222222" if 0.299 * red + 0.587 * green + 0.114 * blue > 0.5 else "white"


def logarithmic(axes: Any) -> None:
    """A logarithmic x axis for what has been drawn, with plain numbers: 1, 2 and 5 of few decades, 1 of many."""
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    if high <= 100 * low:
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0), numticks=20))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.xaxis.set_minor_formatter(NullFormatter())


def _figure(panels: int, width: float, height: float, sharey: bool = False) -> tuple[Figure, list[Any]]:
    """A figure with `panels` axes side by side in the house style."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, panels, sharey=sharey, squeeze=False)[0]
    for each in axes:
        each.spines[["top", "right"]].set_visible(False)
        each.spines[["left", "bottom"]].set_color(GREY)
        each.tick_params(colors=GREY)
        each.grid(color="#E6E6E6", linewidth=0.8)
        each.set_axisbelow(True)
    return figure, list(axes)
