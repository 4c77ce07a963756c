"""Summarises a trace for `gradwire trace info`, and measures phases, layers and tensors for `trace diff` and `trace
plot`."""

from __future__ import annotations

import itertools
import math

import numpy as np
from rich.box import SIMPLE
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from gradwire.scenarios.arrays import Floats
from gradwire.scenarios.json_data import Json
from gradwire.scenarios.readable import change_text, share_text, size_text
from gradwire.scenarios.terminal_text import console as escaping_console
from gradwire.traces.tools.retime import describe_retiming
from gradwire.traces.trace import CHUNK_ELEMENTS, Trace

TIMES = {"forward_ps": "forward", "backward_ps": "backward", "optimizer_ps": "optimiser", "iteration_ps": "iteration"}
MAX_LAYER_ROWS = 24  # more layers are shown in blocks unless `layers` is set
MAX_COUNTS = 6  # kinds of records that an importer understood or skipped, listed one by one
N_BACK_LAYERS = 10  # last layers whose share of bytes is shown


def info(trace: Trace) -> Json:
    """Return a summary of `trace`, fit for JSON: sizes in bytes, times in picoseconds, per phase and per layer.

    A loss that is unknown or not finite is None. The ready time of a layer is the latest of its tensors, median over
    the iterations of a phase. `ready_inversions` counts neighbouring layers whose gradients became ready front before
    back, in any iteration. `iteration_ps_by_rank` has the median iteration of each recorded worker. Magnitudes are
    medians over the sampled iterations.
    """
    layer_bytes = trace.layer_bytes
    return {
        "name": trace.name,
        "digest": trace.digest(),
        "manifest": trace.manifest,
        "layers": len(trace.layers),
        "tensors": len(trace.tensors),
        "elements": sum(tensor.numel for tensor in trace.tensors),
        "total_bytes": trace.total_bytes,
        "iterations": len(trace.iterations),
        "sampled": list(trace.sampled),
        "ranks": trace.ranks,
        "magnitudes": trace.magnitude_source,
        "timing": timing_source(trace),
        "groups": _groups(trace),
        "parallel": trace.parallel,
        "communications": _communications(trace),
        "graphs": _graphs(trace),
        "back_layers": {
            "layers": min(N_BACK_LAYERS, len(trace.layers)),
            "share_of_bytes": float(layer_bytes[-N_BACK_LAYERS:].sum() / layer_bytes.sum()),
        },
        "phases": {name: _phase(trace, members) for name, members in trace.phases.items()},
        "layer_table": _layer_rows(trace, layer_bytes),
    }


def timing_source(trace: Trace) -> str:
    """Return the origin of the times: "measured", "imported" or "estimated", and the method if known."""
    how = trace.manifest.get("timing_how")
    return str(trace.manifest.get("timing", "measured")) + (f" ({how})" if how else "")


def _groups(trace: Trace) -> list[Json]:
    """Return the manifest's buckets and units, with their bytes."""
    return [
        {**group, "bytes": sum(trace.tensors[tensor].bytes for tensor in group.get("tensors", []))}
        for group in trace.groups
    ]


def _communications(trace: Trace) -> list[Json]:
    """Return the number and total size of communications, by pass, kind and dimension."""
    sizes_by_kind: dict[tuple[str, str, str], list[int]] = {}
    for communication in trace.communications:
        sizes_by_kind.setdefault((communication.turn, communication.kind, communication.group), []).append(
            communication.bytes
        )
    return [
        {"pass": turn, "kind": kind, "group": group, "count": len(sizes), "bytes": sum(sizes)}
        for (turn, kind, group), sizes in sizes_by_kind.items()
    ]


def _graphs(trace: Trace) -> Json | None:
    """Return the numbers of ranks and nodes of the graphs, and the number and total size of calls by kind."""
    graphs = trace.graphs
    if graphs is None:
        return None
    calls: dict[str, list[int]] = {}
    for call in graphs.calls:
        calls.setdefault(call.kind, []).append(call.bytes)
    totals = {kind: {"count": len(sizes), "bytes": sum(sizes)} for kind, sizes in calls.items()}
    return {"ranks": graphs.ranks, "nodes": len(graphs.names), "calls": totals}


def sampled_of(trace: Trace, members: list[int]) -> list[int]:
    """Return those of some iterations that have magnitudes."""
    return [index for index in members if index in set(trace.sampled)]


def _phase(trace: Trace, members: list[int]) -> Json:
    iterations = [trace.iterations[index] for index in members]
    sampled = sampled_of(trace, members)
    inversions = 0
    for index in members:
        ready = trace.layer_ready(index)
        ready = ready[ready >= 0]
        inversions += int((np.diff(ready) > 0).sum())
    return {
        "steps": [iteration.step for iteration in iterations],
        "loss": [iteration.loss if math.isfinite(iteration.loss) else None for iteration in iterations],
        **phase_times(trace, members),
        "iteration_ps_by_rank": {
            str(rank): _median([iteration.end_ps for iteration in iterations if iteration.rank == rank])
            for rank in sorted({iteration.rank for iteration in iterations})
        },
        "ready_inversions": inversions,
        "mean_magnitude": float(np.median([mean_magnitude(trace, index) for index in sampled])),
        "magnitude_spread": float(np.median([_spread(trace, index) for index in sampled])),
    }


def phase_times(trace: Trace, members: list[int]) -> dict[str, int]:
    """Return the times of a phase, each the median over `members`, in picoseconds."""
    iterations = [trace.iterations[index] for index in members]
    forward = [int(iteration.forward_end_ps.max()) for iteration in iterations]
    backward = [iteration.backward_end_ps - end for iteration, end in zip(iterations, forward, strict=True)]
    return {
        "forward_ps": _median(forward),
        "backward_ps": _median(backward),
        "optimizer_ps": _median([iteration.optimizer_ps for iteration in iterations]),
        "iteration_ps": _median([iteration.end_ps for iteration in iterations]),
        "first_ready_ps": _median([int(iteration.ready_ps.min()) for iteration in iterations]),
        "last_ready_ps": _median([int(iteration.ready_ps.max()) for iteration in iterations]),
    }


def tensor_means(trace: Trace, iteration: int) -> Floats:
    """Return mean |g| over the elements of each tensor in the gradient's own units, float64 [T]. The last, shorter
    chunk of a tensor counts by its elements."""
    means = np.empty(len(trace.tensors))
    for number, tensor in enumerate(trace.tensors):
        chunks = trace.chunk_mean(iteration, number)
        last = tensor.numel - (tensor.chunks - 1) * CHUNK_ELEMENTS
        total = float(chunks[:-1].sum(dtype=np.float64)) * CHUNK_ELEMENTS + float(chunks[-1]) * last
        means[number] = math.ldexp(total / tensor.numel, -tensor.scale_exponent)
    return means


def mean_magnitude(trace: Trace, iteration: int) -> float:
    """Return mean |g| over all elements."""
    return float(np.average(tensor_means(trace, iteration), weights=[tensor.numel for tensor in trace.tensors]))


def _spread(trace: Trace, iteration: int) -> float:
    """Return the share of a tensor's total |g| in the largest tenth of its chunks; 0.1 if even. It is averaged over
    tensors of at least ten chunks, weighted by bytes. Magnitude tagging depends on it."""
    shares, weights = [], []
    for number, tensor in enumerate(trace.tensors):
        # Nonnegative floats sort like their bit patterns, and integers sort much faster than float16.
        means = np.sort(trace.chunk_mean(iteration, number).view(np.uint16)).view(np.float16)
        if len(means) >= 10 and means[-1] > 0:
            largest = means[-(len(means) // 10) :].sum(dtype=np.float64)
            shares.append(float(largest / means.sum(dtype=np.float64)))
            weights.append(tensor.bytes)
    return float(np.average(shares, weights=weights)) if shares else 0.0


def _milliseconds(picoseconds: int) -> str:
    return f"{picoseconds / 1e9:.4g}"


def _median(values: list[int]) -> int:
    return int(np.median(values))


def _layer_rows(trace: Trace, layer_bytes: np.ndarray) -> list[Json]:
    phases = trace.phases
    ready = {phase: np.median([trace.layer_ready(i) for i in phases[phase]], axis=0) for phase in phases}
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
                "ready_ps": {phase: int(times[number]) for phase, times in ready.items() if times[number] >= 0},
            }
        )
    return rows


def print_info(trace: Trace, console: Console | None = None, *, layers: bool = True) -> None:
    """Print `info(trace)` as tables. The last one has a row per layer, or, without `layers` and with more than
    `MAX_LAYER_ROWS` layers, a row per block of neighbouring layers."""
    console = console or escaping_console()
    data = info(trace)
    manifest = data["manifest"]
    console.print(f"[bold]{escape(data['name'])}[/bold]  {escape(_origin(manifest))}")
    back = data["back_layers"]
    console.print(
        f"{data['layers']} layers, {data['tensors']} tensors, {data['elements']:,} elements, "
        f"{size_text(data['total_bytes'])} of gradients per iteration; "
        f"the last {back['layers']} layers hold {share_text(back['share_of_bytes'])} of the bytes"
    )
    for line in _remarks(data):
        console.print(escape(line))
    overhead = manifest.get("capture_overhead", {})
    if {"fraction", "fraction_quartiles", "pairs"} <= set(overhead):
        low, high = overhead["fraction_quartiles"]
        console.print(
            f"capture overhead {change_text(1 + overhead['fraction'])} "
            f"(median of {overhead['pairs']} pairs of steps, "
            f"quartiles {change_text(1 + low)} and {change_text(1 + high)})"
        )
    console.print(_phase_table(data))
    if data["communications"]:
        console.print(_communication_table(data))
    if layers or data["layers"] <= MAX_LAYER_ROWS:
        console.print(_layer_table(data))
    else:
        console.print(_block_table(data))


def _remarks(data: Json) -> list[str]:
    """Return remarks on the origin of figures not measured on one worker in every iteration."""
    lines = [f"{data['iterations']} iteration{'s' if data['iterations'] > 1 else ''}"]
    if len(data["ranks"]) > 1:
        lines[0] += f" of {len(data['ranks'])} workers (ranks {', '.join(map(str, data['ranks']))})"
    if len(data["sampled"]) < data["iterations"]:
        lines[0] += f", {len(data['sampled'])} of them with gradient magnitudes"
    lines[0] += f"; times {data['timing']}"
    model = data["manifest"].get("magnitudes", {})
    if data["magnitudes"] == "model":
        fitted = f" fitted to {model['fitted_to']}" if "fitted_to" in model else ""
        lines[0] += f"; gradient magnitudes not measured: {model.get('model', 'a')} model{fitted}"
    else:
        lines[0] += f"; gradient magnitudes {data['magnitudes']}"
    kinds: dict[str, list[int]] = {}
    for group in data["groups"]:
        kinds.setdefault(str(group.get("kind", "group")), []).append(group["bytes"])
    for kind, sizes in kinds.items():
        lines.append(f"{len(sizes)} x {kind}: {size_text(min(sizes))} to {size_text(max(sizes))}")
    if graphs := data["graphs"]:
        calls = ", ".join(
            f"{total['count']:,} x {kind.replace('_', '-')} ({size_text(total['bytes'])})"
            for kind, total in graphs["calls"].items()
        )
        lines.append(f"graphs of {graphs['ranks']} ranks, {graphs['nodes']:,} nodes: {calls}")
    source = data["manifest"].get("source")
    if isinstance(source, dict) and "format" in source:
        lines.append(f"imported from {source['format']} ({source.get('file', 'unknown file')})")
        for verb in ("understood", "skipped", "doubtful"):
            counts = source.get(verb)
            if isinstance(counts, dict) and counts:
                by_count = sorted(counts.items(), key=lambda item: -item[1])
                lines += [f"  {verb}: {count:,} x {name}" for name, count in by_count[:MAX_COUNTS]]
                if len(by_count) > MAX_COUNTS:
                    lines.append(f"  {verb}: {len(by_count) - MAX_COUNTS} more kinds, see manifest.json")
    lines += describe_retiming(data["manifest"])
    compiled = data["manifest"].get("compiled")
    if isinstance(compiled, dict) and "forward_of_layers" in compiled:
        lines.append(f"forward times of layers in compiled modules: {compiled['forward_of_layers']}")
    if data["manifest"].get("note"):
        lines.append(f"note: {data['manifest']['note']}")
    return lines


def _figures(*headings: str) -> list[Column]:
    return [Column(heading, justify="right", no_wrap=True) for heading in headings]


def _communication_table(data: Json) -> Table:
    split = ", ".join(f"{name} {size}" for name, size in data["parallel"].items())
    texts = (Column(name, no_wrap=True) for name in ("pass", "collective", "dimension"))
    title = f"collectives that passes wait for, per worker (model split: {split})"
    table = Table(*texts, *_figures("count", "total buffer size"), title=title, box=SIMPLE)
    for row in data["communications"]:
        kind, group = (row[key].replace("_", "-") for key in ("kind", "group"))
        table.add_row(row["pass"], kind, group, f"{row['count']:,}", size_text(row["bytes"]))
    return table


def _phase_table(data: Json) -> Table:
    phases = data["phases"]
    table = Table("", *_figures(*map(escape, phases)), title="medians over the iterations of a phase", box=SIMPLE)
    table.add_row("training steps", *(f"{min(p['steps'])} to {max(p['steps'])}" for p in phases.values()))
    losses = [[loss for loss in p["loss"] if loss is not None] for p in phases.values()]
    table.add_row("loss (mean)", *(f"{np.mean(values):.3f}" if values else "-" for values in losses))
    for key, label in TIMES.items():
        table.add_row(f"{label} (ms)", *(_milliseconds(p[key]) for p in phases.values()))
    if len(data["ranks"]) > 1:
        spans = [list(p["iteration_ps_by_rank"].values()) for p in phases.values()]
        words = (f"{_milliseconds(min(values))} to {_milliseconds(max(values))}" for values in spans)
        table.add_row("iteration, fastest to slowest worker (ms)", *words)
    table.add_row("mean |g|", *(f"{p['mean_magnitude']:.2e}" for p in phases.values()))
    table.add_row("|g| in the largest tenth", *(share_text(p["magnitude_spread"]) for p in phases.values()))
    return table


def _origin(manifest: Json) -> str:
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


def _layer_table(data: Json) -> Table:
    names = list(data["phases"])
    texts = Column("layer", justify="right"), Column("name", overflow="fold")
    figures = _figures("size", "forward", *(f"ready {name}" for name in names))
    title = "layers in forward order; times in ms, ready = gradient complete"
    table = Table(*texts, *figures, title=title, box=SIMPLE, pad_edge=False)
    for row in data["layer_table"]:
        ready = [_milliseconds(row["ready_ps"][name]) if name in row["ready_ps"] else "-" for name in names]
        forward = _milliseconds(row["forward_ps"])
        table.add_row(str(row["layer"]), escape(row["name"]), size_text(row["bytes"]), forward, *ready)
    return table


def layer_title(name: str) -> str:
    """Return a layer's name without the arguments that other tools add: "node4 Conv2d(64, 64)" is "node4 Conv2d"."""
    return name.partition("(")[0].strip() or name


def layer_blocks(names: list[str], limit: int = MAX_LAYER_ROWS) -> list[tuple[str, int, int]]:
    """Return (name, first layer, last layer) of at most `limit` runs of neighbouring layers. Layers of a run agree in
    the first parts of their dotted names, in as many parts as `limit` allows. If even the first parts differ too often,
    runs of equal length are named after their first and last layer."""
    names = [layer_title(name) for name in names]
    parts = [name.split(".") for name in names]
    best: list[tuple[str, int, int]] = []
    for depth in range(1, max(len(name_parts) for name_parts in parts) + 1):
        runs: list[tuple[str, int, int]] = []
        for number, name_parts in enumerate(parts):
            name = ".".join(name_parts[:depth])
            if runs and runs[-1][0] == name:
                runs[-1] = (name, runs[-1][1], number)
            else:
                runs.append((name, number, number))
        if len(runs) > limit:
            break
        best = runs
    if best:
        return best
    bounds = np.linspace(0, len(names), limit + 1).round().astype(int)
    return [
        (names[first] + (f" to {names[after - 1]}" if after - 1 > first else ""), int(first), int(after) - 1)
        for first, after in itertools.pairwise(bounds)
    ]


def _block_table(data: Json) -> Table:
    rows, names = data["layer_table"], list(data["phases"])
    title = "blocks of layers in forward order (--layers: one row each); times in ms, ready = gradients complete"
    figures = _figures("size", "share", "forward", *(f"ready {name}" for name in names))
    columns = (*_figures("layers"), Column("name", overflow="fold"), *figures)
    table = Table(*columns, title=title, box=SIMPLE, pad_edge=False)
    for name, first, last in layer_blocks([row["name"] for row in rows]):
        inside = rows[first : last + 1]
        size = sum(row["bytes"] for row in inside)
        ready = [[row["ready_ps"][phase] for row in inside if phase in row["ready_ps"]] for phase in names]
        table.add_row(
            f"{first}-{last}" if last > first else str(first),
            escape(name),
            size_text(size),
            share_text(size / data["total_bytes"]),
            _milliseconds(sum(row["forward_ps"] for row in inside)),
            *(_milliseconds(max(times)) if times else "-" for times in ready),
        )
    return table
