"""The picture of `gradwire telemetry`: queues and utilisation as time goes by, and how long packets waited."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from gradwire.analysis.figures import format_of, save_figure
from gradwire.analysis.metrics import ran_on
from gradwire.analysis.plots import COLOURS, GREY, STYLES, logarithmic
from gradwire.analysis.telemetry import Series, hop, series
from gradwire.scenarios.arrays import Floats, Ints
from gradwire.scenarios.errors import ResultError
from gradwire.scenarios.json_data import Json
from gradwire.scenarios.output import new_file
from gradwire.scenarios.readable import size_unit, time_unit
from gradwire.scenarios.result import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_LINES = 6
"""More ports in one panel cannot be told apart."""
QUEUE_POINTS, UTILISATION_POINTS = 600, 120
"""Points of a line at most: of what falls on one, the highest is drawn for queues, the mean for utilisation."""


def draw_telemetry(result: Result, path: str | Path, ports: Sequence[str] | None = None) -> list[str]:
    """Draw what was recorded into a new file, in the format of its name. Returns the ports whose lines are shown.

    Of the ports that were sampled those with the deepest queues are shown, and only those that ever had one.

    Raises
    ------
    ResultError
        The Result holds neither samples nor waiting times of the ports, something is at `path`, or its name is not that
        of a picture.
    """
    format_of(path)
    lines = sorted(series(result, ports), key=lambda each: -int(each.queue_bytes.max()))
    busy = [each for each in lines if each.queue_bytes.any()]
    lines = (busy or lines)[:MOST_LINES]
    waits = _waits(result, ports)
    if not lines and not waits:
        raise ResultError(
            "holds no samples and no waiting times of these ports", "samples.parquet",
            'a run with output.queue_samples = "10us" or output.delays = true',
        )  # fmt: skip
    panels = 2 * bool(lines) + bool(waits)
    figure = Figure(figsize=(8.4, 0.9 + 2.3 * panels), layout="constrained")
    FigureCanvasAgg(figure)
    axes = list(figure.subplots(panels, 1, squeeze=False)[:, 0])
    for each in axes:
        each.spines[["top", "right"]].set_visible(False)
        each.spines[["left", "bottom"]].set_color(GREY)
        each.tick_params(colors=GREY)
        each.grid(color="#E6E6E6", linewidth=0.8)
        each.set_axisbelow(True)
    if lines:
        _draw_lines(axes[0], axes[1], lines, "simulated time" if ran_on(result)[0] == "simulated" else "time")
    if waits:
        _draw_waits(axes[-1], waits)
    summary = result.summary
    figure.suptitle(f"{summary.get('name', '')}, {summary.get('policy', '')}", x=0.01, ha="left", fontsize=11)
    with new_file(path) as partial:
        save_figure(figure, partial, path)
    return [each.port for each in lines]


def _draw_lines(upper: Axes, lower: Axes, lines: Sequence[Series], clock: str) -> None:
    end = max(each.period_ps * len(each.queue_bytes) for each in lines)
    scale, unit = time_unit(end)
    deepest = max(int(each.queue_bytes.max()) for each in lines)
    size, size_name = size_unit(deepest)
    for number, each in enumerate(lines):
        style: Json = {
            "color": COLOURS[number % len(COLOURS)], "linestyle": STYLES[number // len(COLOURS) % len(STYLES)],
            "linewidth": 1.2,
        }  # fmt: skip
        time, queue = thinned(each.queue_bytes, QUEUE_POINTS, np.max)
        upper.plot(time * each.period_ps / scale, queue / size, label=each.port, **style)
        time, used = thinned(each.utilisation, UTILISATION_POINTS, np.mean)
        lower.plot(time * each.period_ps / scale, 100 * used, **style)
    upper.set_ylabel(f"queue ({size_name})")
    upper.set_ylim(bottom=0)
    lower.set_ylabel("utilisation (%)")
    lower.set_ylim(0, 103)
    lower.set_xlabel(f"{clock} ({unit})")
    upper.sharex(lower)
    upper.tick_params(labelbottom=False)
    upper.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize=9)


Values = Ints | Floats


def thinned(
    values: Values, points: int, of: Callable[[Values], float]
) -> tuple[Floats, Floats]:
    """(place, value) of at most `points` points, each what `of` makes of as many neighbours, in their middle."""
    per = -(-len(values) // points)
    parts = [values[begin : begin + per] for begin in range(0, len(values), per)]
    places = [number * per + (len(part) - 1) / 2 for number, part in enumerate(parts)]
    return np.array(places), np.array([of(part) for part in parts], dtype=np.float64)


def _waits(result: Result, ports: Sequence[str] | None) -> dict[str, tuple[Ints, Floats]]:
    """Per hop the upper ends of the bins, and the share of packets that waited longer."""
    table = result.delays
    names, upper, counts = (table[name].to_pylist() for name in ("port", "to_ps", "packets"))
    found: dict[str, dict[int, int]] = {}
    for name, end, count in zip(names, upper, counts, strict=True):
        if ports is None or name in ports:
            bins = found.setdefault(hop(name), {})
            bins[end] = bins.get(end, 0) + count
    curves = {}
    for name, bins in found.items():
        ends = np.array(sorted(bins))
        reached = np.cumsum([bins[end] for end in ends.tolist()])
        curves[name] = ends, 1 - reached / reached[-1]
    return curves


def _draw_waits(axes: Axes, waits: dict[str, tuple[Ints, Floats]]) -> None:
    longest = max(int(ends[-1]) for ends, _ in waits.values())
    scale, unit = time_unit(longest)
    floor = 1.0
    for number, (name, (ends, longer)) in enumerate(waits.items()):
        axes.step(
            ends / scale, 100 * np.append(1, longer[:-1]), where="pre", label=name, linewidth=1.4,
            color=COLOURS[number % len(COLOURS)], linestyle=STYLES[number // len(COLOURS) % len(STYLES)],
        )  # fmt: skip
        if len(longer) > 1:
            floor = min(floor, float(longer[-2]))
    logarithmic(axes)
    axes.set_yscale("log")
    axes.set_ylim(max(100 * floor / 2, 1e-6), 130)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_xlabel(f"waiting time at one port ({unit})")
    axes.set_ylabel("packets that wait\nlonger (%)")
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize=9)
