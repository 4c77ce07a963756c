"""What `gradwire trace info` says about a trace: as plain data for programs, as a table for people."""

from __future__ import annotations

from typing import Any

import numpy as np
from rich.box import SIMPLE
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from traces.trace import Trace

TIMES = {
    "forward_ps": "forward",
    "backward_ps": "backward",
    "optimizer_ps": "optimiser",
    "iteration_ps": "iteration",
}
BACK_LAYERS = 10  # "share of bytes in the last layers": how many layers that is


def info(trace: Trace) -> dict[str, Any]:
    """Plain data about `trace`: manifest, sizes in bytes, times in picoseconds, per phase and per layer.

    Ready times are given per layer as the latest of its tensors, median over the iterations of a phase.
    `ready_inversions` counts neighbouring layers whose gradients became ready front before back, in any
    iteration.
    """
    layer_bytes = _layer_bytes(trace)
    return {
        "name": trace.name,
        "digest": trace.digest(),
        "manifest": trace.manifest,
        "layers": len(trace.layers),
        "tensors": len(trace.tensors),
        "elements": sum(tensor.numel for tensor in trace.tensors),
        "total_bytes": trace.total_bytes,
        "iterations": len(trace.iterations),
        "back_layers": {
            "layers": min(BACK_LAYERS, len(trace.layers)),
            "share_of_bytes": float(layer_bytes[-BACK_LAYERS:].sum() / layer_bytes.sum()),
        },
        "phases": {name: _phase(trace, members) for name, members in trace.phases.items()},
        "layer_table": _layer_rows(trace, layer_bytes),
    }


def _layer_bytes(trace: Trace) -> np.ndarray:
    sizes = np.zeros(len(trace.layers), dtype=np.int64)
    for tensor in trace.tensors:
        sizes[tensor.layer] += tensor.bytes
    return sizes


def _layer_ready(trace: Trace, iteration: int) -> np.ndarray:
    """Latest gradient of each layer, int64 [L]; -1 where a layer has none."""
    ready = np.full(len(trace.layers), -1, dtype=np.int64)
    np.maximum.at(ready, [tensor.layer for tensor in trace.tensors], trace.iterations[iteration].ready_ps)
    return ready


def _phase(trace: Trace, members: list[int]) -> dict[str, Any]:
    iterations = [trace.iterations[index] for index in members]
    inversions = 0
    for index in members:
        ready = _layer_ready(trace, index)
        ready = ready[ready >= 0]
        inversions += int((np.diff(ready) > 0).sum())
    return {
        "steps": [iteration.step for iteration in iterations],
        "loss": [iteration.loss for iteration in iterations],
        "forward_ps": _median([int(iteration.forward_end_ps.max()) for iteration in iterations]),
        "backward_ps": _median(
            [iteration.backward_end_ps - int(iteration.forward_end_ps.max()) for iteration in iterations]
        ),
        "optimizer_ps": _median([iteration.optimizer_ps for iteration in iterations]),
        "iteration_ps": _median([iteration.end_ps for iteration in iterations]),
        "first_ready_ps": _median([int(iteration.ready_ps.min()) for iteration in iterations]),
        "last_ready_ps": _median([int(iteration.ready_ps.max()) for iteration in iterations]),
        "ready_inversions": inversions,
        "mean_magnitude": float(np.median([_mean_magnitude(trace, index) for index in members])),
        "magnitude_spread": float(np.median([_spread(trace, index) for index in members])),
    }


def _mean_magnitude(trace: Trace, iteration: int) -> float:
    """Mean |g| over all elements."""
    weighted = [
        float(trace.magnitudes(iteration, number)[0].mean()) * tensor.numel
        for number, tensor in enumerate(trace.tensors)
    ]
    return sum(weighted) / sum(tensor.numel for tensor in trace.tensors)


def _spread(trace: Trace, iteration: int) -> float:
    """How uneven gradients are within a tensor: share of its total |g| in the largest tenth of its chunks.

    Averaged over tensors of at least ten chunks, weighted by bytes; 0.1 if even. Magnitude tagging lives on
    this.
    """
    shares, weights = [], []
    for number, tensor in enumerate(trace.tensors):
        means = np.sort(trace.chunk_mean(iteration, number).astype(np.float64))
        if len(means) >= 10 and means[-1] > 0:
            shares.append(means[-(len(means) // 10) :].sum() / means.sum())
            weights.append(tensor.bytes)
    return float(np.average(shares, weights=weights)) if shares else 0.0


def _milliseconds(picoseconds: int) -> str:
    return f"{picoseconds / 1e9:.4g}"


def _size(size: int) -> str:
    return f"{size / 2**20:.1f} MiB" if size >= 2**20 else f"{size / 2**10:.1f} KiB"


def _median(values: list[int]) -> int:
    return int(np.median(values))


def _layer_rows(trace: Trace, layer_bytes: np.ndarray) -> list[dict[str, Any]]:
    phases = trace.phases
    ready = {phase: np.median([_layer_ready(trace, i) for i in phases[phase]], axis=0) for phase in phases}
    rows = []
    for number, layer in enumerate(trace.layers):
        forward = [int(i.forward_end_ps[number] - i.forward_start_ps[number]) for i in trace.iterations]
        tensors = [tensor.name for tensor in trace.tensors if tensor.layer == number]
        rows.append(
            {
                "layer": number,
                "name": layer,
                "tensors": tensors,
                "bytes": int(layer_bytes[number]),
                "forward_ps": _median(forward),
                "ready_ps": {
                    phase: int(times[number]) for phase, times in ready.items() if times[number] >= 0
                },
            }
        )
    return rows


def print_info(trace: Trace, console: Console | None = None, *, layers: bool = True) -> None:
    """Print `info(trace)` as tables; `layers` adds one line per layer."""
    console = console or Console()
    data = info(trace)
    manifest = data["manifest"]
    console.print(f"[bold]{escape(data['name'])}[/bold]  {escape(_origin(manifest))}")
    back = data["back_layers"]
    console.print(
        f"{data['layers']} layers, {data['tensors']} tensors, {data['elements']:,} elements, "
        f"{_size(data['total_bytes'])} of gradients per iteration; "
        f"the last {back['layers']} layers hold {back['share_of_bytes']:.0%} of the bytes"
    )
    overhead = manifest.get("capture_overhead", {})
    if "fraction" in overhead:
        low, high = overhead["fraction_quartiles"]
        console.print(
            f"capture overhead {overhead['fraction']:+.1%} "
            f"(median of {overhead['pairs']} pairs of steps, quartiles {low:+.1%} and {high:+.1%})"
        )
    console.print(_phase_table(data))
    if layers:
        console.print(_layer_table(data))


def _phase_table(data: dict[str, Any]) -> Table:
    phases = data["phases"]
    table = Table(title="medians over the iterations of a phase", box=SIMPLE)
    table.add_column("")
    for name in phases:
        table.add_column(escape(name), justify="right", no_wrap=True)
    table.add_row("training steps", *(f"{p['steps'][0]} to {p['steps'][-1]}" for p in phases.values()))
    table.add_row("loss (mean)", *(f"{np.mean(p['loss']):.3f}" for p in phases.values()))
    for key, label in TIMES.items():
        table.add_row(f"{label} (ms)", *(_milliseconds(p[key]) for p in phases.values()))
    table.add_row("mean |g|", *(f"{p['mean_magnitude']:.2e}" for p in phases.values()))
    table.add_row("|g| in the largest tenth", *(f"{p['magnitude_spread']:.1%}" for p in phases.values()))
    return table


def _origin(manifest: dict[str, Any]) -> str:
    parts = [str(manifest[key]) for key in ("model", "dataset") if key in manifest]
    if "classes" in manifest:
        parts.append(f"{manifest['classes']} classes")
    if "batch" in manifest:
        parts.append(f"batch {manifest['batch']}")
    if "image_size" in manifest:
        parts.append(f"{manifest['image_size']}x{manifest['image_size']} pixels")
    if "device" in manifest:
        machine = manifest.get("gpu") if manifest["device"] == "cuda" else manifest.get("cpu")
        if manifest["device"] == "cpu" and "threads" in manifest:
            machine = f"{machine}, threads: {manifest['threads']}"
        parts.append(f"recorded on {manifest['device']} ({machine})")
    return ", ".join(parts)


def _layer_table(data: dict[str, Any]) -> Table:
    names = list(data["phases"])
    table = Table(title="layers in forward order; times in ms, ready = gradient complete", box=SIMPLE)
    table.add_column("layer", justify="right")
    table.add_column("name", overflow="fold")
    for heading in ("size", "forward", *(f"ready {name}" for name in names)):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in data["layer_table"]:
        ready = [_milliseconds(row["ready_ps"][name]) if name in row["ready_ps"] else "-" for name in names]
        forward = _milliseconds(row["forward_ps"])
        table.add_row(str(row["layer"]), escape(row["name"]), _size(row["bytes"]), forward, *ready)
    return table
