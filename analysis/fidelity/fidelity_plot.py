"""Draws the figure of `gradwire fidelity` (completion times, iterations, drops and marks of both runs) into a PNG file.

The simulated run is blue and solid, the emulated one orange and dashed.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from gradwire.analysis.comparison.plots import (
    CAUSE_LABELS,
    GREY,
    PS_PER_MS,
    apply_house_style,
    logarithmic,
    write_beside,
)
from gradwire.analysis.comparison.pooled_runs import ITERATION_OFFSET, pooled_run_count
from gradwire.analysis.comparison.tables import KIND_LABELS
from gradwire.analysis.fidelity.fidelity import Agreement
from gradwire.analysis.fidelity.fidelity_ports import ALWAYS_SHOWN
from gradwire.analysis.figure_files import save_figure
from gradwire.analysis.measurement_window import completion_times
from gradwire.analysis.metrics import DROPS, MANY_POINTS, measure
from gradwire.analysis.palette import COLOURS
from gradwire.result_store.arrow import to_numpy
from gradwire.result_store.result import Result
from gradwire.result_store.table_schema import KINDS
from gradwire.scenarios.arrays import Ints
from gradwire.scenarios.json_data import Json

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.typing import LineStyleType

RUNS: tuple[tuple[str, str, LineStyleType, float], ...] = (
    ("simulated", COLOURS[0], "-", 2.6),
    ("emulated", COLOURS[1], "--", 1.6),
)
PANELS_PER_ROW = 3


def draw_fidelity(agreement: Agreement, sim: Result, emu: Result, path: str | Path) -> None:
    """Draw all panels with data into a PNG file."""
    runs = (sim, emu)
    panels: list[partial[None]] = []
    jobs = [metrics.job for metrics in measure(sim)]
    for job in jobs:
        times = [completion_times(run, job) for run in runs]
        for kind in KINDS:
            if all(kind in times_by_kind for times_by_kind in times):
                values = [times_by_kind[kind] for times_by_kind in times]
                title = job if kind == "flow" else f"{job}: {KIND_LABELS[kind]} messages"
                panels.append(partial(_completion, values=values, title=title))
        if all(job in run.iterations["job"].to_pylist() for run in runs):
            panels.append(partial(_iterations, runs=runs, job=job))
    panels.append(partial(_packets, agreement=agreement))
    columns = min(PANELS_PER_ROW, len(panels))
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(max(5.2, 4.2 * columns), 0.5 + 3.2 * rows), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(rows, columns, squeeze=False)
    for axes, draw in zip(grid.flat, panels, strict=False):
        apply_house_style(axes)
        draw(axes)
    for axes in list(grid.flat)[len(panels) :]:
        axes.set_visible(False)
    handles = [Line2D([], [], color=c, linestyle=style, linewidth=2, label=name) for name, c, style, _ in RUNS]
    verdict = (
        "agrees"
        if agreement.is_within
        else "invalid: the testbed was disturbed"
        if agreement.invalid
        else "does not agree"
    )
    figure.suptitle(f"{agreement.name}: {verdict}", fontsize=11)
    figure.legend(handles=handles, loc="outside lower center", ncols=2, frameon=False)
    save_figure(figure, path)


def _completion(axes: Axes, values: Sequence[Ints], title: str) -> None:
    """Plot the share of messages delivered within a time; on a logarithmic axis if they span a factor over 20."""
    for duration, (_, colour, style, width) in zip(values, RUNS, strict=True):
        ordered = np.sort(duration)
        shares = np.arange(1, len(ordered) + 1) / len(ordered)
        chosen = np.unique(np.linspace(0, len(ordered) - 1, MANY_POINTS).astype(np.int64))
        times, delivered = np.append(ordered[:1], ordered[chosen]), np.append(0.0, shares[chosen])
        axes.step(times / PS_PER_MS, 100 * delivered, where="post", color=colour, linestyle=style, linewidth=width)
    low, high = (figure(list(map(figure, values))) for figure in (min, max))
    if low > 0 and high > 20 * low:
        logarithmic(axes)
    else:
        axes.set_xlim(left=0)
    axes.set_ylim(0, 101)
    axes.set_title(title, loc="left", fontsize=10)
    axes.set_xlabel("completion time (ms)")
    axes.set_ylabel("messages delivered (%)")


def _iterations(axes: Axes, runs: tuple[Result, Result], job: str) -> None:
    """Plot the mean per iteration over the workers (of pooled runs over all their workers), and their range."""
    highest = 0.0
    for run, (_, colour, style, width) in zip(runs, RUNS, strict=True):
        table = run.iterations
        rows = np.asarray(table["job"].to_pylist()) == job
        number = to_numpy(table["iteration"])[rows]
        if pooled_run_count(run) > 1:
            number = number % ITERATION_OFFSET  # the iteration within its own run
        duration = (to_numpy(table["end_ps"]) - to_numpy(table["start_ps"]))[rows] / PS_PER_MS
        iterations = np.unique(number)
        middle, low, high = (
            np.array([f(duration[number == n]) for n in iterations]) for f in (np.mean, np.min, np.max)
        )
        highest = max(highest, float(high.max()))
        axes.fill_between(iterations, low, high, color=colour, alpha=0.15, linewidth=0)
        axes.plot(iterations, middle, style, color=colour, linewidth=width, marker="o", markersize=4)
    axes.set_ylim(0, 1.08 * highest)
    axes.locator_params(axis="x", integer=True)
    band = "all workers and seeds" if pooled_run_count(runs[0]) > 1 else "all workers"
    axes.set_title(f"{job}: iterations (band: {band})", loc="left", fontsize=10)
    axes.set_xlabel("iteration")
    axes.set_ylabel("iteration time (ms)")


def _packets(axes: Axes, agreement: Agreement) -> None:
    totals = {
        counter: [sum(max(port[counter][side], 0) for port in agreement.ports) for side in (0, 1)]
        for counter in (*DROPS, "marks")
    }
    shown = [counter for counter, pair in totals.items() if any(pair) or counter in ALWAYS_SHOWN]
    highest = max((max(totals[counter]) for counter in shown), default=0)
    for side, (_, colour, style, _) in enumerate(RUNS):
        for row, counter in enumerate(shown):
            value, at = totals[counter][side], row + 0.2 * (2 * side - 1)
            hatch: Json = {} if style == "-" else {"hatch": "///", "edgecolor": "white"}
            axes.barh(at, value, 0.36, color=colour, linewidth=0, **hatch)
            write_beside(axes, f"{value:,}", value, at, fontsize=8, color=GREY)
    words = {**CAUSE_LABELS, "marks": "congestion marks"}
    axes.set_yticks(range(len(shown)), [words[counter].replace(": ", ":\n") for counter in shown], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlim(0, max(1, 1.25 * highest))
    axes.locator_params(axis="x", nbins=4, integer=True)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.set_title("packets, at all ports", loc="left", fontsize=10)
    axes.grid(axis="y", visible=False)
