"""A plain table of tensors, for whoever has numbers but no tool of the others: CSV with a header.

    name,layer,shape,dtype,forward_us,backward_us
    conv1.weight,conv1,64x3x7x7,float32,900,450
    fc.weight,fc,1000x2048,float32,100,80
    fc.bias,fc,1000,float32,,

One row per gradient, rows in forward order; separated by commas, semicolons or tabs. Columns:

* `name`, each once, and one of `shape` (64x3x7x7), `numel` (or `elements`), `bytes` (or `size`);
* `dtype`: float32 unless said otherwise with --dtype;
* `layer`: rows with the same layer share its forward pass; by default the name up to its last dot;
* `forward_us`, `backward_us`: what the row adds to its layer's forward pass and to the backward pass, after
  which its gradient is ready. Or `ready_us`: when the gradient is ready after the start of the iteration. All
  three in `_s`, `_ms`, `_us`, `_ns` or `_ps`;
* `mean`: mean |g|, if it is known; otherwise it comes from the model.

Without times the compute takes no time, and the trace says so. Other columns are left out, by name.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from gradwire.scenarios.errors import TraceError
from gradwire.traces.formats.draft import Draft, Gradient, Timing, gradient_of_bytes
from gradwire.traces.formats.sink import write_files
from gradwire.traces.formats.source import first_line, opened
from gradwire.traces.parts import ELEMENT_BYTES

if TYPE_CHECKING:
    from gradwire.traces.formats.base import ReadOptions, WriteOptions
    from gradwire.traces.trace import Trace

UNITS = {"s": 10**12, "ms": 10**9, "us": 10**6, "ns": 10**3, "ps": 1}
_SIZES = {"shape": "shape", "numel": "numel", "elements": "numel", "bytes": "bytes", "size": "bytes"}
_DTYPES = {
    "bf16": "bfloat16",
    "fp16": "float16",
    "half": "float16",
    "fp32": "float32",
    "float": "float32",
    "fp64": "float64",
    "double": "float64",
}
_TIMES = ("forward", "backward", "ready")
_KNOWN = ("name", "layer", "dtype", "mean", *_SIZES)


def recognise(path: Path, head: bytes) -> bool:
    line = first_line(head)
    columns = _header(_cells(line, _separator(line), str(path)))
    return "name" in columns and bool(set(columns) & set(_SIZES))


def _separator(line: str) -> str:
    return max(",;\t", key=line.count)


def _cells(line: str, separator: str, where: str) -> list[str]:
    try:
        return [cell.strip() for cell in next(csv.reader([line], delimiter=separator), [])]
    except csv.Error as error:  # a cell of more than 128 KiB, for one
        raise TraceError(f"is no line of a table ({error})", where, "cells separated by commas") from None


def _header(cells: list[str]) -> list[str]:
    return [cell.lower() for cell in cells]


def read(path: Path, options: ReadOptions) -> Draft:
    """The draft of a table: one iteration. TraceError for a cell that is not what its column needs."""
    draft = Draft("csv")
    with opened(path, options.progress, options.notes) as source:
        lines = [(number, line) for number, line in source.lines() if line.strip()]
    if not lines:  # a byte-order mark alone, for one
        raise TraceError("has no line with anything in it", str(path), "a header, and a row per tensor")
    separator = _separator(lines[0][1])
    columns = _header(_cells(lines[0][1], separator, f"{path}, line {lines[0][0]}"))
    times, sizes = _columns(columns, str(path), draft.skipped)
    layers: dict[str, int] = {}
    named: dict[str, int] = {}
    forward: list[int] = []
    backward: list[int] = []
    ready: list[int | None] = []
    for number, line in lines[1:]:
        where = f"{path}, line {number}"
        cells = _cells(line, separator, where)
        if line.count('"') % 2:
            raise TraceError("a quote that is not closed", where, "a row on one line, quotes in pairs")
        if len(cells) > len(columns):
            raise TraceError(f"{len(cells)} cells", where, f"{len(columns)}, as the header has columns")
        row = dict(zip(columns, cells, strict=False))
        name = row.get("name") or f"row{number}"
        if named.setdefault(name, number) != number:
            raise TraceError(f"{name!r} stands on line {named[name]} already", where, "each name once")
        layer = layers.setdefault(row.get("layer") or name.rpartition(".")[0] or name, len(layers))
        if layer == len(forward):
            forward.append(0)
        draft.gradients.append(_gradient(row, name, layer, sizes, options.dtype, where, draft.skipped))
        spent = {kind: _time(row, column, where) for kind, column in times.items()}
        forward[layer] += spent.get("forward") or 0
        backward.append(spent.get("backward") or 0)
        ready.append(spent.get("ready"))
    draft.layers = list(layers)
    draft.understood = Counter(rows=len(draft.gradients), columns=len(columns))
    if draft.gradients:
        _set_times(draft, forward, backward, ready, times)
    return draft


def _columns(
    columns: list[str], where: str, skipped: Counter[str]
) -> tuple[dict[str, tuple[str, int]], dict[str, str]]:
    """Columns of times, {"forward": ("forward_us", picoseconds)}, and of sizes, {"bytes": "size"}."""
    times: dict[str, tuple[str, int]] = {}
    sizes: dict[str, str] = {}
    for column in columns:
        kind, _, unit = column.rpartition("_")
        if kind in _TIMES and unit in UNITS:
            times[kind] = (column, UNITS[unit])
        elif column in _SIZES:
            sizes[_SIZES[column]] = column
        elif column not in _KNOWN:
            skipped[f"column {column or '(without a name)'}"] += 1
    doubles = [column for column, count in Counter(columns).items() if count > 1 and column]
    if "name" not in columns or not sizes or doubles:
        what = f"columns {', '.join(columns)[:200]}"
        raise TraceError(what, where, "name, each column once, and one of " + ", ".join(_SIZES))
    return times, sizes


def _gradient(
    row: dict[str, str],
    name: str,
    layer: int,
    sizes: dict[str, str],
    dtype: str,
    where: str,
    skipped: Counter[str],
) -> Gradient:
    kind = row.get("dtype", "").removeprefix("torch.").lower() or dtype
    kind = _DTYPES.get(kind, kind)
    if kind not in ELEMENT_BYTES:
        raise TraceError(f"dtype {kind!r}", where, ", ".join(ELEMENT_BYTES))
    mean = _number(row["mean"], "mean", where) if row.get("mean") else None
    shape: tuple[int, ...] = ()
    said = {
        each: _whole(row[sizes[each]], sizes[each], where)
        for each in ("numel", "bytes")
        if each in sizes and row.get(sizes[each])
    }
    if "shape" in sizes and (text := row.get(sizes["shape"], "")):
        text = re.sub(r"^(?:torch\.)?Size(?=\()", "", text.strip())
        shape = tuple(int(part) for part in re.findall(r"\d+", text))
        is_scalar = re.fullmatch(r"[(\[\s\])]+", text) is not None  # (), of one element as in PyTorch
        if re.search(r"[^\d\sx×*,()\[\]]", text.lower()) or not (shape or is_scalar):
            raise TraceError(f"shape {text!r}", where, "a shape such as 64x3x7x7")
        numel = math.prod(shape)
    elif "numel" in said:
        numel = said["numel"]
    elif "bytes" in said:
        numel = gradient_of_bytes(name, said["bytes"], kind, layer, skipped).numel
    else:
        raise TraceError("no size", where, "one of " + ", ".join(_SIZES))
    for each, width in (("numel", 1), ("bytes", ELEMENT_BYTES[kind])):
        if each in said and -(-said[each] // width) != numel:
            what = f"{sizes[each]} is {said[each]}, where the rest of the row makes it {numel * width}"
            raise TraceError(what, where, "sizes that agree")
    if not 0 < numel < 2**48:
        raise TraceError(f"{numel} elements", where, "a tensor with elements")
    return Gradient(name, numel, kind, layer, shape, mean)


def _number(text: str, column: str, where: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < 1e18:
        form = ", with a decimal point and without separators of thousands" if "," in text else ""
        raise TraceError(f"{column} is {text!r}", where, f"a number from 0{form}")
    return value


def _whole(text: str, column: str, where: str) -> int:
    value = _number(text.replace("_", ""), column, where)
    if value != int(value):
        raise TraceError(f"{column} is {text!r}", where, "a whole number")
    return int(value)


def _time(row: dict[str, str], column: tuple[str, int], where: str) -> int | None:
    text = row.get(column[0], "")
    return round(_number(text, column[0], where) * column[1]) if text else None


def _set_times(
    draft: Draft,
    forward: list[int],
    backward: list[int],
    ready: list[int | None],
    times: dict[str, tuple[str, int]],
) -> None:
    ends, clock = [], 0
    for spent in forward:
        clock += spent
        ends.append(clock)
    moments, now = [0] * len(ready), clock
    for number in range(len(ready) - 1, -1, -1):
        now += backward[number]
        moment = ready[number]
        moments[number] = now if moment is None else moment
    end = max(now, *moments, 0)
    begin = [end - spent for end, spent in zip(ends, forward, strict=True)]
    draft.iterations = [Timing(begin, ends, moments, end)]
    missing = [kind for kind in ("forward", "backward") if kind not in times]
    if "ready" in times and "backward" in missing:
        missing.remove("backward")
    draft.how = "as the table says"
    if missing:
        draft.timing = "estimated"
        draft.how += f"; it has no times of the {' and '.join(missing)} pass, which take none here"
        draft.skipped[f"time of the {' and '.join(missing)} pass is not in the table: 0"] += 1


def write(trace: Trace, out: Path, options: WriteOptions) -> list[Path]:
    """One row per tensor with its readiness and mean |g| in the first of the chosen iterations.

    The table cannot hold: chunk magnitudes, several iterations, the optimiser's time, pauses in the forward
    pass. A name that stands there already gets a number, since each may come once only.
    """
    iteration = trace.iterations[options.iterations[0]]
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["name", "layer", "shape", "dtype", "forward_ps", "ready_ps", "mean"])
    seen: set[int] = set()
    named: Counter[str] = Counter()
    for number, tensor in enumerate(trace.tensors):
        spent = iteration.forward_end_ps[tensor.layer] - iteration.forward_start_ps[tensor.layer]
        mean, _ = trace.magnitudes(iteration.index, number)
        named[tensor.name] += 1
        table.writerow(
            [
                tensor.name if named[tensor.name] == 1 else f"{tensor.name} ({named[tensor.name]})",
                trace.layers[tensor.layer],
                "x".join(map(str, tensor.shape or (1,))),
                tensor.dtype,
                0 if tensor.layer in seen else int(spent),
                int(iteration.ready_ps[number]),
                f"{mean.mean():.6g}",
            ]
        )
        seen.add(tensor.layer)
    return write_files({out: text.getvalue().encode()})
