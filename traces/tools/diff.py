"""Compares the tensors, times and gradient magnitudes of two traces, for `gradwire trace diff A B`.

Tensors are matched by name. Two traces without common names but with the same sizes in the same order (a captured trace
and an imported one, say) are matched by position instead, and the result says so. Phases are matched by name as well;
if the traces share none, all iterations of each are compared as one phase, "all".
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from rich.box import SIMPLE
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from gradwire.scenarios.json_data import Json
from gradwire.scenarios.readable import size_text
from gradwire.scenarios.terminal_text import console as escaping_console
from gradwire.traces.tools.info import phase_times, sampled_of, tensor_means
from gradwire.traces.trace import Trace

TIMES = {
    "forward_ps": "forward",
    "backward_ps": "backward",
    "optimizer_ps": "optimiser",
    "iteration_ps": "iteration",
    "first_ready_ps": "first gradient ready",
    "last_ready_ps": "last gradient ready",
}
MAX_LISTED = 10  # tensors listed
MIN_CHUNKS = 10  # minimum for a rank correlation of a tensor's chunks


def diff(a: Trace, b: Trace) -> Json:
    """Return the differences of `b` from `a`, fit for JSON: sizes in bytes, times in picoseconds (medians over a
    phase).

    identical       true if both hold the same data (equal digests)
    tensors         matched_by ("name", "place" or "nothing"), common, only_in_a, only_in_b (names), changed (shape or
                    dtype), reordered (true if the order of common tensors differs)
    phases          names in both, only_in_a, only_in_b
    timing          per phase and time: a, b, ratio b / a (None where a is 0)
    magnitudes      per phase: mean |g| over the elements of all matched tensors in a and b, ratio; rank_correlation of
                    chunk means, averaged over tensors by bytes: 1 if the same chunks are large in both, 0 if unrelated;
                    tensors: per matched tensor of equal shape the means and log2 of their ratio, the largest shift
                    first

    A ratio is None where it would divide by zero, log2_ratio None where either mean is zero.
    """
    pairs, matched_by = _match(a, b)
    phases = _phases(a, b)
    return {
        "a": _summary(a),
        "b": _summary(b),
        "identical": a.digest() == b.digest(),
        "tensors": _tensors(a, b, pairs, matched_by),
        "phases": {
            "common": [name for name in a.phases if name in b.phases],
            "only_in_a": [name for name in a.phases if name not in b.phases],
            "only_in_b": [name for name in b.phases if name not in a.phases],
        },
        "timing": {name: _timing(a, first, b, second) for name, (first, second) in phases.items()},
        "magnitudes": {name: _magnitudes(a, first, b, second, pairs) for name, (first, second) in phases.items()},
    }


def _summary(trace: Trace) -> Json:
    return {
        "name": trace.name,
        "digest": trace.digest(),
        "layers": len(trace.layers),
        "tensors": len(trace.tensors),
        "total_bytes": trace.total_bytes,
        "iterations": len(trace.iterations),
        "ranks": trace.ranks,
        "timing": str(trace.manifest.get("timing", "measured")),
        "magnitudes": trace.magnitude_source,
    }


def _match(a: Trace, b: Trace) -> tuple[list[tuple[int, int]], str]:
    """Return the pairs of compared tensor indices, in the order of `a`, and the way they were matched."""
    number_in_b = {tensor.name: number for number, tensor in enumerate(b.tensors)}
    pairs = [
        (number, number_in_b[tensor.name]) for number, tensor in enumerate(a.tensors) if tensor.name in number_in_b
    ]
    if pairs:
        return pairs, "name"
    if [tensor.numel for tensor in a.tensors] == [tensor.numel for tensor in b.tensors]:
        return [(number, number) for number in range(len(a.tensors))], "place"
    return [], "nothing"


def _tensors(a: Trace, b: Trace, pairs: list[tuple[int, int]], matched_by: str) -> Json:
    in_a, in_b = {first for first, _ in pairs}, {second for _, second in pairs}
    changed = []
    for first, second in pairs:
        tensor_a, tensor_b = a.tensors[first], b.tensors[second]
        if (tensor_a.shape, tensor_a.dtype) != (tensor_b.shape, tensor_b.dtype):
            entry: Json = {"name": tensor_a.name}
            for side, tensor in (("a", tensor_a), ("b", tensor_b)):
                entry[side] = {"shape": list(tensor.shape), "dtype": tensor.dtype, "bytes": tensor.bytes}
            changed.append(entry)
    return {
        "matched_by": matched_by,
        "common": len(pairs),
        "only_in_a": [tensor.name for number, tensor in enumerate(a.tensors) if number not in in_a],
        "only_in_b": [tensor.name for number, tensor in enumerate(b.tensors) if number not in in_b],
        "changed": changed,
        "reordered": [second for _, second in pairs] != sorted(second for _, second in pairs),
    }


def _phases(a: Trace, b: Trace) -> dict[str, tuple[list[int], list[int]]]:
    """Return the phases to compare, with the iterations of each trace."""
    phases_a, phases_b = a.phases, b.phases
    common = {name: (phases_a[name], phases_b[name]) for name in phases_a if name in phases_b}
    return common or {"all": (list(range(len(a.iterations))), list(range(len(b.iterations))))}


def _timing(a: Trace, first: list[int], b: Trace, second: list[int]) -> Json:
    times_a, times_b = phase_times(a, first), phase_times(b, second)
    return {key: {"a": times_a[key], "b": times_b[key], "ratio": _ratio(times_a[key], times_b[key])} for key in TIMES}


def _magnitudes(a: Trace, first: list[int], b: Trace, second: list[int], pairs: list[tuple[int, int]]) -> Json:
    equal_pairs = [(in_a, in_b) for in_a, in_b in pairs if a.tensors[in_a].numel == b.tensors[in_b].numel]
    sampled_a, sampled_b = sampled_of(a, first), sampled_of(b, second)
    means_a = np.median([tensor_means(a, index) for index in sampled_a], axis=0)
    means_b = np.median([tensor_means(b, index) for index in sampled_b], axis=0)
    sizes = np.array([a.tensors[in_a].numel for in_a, _ in equal_pairs], dtype=np.float64)
    overall_a = float(np.average([means_a[in_a] for in_a, _ in equal_pairs], weights=sizes)) if equal_pairs else None
    overall_b = float(np.average([means_b[in_b] for _, in_b in equal_pairs], weights=sizes)) if equal_pairs else None
    rows, correlations, weights = [], [], []
    for in_a, in_b in equal_pairs:
        mean_a, mean_b = float(means_a[in_a]), float(means_b[in_b])
        rows.append(
            {
                "name": a.tensors[in_a].name,
                "a": mean_a,
                "b": mean_b,
                "log2_ratio": math.log2(mean_b / mean_a) if mean_a > 0 and mean_b > 0 else None,
            }
        )
        correlation = _rank_correlation(_chunk_average(a, sampled_a, in_a), _chunk_average(b, sampled_b, in_b))
        if correlation is not None:
            correlations.append(correlation)
            weights.append(a.tensors[in_a].bytes)
    rows.sort(key=_shift, reverse=True)
    return {
        "a": overall_a,
        "b": overall_b,
        "ratio": _ratio(overall_a, overall_b),
        "rank_correlation": float(np.average(correlations, weights=weights)) if correlations else None,
        "tensors": rows,
    }


def _shift(row: Json) -> float:
    """Return the change of a tensor's magnitude in powers of two; infinite from or to zero."""
    if row["log2_ratio"] is not None:
        return abs(float(row["log2_ratio"]))
    return 0.0 if row["a"] == row["b"] else math.inf


def _chunk_average(trace: Trace, members: list[int], tensor: int) -> NDArray[np.float32]:
    """Return the sum of a tensor's chunk means over iterations, still scaled: only their order counts here."""
    total = np.zeros(trace.tensors[tensor].chunks, dtype=np.float32)
    for index in members:
        total += trace.chunk_mean(index, tensor)
    return total


def _rank_correlation(a: NDArray[np.float32], b: NDArray[np.float32]) -> float | None:
    """Return Spearman's rank correlation, equal values sharing ranks; None for short or constant tensors."""
    if len(a) < MIN_CHUNKS:
        return None
    x, y = _ranks(a), _ranks(b)
    x -= x.mean()
    y -= y.mean()
    scale = math.sqrt(float(x @ x) * float(y @ y))
    return float(x @ y) / scale if scale > 0 else None


def _ranks(values: NDArray[np.float32]) -> NDArray[np.float64]:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return np.asarray((last - (counts - 1) / 2)[inverse], dtype=np.float64)


def _ratio(a: float | None, b: float | None) -> float | None:
    return b / a if a and b is not None else None


def print_diff(data: Json, console: Console | None = None) -> None:
    """Print the result of `diff` as tables."""
    console = console or escaping_console()
    a, b, tensors = data["a"], data["b"], data["tensors"]
    if data["identical"]:
        console.print(f"{escape(a['name'])} and {escape(b['name'])} hold the same data")
        return
    console.print(_summary_table(a, b))
    console.print(escape(_match_text(tensors)))
    for side, names in (("A", tensors["only_in_a"]), ("B", tensors["only_in_b"])):
        if names:
            console.print(escape(f"only in {side}: {_listed(names)}"))
    for entry in tensors["changed"][:MAX_LISTED]:
        sides = [f"{entry[s]['shape']} {entry[s]['dtype']}, {size_text(entry[s]['bytes'])}" for s in "ab"]
        console.print(escape(f"changed: {entry['name']}: {' -> '.join(sides)}"))
    if len(tensors["changed"]) > MAX_LISTED:
        console.print(f"changed: {len(tensors['changed']) - MAX_LISTED} more")
    for side in ("a", "b"):
        names = data["phases"][f"only_in_{side}"]
        if names:
            console.print(escape(f"phases only in {side.upper()}: {_listed(names)}"))
    console.print(_timing_table(data))
    if tensors["common"]:
        console.print(_magnitude_table(data))
    for phase, comparison in data["magnitudes"].items():
        if comparison["tensors"]:
            console.print(_shift_table(phase, comparison["tensors"]))


def _match_text(tensors: Json) -> str:
    if tensors["matched_by"] == "nothing":
        return "no common tensors: names and sizes differ"
    how = "by name" if tensors["matched_by"] == "name" else "by position and size, no common names"
    order = ", reordered" if tensors["reordered"] else ""
    return f"{tensors['common']} common tensors ({how}{order}), {len(tensors['changed'])} of them changed"


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - MAX_LISTED} more" if len(names) > MAX_LISTED else ""
    return ", ".join(names[:MAX_LISTED]) + more


def _summary_table(a: Json, b: Json) -> Table:
    names = (f"{side}: {escape(summary['name'])}" for side, summary in (("A", a), ("B", b)))
    table = Table("", *(Column(name, justify="right") for name in names), box=SIMPLE, pad_edge=False)
    for key in ("layers", "tensors", "iterations"):
        table.add_row(key, str(a[key]), str(b[key]))
    table.add_row("gradients per iteration", size_text(a["total_bytes"]), size_text(b["total_bytes"]))
    table.add_row("workers recorded", str(len(a["ranks"])), str(len(b["ranks"])))
    for label in ("timing", "magnitudes"):
        table.add_row(label, escape(a[label]), escape(b[label]))
    return table


def _timing_table(data: Json) -> Table:
    figures = (Column(heading, justify="right") for heading in ("A", "B", "B / A"))
    table = Table("phase", "time", *figures, title="times in ms, medians over a phase", box=SIMPLE, pad_edge=False)
    for phase, times in data["timing"].items():
        for number, (key, label) in enumerate(TIMES.items()):
            time = times[key]
            words = [f"{time[side] / 1e9:.4g}" for side in "ab"]
            table.add_row(escape(phase) if number == 0 else "", label, *words, _times_text(time["ratio"]))
    return table


def _magnitude_table(data: Json) -> Table:
    headings = ("mean |g| A", "B", "B / A", "rank correlation of chunks")
    figures = (Column(heading, justify="right") for heading in headings)
    title = "gradient magnitudes of the common tensors"
    table = Table("phase", *figures, title=title, box=SIMPLE, pad_edge=False)
    for phase, comparison in data["magnitudes"].items():
        means = [f"{comparison[side]:.2e}" if comparison[side] is not None else "-" for side in "ab"]
        correlation = f"{comparison['rank_correlation']:.2f}" if comparison["rank_correlation"] is not None else "-"
        table.add_row(escape(phase), *means, _times_text(comparison["ratio"]), correlation)
    return table


def _shift_table(phase: str, rows: list[Json]) -> Table:
    title = f"{escape(phase)}: tensors whose mean |g| shifted most"
    figures = (Column(heading, justify="right", no_wrap=True) for heading in ("A", "B", "B / A"))
    table = Table(Column("tensor", overflow="fold"), *figures, title=title, box=SIMPLE, pad_edge=False)
    for row in rows[:MAX_LISTED]:
        ratio = _ratio(row["a"], row["b"])
        table.add_row(escape(row["name"]), f"{row['a']:.2e}", f"{row['b']:.2e}", _times_text(ratio))
    return table


def _times_text(ratio: float | None) -> str:
    return "-" if ratio is None else f"x {ratio:.3g}"
