"""Draws a trace's timeline and gradient magnitudes as PNG files, for `gradwire trace plot`.

    timeline.png     one iteration, layer by layer: forward, backward, ready time of each gradient; bytes per layer
                     beside it, and below it the share of all bytes that is ready by then
    magnitudes.png   distribution of mean |g| of the chunks in each layer, one panel per phase

A trace records when a layer's forward pass begins and ends and when its gradients are final, but not when its backward
pass begins. The plot lets it begin where the previous gradient was ready (our choice): the pieces then fill the
backward pass without gaps, and a layer without parameters counts towards the next one with parameters.

Colours are those of Okabe and Ito, which remain distinct for colour-blind readers. matplotlib is used without a display
(Agg) and without pyplot's global state.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from gradwire.result_store.folders.output_folder import NEW_FOLDER, is_taken, new_folder
from gradwire.scenarios.arrays import Flags, Floats, Ints
from gradwire.scenarios.errors import TraceError
from gradwire.scenarios.json_data import Json
from gradwire.scenarios.readable import size_text, size_unit
from gradwire.traces.tools.info import layer_title, sampled_of
from gradwire.traces.trace import Trace

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FORWARD, BACKWARD, READY, OPTIMIZER = "#0072B2", "#E69F00", "#D55E00", "#CC79A7"
KERNELS, VECTORS, ZEROS = "#0072B2", "#8C8C8C", "#D55E00"
GREY = "#595959"
PS_PER_MS = 1e9
DPI = 120
LABEL_INCHES = 0.135  # space for one layer's name in 7 points
MAX_PHASES = 4  # panels in magnitudes.png: the first phases and the last
MAX_ITERATIONS = 4  # iterations of a phase that magnitudes.png pools
QUANTILES = (0.01, 0.25, 0.5, 0.75, 0.99)


def plot_trace(trace: Trace, out: Path, iteration: int = 0) -> list[Path]:
    """Draw `trace` into the new directory `out`, completely or not at all, and return the files. `iteration` is the
    index of the iteration in timeline.png; TraceError if there is none, or if `out` exists."""
    if not 0 <= iteration < len(trace.iterations):
        last = len(trace.iterations) - 1
        raise TraceError(f"no iteration {iteration}", trace.name, f"0 to {last}" if last else "0, the only one")
    if is_taken(out):
        raise TraceError("exists already", str(out), NEW_FOLDER)
    figures = {"timeline.png": timeline_figure(trace, iteration), "magnitudes.png": magnitude_figure(trace)}
    with new_folder(out, TraceError) as building:
        for name, figure in figures.items():
            figure.savefig(building / name, dpi=DPI, metadata={"Software": "gradwire"})
    return [out / name for name in figures]


def backward_spans(trace: Trace, iteration: int) -> tuple[Ints, Ints]:
    """Return (begin, end) of each layer's backward pass in picoseconds, int64 [L] each; -1 for a layer without
    gradient. A layer ends when the last of its gradients is ready and begins where the previous layer ended, the first
    one at the end of the forward pass; see the module docstring."""
    end = trace.layer_ready(iteration)
    begin = np.full(len(trace.layers), -1, dtype=np.int64)
    previous = int(trace.iterations[iteration].forward_end_ps.max())
    for layer in np.argsort(end, kind="stable"):
        if end[layer] >= 0:
            begin[layer] = min(previous, end[layer])
            previous = max(previous, int(end[layer]))
    return begin, end


def timeline_figure(trace: Trace, iteration: int) -> Figure:
    """Draw one iteration: layers from top to bottom in forward order, time from left to right."""
    layers, captured = len(trace.layers), trace.iterations[iteration]
    height = float(np.clip(0.075 * layers, 3.2, 12.0))
    figure = _figure(12.0, height + 3.0)
    panels = figure.subplots(
        2, 2, sharex="col", sharey="row", gridspec_kw={"width_ratios": (5, 1), "height_ratios": (height, 1.6)}
    )
    (main, sizes), (share, corner) = panels
    corner.remove()
    for axes in (main, sizes, share):
        _style(axes)
    rows = np.arange(layers)
    start, end = captured.forward_start_ps / PS_PER_MS, captured.forward_end_ps / PS_PER_MS
    backward_begin, ready = backward_spans(trace, iteration)
    has_gradient = ready >= 0
    bar: Json = {"height": 0.8, "linewidth": 0.8}  # the edge keeps a very short bar visible
    main.barh(rows, end - start, left=start, color=FORWARD, edgecolor=FORWARD, **bar)
    spans = (ready - backward_begin)[has_gradient] / PS_PER_MS
    main.barh(
        rows[has_gradient],
        spans,
        left=backward_begin[has_gradient] / PS_PER_MS,
        color=BACKWARD,
        edgecolor=BACKWARD,
        **bar,
    )
    layer_of = np.array([tensor.layer for tensor in trace.tensors])
    dot = float(np.clip(300 / layers, 1.6, 5.0))
    main.plot(captured.ready_ps / PS_PER_MS, layer_of, "o", color=READY, markersize=dot, markeredgewidth=0)
    for axes in (main, share):
        axes.axvspan(
            captured.backward_end_ps / PS_PER_MS, captured.end_ps / PS_PER_MS, color=OPTIMIZER, alpha=0.35, lw=0
        )
    main.set_ylim(layers - 0.4, -0.6)
    main.set_xlim(0, max(captured.end_ps / PS_PER_MS, 1e-9))
    _name_layers(main, trace.layers, height)
    unit, word = size_unit(int(trace.layer_bytes.max()))
    sizes.barh(rows, trace.layer_bytes / unit, color=GREY, height=0.8, linewidth=0)
    sizes.tick_params(labelleft=False, labelbottom=True)
    sizes.set_xlabel(f"gradients ({word})")
    order = np.argsort(captured.ready_ps, kind="stable")
    reached = np.cumsum(np.array([tensor.bytes for tensor in trace.tensors])[order])
    share.step(
        np.concatenate([[0], captured.ready_ps[order], [captured.end_ps]]) / PS_PER_MS,
        np.concatenate([[0], reached, [reached[-1]]]) / reached[-1] * 100,
        where="post",
        color=READY,
        linewidth=1.6,
    )
    share.set_ylim(0, 104)
    share.set_ylabel("bytes ready (%)")
    share.set_xlabel("time since the iteration began (ms)")
    main.set_title(_headline(trace, iteration), loc="left", fontsize=10)
    figure.legend(
        handles=[
            Patch(color=FORWARD, label="forward"),
            Patch(color=BACKWARD, label="backward (since the previous gradient)"),
            Line2D([], [], linestyle="", marker="o", color=READY, label="gradient ready"),
            Patch(color=OPTIMIZER, alpha=0.35, label="optimiser"),
        ],
        loc="outside lower center",
        ncols=4,
        frameon=False,
        fontsize=9,
    )
    return figure


def magnitude_figure(trace: Trace) -> Figure:
    """Draw mean |g| of the chunks of each layer: median, middle half and 98 %, one panel per phase."""
    chosen = _phases_to_draw(trace)
    layers = len(trace.layers)
    width = float(np.clip(0.11 * layers, 11.0, 18.0))
    figure = _figure(width, 3.4 * len(chosen) + 1.6)
    panels = figure.subplots(len(chosen), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
    matrices = np.zeros(layers, dtype=bool)
    for tensor in trace.tensors:
        matrices[tensor.layer] |= len(tensor.shape) > 1
    drawn = {phase: layer_quantiles(trace, members) for phase, members in chosen.items()}
    for axes, (phase, (quantiles, zero, top)) in zip(panels, drawn.items(), strict=True):
        _style(axes)
        for kind, colour in ((matrices, KERNELS), (~matrices, VECTORS)):
            _draw_quantiles(axes, quantiles, top, kind, colour)
        mostly = np.flatnonzero(zero > 0.5)
        transform = axes.get_xaxis_transform()
        axes.plot(mostly, np.full(len(mostly), 0.02), "v", color=ZEROS, markersize=4, transform=transform)
        axes.set_yscale("log")
        axes.set_ylabel("|g|")
        axes.set_title(_phase_title(trace, phase, chosen[phase]), loc="left", fontsize=10)
    panels[0].set_ylim(_limits([values for quantiles, _, top in drawn.values() for values in (quantiles, top)]))
    panels[-1].set_xlim(-0.8, layers - 0.2)
    _name_layers(panels[-1], trace.layers, width - 1.2, across=True)
    left_out = f"; {len(chosen)} of {len(trace.phases)} phases" if len(chosen) < len(trace.phases) else ""
    figure.suptitle(f"{trace.name}: {_magnitude_source(trace)}{left_out}", x=0.01, ha="left", fontsize=11)
    handles = [
        Patch(color=KERNELS, label="layer with matrices or kernels"),
        Patch(color=VECTORS, label="one-dimensional only: norms, biases, buckets"),
        Line2D([], [], color=GREY, linewidth=5, alpha=0.3, label="mean |g| of a chunk: 1 to 99 % of the chunks"),
        Line2D([], [], color=GREY, linewidth=5, label="their middle half; white: median"),
        Line2D([], [], linestyle="", marker=".", color="black", label="largest |g| of the layer"),
    ]
    if any((zero > 0.5).any() for _, zero, _ in drawn.values()):
        handles.append(Line2D([], [], linestyle="", marker="v", color=ZEROS, label="most chunks are exactly zero"))
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    return figure


def layer_quantiles(trace: Trace, iterations: Sequence[int]) -> tuple[Floats, Floats, Floats]:
    """Return the distribution of each layer's chunks, pooled over `iterations`. It consists of quantiles of mean |g|
    over nonzero chunks, float64 [len(QUANTILES), L]; the share of zero chunks, float64 [L]; the largest |g|, float64
    [L]. NaN where there are no values (no tensors, or all zero)."""
    layers = len(trace.layers)
    quantiles = np.full((len(QUANTILES), layers), np.nan)
    zero, top = np.full(layers, np.nan), np.full(layers, np.nan)
    members: list[list[int]] = [[] for _ in range(layers)]
    for number, tensor in enumerate(trace.tensors):
        members[tensor.layer].append(number)
    for layer, numbers in enumerate(members):
        if not numbers:
            continue
        pairs = [trace.magnitudes(iteration, number) for iteration in iterations for number in numbers]
        means = np.concatenate([mean for mean, _ in pairs])
        largest = max(float(maximum.max()) for _, maximum in pairs)
        zero[layer] = float((means == 0).mean())
        top[layer] = largest or np.nan
        if (means > 0).any():
            quantiles[:, layer] = np.quantile(means[means > 0], QUANTILES)
    return quantiles, zero, top


def _draw_quantiles(axes: Axes, quantiles: Floats, top: Floats, kind: Flags, colour: str) -> None:
    low, lower, middle, upper, high = quantiles
    at = np.flatnonzero(kind & np.isfinite(middle))
    # A layer of few chunks has almost no spread: stretched by 8 % each way its bar is still visible.
    for under, over, alpha in ((low, high, 0.3), (lower, upper, 1.0)):
        axes.bar(at, (over * 1.08 - under / 1.08)[at], 0.8, bottom=(under / 1.08)[at], color=colour, alpha=alpha, lw=0)
    wide = at[upper[at] > 1.3 * lower[at]]
    axes.hlines(middle[wide], wide - 0.4, wide + 0.4, color="white", linewidth=1.2)
    axes.plot(at, top[at], ".", color="black", markersize=3)


def _limits(values: Sequence[Floats]) -> tuple[float, float]:
    """Return the limits of a logarithmic axis that show all of `values`, with a small margin."""
    finite = np.concatenate([array[np.isfinite(array)].reshape(-1) for array in values])
    return (float(finite.min()) / 1.6, float(finite.max()) * 1.6) if len(finite) else (1e-3, 1.0)


def _phases_to_draw(trace: Trace) -> dict[str, list[int]]:
    """Return phases with the iterations to pool, evenly spread over their sampled ones."""
    phases = trace.phases
    names = list(phases)
    if len(names) > MAX_PHASES:
        names = [*names[: MAX_PHASES - 1], names[-1]]
    chosen = {}
    for name in names:
        candidates = sampled_of(trace, phases[name]) or phases[name][:1]
        positions = np.unique(np.linspace(0, len(candidates) - 1, MAX_ITERATIONS).round().astype(int))
        chosen[name] = [candidates[position] for position in positions]
    return chosen


def _phase_title(trace: Trace, phase: str, members: Sequence[int]) -> str:
    steps = sorted({trace.iterations[index].step for index in members})
    ranks = sorted({trace.iterations[index].rank for index in members})
    title = f"{phase}: training step{'s' if len(steps) > 1 else ''} {', '.join(map(str, steps))}"
    if len(trace.ranks) > 1:
        title += f" of rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
    return title


def _magnitude_source(trace: Trace) -> str:
    if trace.magnitude_source == "model":
        return f"gradient magnitudes drawn from a {trace.manifest['magnitudes'].get('model', '')} model, not measured"
    return "measured gradient magnitudes per layer"


def _headline(trace: Trace, iteration: int) -> str:
    captured = trace.iterations[iteration]
    rank = f", rank {captured.rank}" if len(trace.ranks) > 1 else ""
    timing = trace.manifest.get("timing", "measured")
    note = f", times {timing}" if timing != "measured" else ""
    return (
        f"{trace.name}: iteration {iteration} ({captured.phase}, step {captured.step}{rank}{note}), "
        f"{captured.end_ps / PS_PER_MS:.4g} ms, {size_text(trace.total_bytes)} of gradients"
    )


def _name_layers(axes: Axes, names: Sequence[str], inches: float, across: bool = False) -> None:
    """Label layers with names and indices, evenly spaced, as many as fit, starting with the first."""
    every = max(1, int(np.ceil(len(names) * LABEL_INCHES / inches)))
    positions = range(0, len(names), every)
    texts = [f"{shorten_name(names[position])}  {position}" for position in positions]
    if across:
        axes.set_xticks(positions, texts, rotation=90, fontsize=7)
    else:
        axes.set_yticks(positions, texts, fontsize=7)


def shorten_name(name: str, limit: int = 32) -> str:
    """Return a layer's name for an axis: the end of a dotted name is more telling than its beginning."""
    name = layer_title(name)
    return name if len(name) <= limit else "…" + name[-(limit - 1) :]


def _figure(width: float, height: float) -> Figure:
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _style(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(GREY)
    axes.tick_params(colors=GREY)
    axes.grid(color="#E6E6E6", linewidth=0.8)
    axes.set_axisbelow(True)
