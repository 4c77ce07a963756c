"""Draws the figure of `gradwire telemetry`, with queues and utilisation over time and waiting times of packets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from gradwire.analysis.comparison.plots import STYLES, apply_house_style, logarithmic
from gradwire.analysis.figure_files import format_of, save_figure
from gradwire.analysis.metrics import ran_on
from gradwire.analysis.palette import COLOURS
from gradwire.analysis.telemetry.telemetry import PortSeries, hop_of, series
from gradwire.result_store.folders.output_folder import new_file
from gradwire.result_store.result import Result
from gradwire.scenarios.arrays import Floats, Ints
from gradwire.scenarios.errors import ResultError
from gradwire.scenarios.json_data import Json
from gradwire.scenarios.readable import size_unit, time_unit

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_LINES = 6
"""More lines in one panel are hard to distinguish."""
QUEUE_POINTS, UTILISATION_POINTS = 600, 120
"""Points of a line at most: each is the maximum of its samples for queues, their mean for utilisation."""


def draw_telemetry(result: Result, path: str | Path, ports: Sequence[str] | None = None) -> list[str]:
    """Draw the recorded telemetry into a new file, in the format of its ending; return the ports with lines.

    Lines are drawn for the sampled ports with the deepest queues, and only for those that ever had one.

    Raises `ResultError` if the Result holds neither samples nor waiting times of the ports, `path` exists, or its
    ending is not that of a figure format.
    """
    format_of(path)
    lines = sorted(series(result, ports), key=lambda port_series: -int(port_series.queue_bytes.max()))
    busy = [port_series for port_series in lines if port_series.queue_bytes.any()]
    lines = (busy or lines)[:MOST_LINES]
    waits = _waits(result, ports)
    if not lines and not waits:
        raise ResultError(
            "holds neither samples nor waiting times of these ports",
            "samples.parquet",
            'a run with output.queue_samples = "10us" or output.delays = true',
        )
    panels = 2 * bool(lines) + bool(waits)
    figure = Figure(figsize=(8.4, 0.9 + 2.3 * panels), layout="constrained")
    FigureCanvasAgg(figure)
    axes = list(figure.subplots(panels, 1, squeeze=False)[:, 0])
    for panel in axes:
        apply_house_style(panel)
    if lines:
        _draw_lines(axes[0], axes[1], lines, "simulated time" if ran_on(result)[0] == "simulated" else "time")
    if waits:
        _draw_waits(axes[-1], waits)
    summary = result.summary
    figure.suptitle(f"{summary.get('name', '')}, {summary.get('policy', '')}", x=0.01, ha="left", fontsize=11)
    with new_file(path) as partial:
        save_figure(figure, partial, path)
    return [port_series.port for port_series in lines]


def _draw_lines(upper: Axes, lower: Axes, lines: Sequence[PortSeries], clock: str) -> None:
    end = max(port_series.period_ps * len(port_series.queue_bytes) for port_series in lines)
    scale, unit = time_unit(end)
    deepest = max(int(port_series.queue_bytes.max()) for port_series in lines)
    size, size_name = size_unit(deepest)
    for number, port_series in enumerate(lines):
        style = {**_line_style(number), "linewidth": 1.2}
        time, queue = thinned(port_series.queue_bytes, QUEUE_POINTS, np.max)
        upper.plot(time * port_series.period_ps / scale, queue / size, label=port_series.port, **style)
        time, used = thinned(port_series.utilisation, UTILISATION_POINTS, np.mean)
        lower.plot(time * port_series.period_ps / scale, 100 * used, **style)
    upper.set_ylabel(f"queue ({size_name})")
    upper.set_ylim(bottom=0)
    lower.set_ylabel("utilisation (%)")
    lower.set_ylim(0, 103)
    lower.set_xlabel(f"{clock} ({unit})")
    upper.sharex(lower)
    upper.tick_params(labelbottom=False)
    upper.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize=9)


def _line_style(number: int) -> Json:
    return {"color": COLOURS[number % len(COLOURS)], "linestyle": STYLES[number // len(COLOURS) % len(STYLES)]}


Values = Ints | Floats


def thinned(values: Values, points: int, of: Callable[[Values], float]) -> tuple[Floats, Floats]:
    """Thin values to at most `points` groups of neighbours; return their middle positions and `of` of each group."""
    per = -(-len(values) // points)
    parts = [values[begin : begin + per] for begin in range(0, len(values), per)]
    positions = [number * per + (len(part) - 1) / 2 for number, part in enumerate(parts)]
    return np.array(positions), np.array([of(part) for part in parts], dtype=np.float64)


def _waits(result: Result, ports: Sequence[str] | None) -> dict[str, tuple[Ints, Floats]]:
    """Return per hop the upper ends of the bins, and the share of packets that waited longer."""
    bins_by_hop: dict[str, Counter[int]] = {}
    columns = (result.delays[name].to_pylist() for name in ("port", "to_ps", "packets"))
    for name, end, count in zip(*columns, strict=True):
        if ports is None or name in ports:
            bins_by_hop.setdefault(hop_of(name), Counter())[end] += count
    curves = {}
    for name, bins in bins_by_hop.items():
        ends = np.array(sorted(bins))
        reached = np.cumsum([bins[end] for end in ends.tolist()])
        curves[name] = ends, 1 - reached / reached[-1]
    return curves


def _draw_waits(axes: Axes, waits: dict[str, tuple[Ints, Floats]]) -> None:
    longest = max(int(ends[-1]) for ends, _ in waits.values())
    scale, unit = time_unit(longest)
    floor = 1.0
    for number, (name, (ends, longer)) in enumerate(waits.items()):
        shares = 100 * np.append(1, longer[:-1])
        axes.step(ends / scale, shares, where="pre", label=name, linewidth=1.4, **_line_style(number))
        if len(longer) > 1:
            floor = min(floor, float(longer[-2]))
    logarithmic(axes)
    axes.set_yscale("log")
    axes.set_ylim(max(100 * floor / 2, 1e-6), 130)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_xlabel(f"waiting time at one port ({unit})")
    axes.set_ylabel("packets that wait\nlonger than x (%)")
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize=9)
