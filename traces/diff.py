"""What `gradwire trace diff A B` says: which tensors differ, how much longer B takes, how its gradients differ in size.

Tensors are matched by name. Two traces that share no name but hold the same sizes in the same order (a captured trace
and an imported one, say) are matched by their place instead, and the answer says so. Phases are matched by name as
well; if the traces share none, all iterations of each are compared as one phase, "all".
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from rich.box import SIMPLE
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from gradwire.scenarios.json_data import Json
from gradwire.scenarios.readable import size_text
from gradwire.scenarios.terminal_text import console as escaping_console
from gradwire.traces.info import tensor_means
from gradwire.traces.trace import Trace

TIMES = {
    "forward_ps": "forward",
    "backward_ps": "backward",
    "optimizer_ps": "optimiser",
    "iteration_ps": "iteration",
    "first_ready_ps": "first gradient ready",
    "last_ready_ps": "last gradient ready",
}
FEW = 10  # tensors listed where there may be many
MIN_CHUNKS = 10  # below that, the order of a tensor's chunks says little


def diff(a: Trace, b: Trace) -> Json:
    """Plain data: how `b` differs from `a`. Sizes are bytes, times picoseconds (medians over a phase's iterations).

    identical       whether both hold the same data (equal digests)
    tensors         matched_by ("name", "place" or "nothing"), common, only_in_a, only_in_b (names), changed (shape or
                    dtype), reordered (whether common tensors stand in another order)
    phases          names in both, only_in_a, only_in_b
    timing          per phase and time: a, b, ratio b / a (None where a is 0)
    magnitudes      per phase: mean |g| over the elements of all matched tensors in a and b, ratio; rank_correlation of
                    chunk means, averaged over tensors by bytes: 1 if the same chunks are large in both, 0 if it is a
                    matter of chance; tensors: per matched tensor of equal shape the means and log2 of their ratio, the
                    largest shift first

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
        "timing": {
            name: {
                key: {"a": mine, "b": theirs, "ratio": _ratio(mine, theirs)}
                for key, mine, theirs in _times(a, first, b, second)
            }
            for name, (first, second) in phases.items()
        },
        "magnitudes": {
            name: _magnitudes(a, first, b, second, pairs) for name, (first, second) in phases.items()
        },
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
    """Pairs of tensor indices that are compared, in the order of `a`, and what matched them."""
    there = {tensor.name: number for number, tensor in enumerate(b.tensors)}
    pairs = [(number, there[tensor.name]) for number, tensor in enumerate(a.tensors) if tensor.name in there]
    if pairs:
        return pairs, "name"
    if [tensor.numel for tensor in a.tensors] == [tensor.numel for tensor in b.tensors]:
        return [(number, number) for number in range(len(a.tensors))], "place"
    return [], "nothing"


def _tensors(a: Trace, b: Trace, pairs: list[tuple[int, int]], matched_by: str) -> Json:
    mine, theirs = {first for first, _ in pairs}, {second for _, second in pairs}
    changed = []
    for first, second in pairs:
        one, other = a.tensors[first], b.tensors[second]
        if (one.shape, one.dtype) != (other.shape, other.dtype):
            entry: Json = {"name": one.name}
            for side, tensor in (("a", one), ("b", other)):
                entry[side] = {"shape": list(tensor.shape), "dtype": tensor.dtype, "bytes": tensor.bytes}
            changed.append(entry)
    return {
        "matched_by": matched_by,
        "common": len(pairs),
        "only_in_a": [tensor.name for number, tensor in enumerate(a.tensors) if number not in mine],
        "only_in_b": [tensor.name for number, tensor in enumerate(b.tensors) if number not in theirs],
        "changed": changed,
        "reordered": [second for _, second in pairs] != sorted(second for _, second in pairs),
    }


def _phases(a: Trace, b: Trace) -> dict[str, tuple[list[int], list[int]]]:
    """Phases to compare, with the iterations of each trace."""
    mine, theirs = a.phases, b.phases
    common = {name: (mine[name], theirs[name]) for name in mine if name in theirs}
    return common or {"all": (list(range(len(a.iterations))), list(range(len(b.iterations))))}


def _times(a: Trace, first: list[int], b: Trace, second: list[int]) -> list[tuple[str, int, int]]:
    mine, theirs = _phase_times(a, first), _phase_times(b, second)
    return [(key, mine[key], theirs[key]) for key in TIMES]


def _phase_times(trace: Trace, members: list[int]) -> dict[str, int]:
    """Medians over `members`, each of TIMES."""
    rows = []
    for index in members:
        iteration = trace.iterations[index]
        forward = int(iteration.forward_end_ps.max())
        rows.append(
            (
                forward,
                iteration.backward_end_ps - forward,
                iteration.optimizer_ps,
                iteration.end_ps,
                int(iteration.ready_ps.min()),
                int(iteration.ready_ps.max()),
            )
        )
    medians = np.median(np.array(rows, dtype=np.float64), axis=0)
    return {key: int(value) for key, value in zip(TIMES, medians, strict=True)}


def _magnitudes(
    a: Trace, first: list[int], b: Trace, second: list[int], pairs: list[tuple[int, int]]
) -> Json:
    alike = [(mine, theirs) for mine, theirs in pairs if a.tensors[mine].numel == b.tensors[theirs].numel]
    here, there = _sampled(a, first), _sampled(b, second)
    means_a = np.median([tensor_means(a, index) for index in here], axis=0)
    means_b = np.median([tensor_means(b, index) for index in there], axis=0)
    sizes = np.array([a.tensors[mine].numel for mine, _ in alike], dtype=np.float64)
    overall_a = float(np.average([means_a[mine] for mine, _ in alike], weights=sizes)) if alike else None
    overall_b = float(np.average([means_b[theirs] for _, theirs in alike], weights=sizes)) if alike else None
    rows, correlations, weights = [], [], []
    for mine, theirs in alike:
        one, other = float(means_a[mine]), float(means_b[theirs])
        rows.append(
            {
                "name": a.tensors[mine].name,
                "a": one,
                "b": other,
                "log2_ratio": math.log2(other / one) if one > 0 and other > 0 else None,
            }
        )
        correlation = _rank_correlation(_chunk_average(a, here, mine), _chunk_average(b, there, theirs))
        if correlation is not None:
            correlations.append(correlation)
            weights.append(a.tensors[mine].bytes)
    rows.sort(key=lambda row: _shift(row), reverse=True)
    return {
        "a": overall_a,
        "b": overall_b,
        "ratio": _ratio(overall_a, overall_b),
        "rank_correlation": float(np.average(correlations, weights=weights)) if correlations else None,
        "tensors": rows,
    }


def _shift(row: Json) -> float:
    """How far the magnitude of a tensor has moved, in powers of two; infinitely far from or to zero."""
    if row["log2_ratio"] is not None:
        return abs(float(row["log2_ratio"]))
    return 0.0 if row["a"] == row["b"] else math.inf


def _sampled(trace: Trace, members: list[int]) -> list[int]:
    own = set(trace.sampled)
    return [index for index in members if index in own]


def _chunk_average(trace: Trace, members: list[int], tensor: int) -> NDArray[np.float32]:
    """Chunk means of a tensor, averaged over iterations, still scaled: only their order counts here."""
    total = np.zeros(trace.tensors[tensor].chunks, dtype=np.float32)
    for index in members:
        total += trace.chunk_mean(index, tensor)
    return total


def _rank_correlation(a: NDArray[np.float32], b: NDArray[np.float32]) -> float | None:
    """Spearman's: of the ranks, equal values sharing theirs. None for short tensors and where all values are equal."""
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
    """Print what `diff` returned as tables for people."""
    console = console or escaping_console()
    a, b, tensors = data["a"], data["b"], data["tensors"]
    if data["identical"]:
        console.print(f"{escape(a['name'])} and {escape(b['name'])} hold the same data")
        return
    console.print(_summary_table(a, b))
    console.print(escape(_matched(tensors)))
    for side, names in (("A", tensors["only_in_a"]), ("B", tensors["only_in_b"])):
        if names:
            console.print(escape(f"only in {side}: {_some(names)}"))
    for entry in tensors["changed"][:FEW]:
        sides = [f"{entry[s]['shape']} {entry[s]['dtype']}, {size_text(entry[s]['bytes'])}" for s in "ab"]
        console.print(escape(f"changed: {entry['name']}: {' -> '.join(sides)}"))
    if len(tensors["changed"]) > FEW:
        console.print(f"changed: {len(tensors['changed']) - FEW} more")
    for side in ("a", "b"):
        names = data["phases"][f"only_in_{side}"]
        if names:
            console.print(escape(f"phases only in {side.upper()}: {_some(names)}"))
    console.print(_timing_table(data))
    if tensors["common"]:
        console.print(_magnitude_table(data))
    for phase, found in data["magnitudes"].items():
        if found["tensors"]:
            console.print(_shift_table(phase, found["tensors"]))


def _matched(tensors: Json) -> str:
    if tensors["matched_by"] == "nothing":
        return "no tensor in common: neither names nor sizes agree"
    how = "by name" if tensors["matched_by"] == "name" else "by place and size, as no name agrees"
    order = ", in another order" if tensors["reordered"] else ""
    return f"{tensors['common']} tensors in common ({how}{order}), {len(tensors['changed'])} of them changed"


def _some(names: list[str]) -> str:
    more = f" and {len(names) - FEW} more" if len(names) > FEW else ""
    return ", ".join(names[:FEW]) + more


def _summary_table(a: Json, b: Json) -> Table:
    table = Table(box=SIMPLE, pad_edge=False)
    table.add_column("")
    for side, each in (("A", a), ("B", b)):
        table.add_column(f"{side}: {escape(each['name'])}", justify="right")
    for label, key in (("layers", "layers"), ("tensors", "tensors"), ("iterations", "iterations")):
        table.add_row(label, str(a[key]), str(b[key]))
    table.add_row("gradients per iteration", size_text(a["total_bytes"]), size_text(b["total_bytes"]))
    table.add_row("workers recorded", str(len(a["ranks"])), str(len(b["ranks"])))
    for label in ("timing", "magnitudes"):
        table.add_row(label, escape(a[label]), escape(b[label]))
    return table


def _timing_table(data: Json) -> Table:
    table = Table(title="times in ms, medians over a phase", box=SIMPLE, pad_edge=False)
    for heading in ("phase", "time"):
        table.add_column(heading)
    for heading in ("A", "B", "B / A"):
        table.add_column(heading, justify="right")
    for phase, times in data["timing"].items():
        for number, (key, label) in enumerate(TIMES.items()):
            time = times[key]
            words = [f"{time[side] / 1e9:.4g}" for side in "ab"]
            table.add_row(escape(phase) if number == 0 else "", label, *words, _times_text(time["ratio"]))
    return table


def _magnitude_table(data: Json) -> Table:
    table = Table(title="gradient magnitudes of the tensors in common", box=SIMPLE, pad_edge=False)
    table.add_column("phase")
    for heading in ("mean |g| A", "B", "B / A", "rank correlation of chunks"):
        table.add_column(heading, justify="right")
    for phase, found in data["magnitudes"].items():
        means = [f"{found[side]:.2e}" if found[side] is not None else "-" for side in "ab"]
        correlation = f"{found['rank_correlation']:.2f}" if found["rank_correlation"] is not None else "-"
        table.add_row(escape(phase), *means, _times_text(found["ratio"]), correlation)
    return table


def _shift_table(phase: str, rows: list[Json]) -> Table:
    title = f"{escape(phase)}: tensors whose mean |g| shifted most"
    table = Table(title=title, box=SIMPLE, pad_edge=False)
    table.add_column("tensor", overflow="fold")
    for heading in ("A", "B", "B / A"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows[:FEW]:
        ratio = _ratio(row["a"], row["b"])
        table.add_row(escape(row["name"]), f"{row['a']:.2e}", f"{row['b']:.2e}", _times_text(ratio))
    return table


def _times_text(ratio: float | None) -> str:
    return "-" if ratio is None else f"x {ratio:.3g}"
