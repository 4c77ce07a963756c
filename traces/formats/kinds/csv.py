"""The format `csv` reads and writes a plain CSV table of tensors, for users without another tool's file.

    name,layer,shape,dtype,forward_us,backward_us
    conv1.weight,conv1,64x3x7x7,float32,900,450
    fc.weight,fc,1000x2048,float32,100,80
    fc.bias,fc,1000,float32,,

One row per gradient, rows in forward order; separated by commas, semicolons or tabs. Columns:

* `name`, each once, and one of `shape` (64x3x7x7), `numel` (or `elements`), `bytes` (or `size`);
* `dtype`: float32 unless set by --dtype;
* `layer`: rows with the same layer share its forward pass; by default the name up to its last dot;
* `forward_us`, `backward_us`: the row's part of its layer's forward pass and of the backward pass, after which its
  gradient is ready. Or `ready_us`: ready time of the gradient after the start of the iteration. All three in `_s`,
  `_ms`, `_us`, `_ns` or `_ps`;
* `mean`: mean |g|, if known; otherwise it comes from the model.

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

from gradwire.scenarios.advice import nearest
from gradwire.scenarios.errors import TraceError
from gradwire.traces.formats.base import Format, ReadOptions, WriteOptions
from gradwire.traces.formats.draft import Draft, Gradient, Timing, gradient_of_bytes
from gradwire.traces.formats.sink import write_files
from gradwire.traces.formats.source import first_line, open_source
from gradwire.traces.parts import ELEMENT_BYTES

if TYPE_CHECKING:
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


class Csv(Format):
    """Table of tensors, for users without another tool's file."""

    kind = "csv"
    title = "CSV of tensors"
    offered = 40

    @staticmethod
    def recognise(path: Path, head: bytes) -> bool:
        """Return True if the first line has the columns `name` and one of sizes."""
        line = first_line(head)
        columns = _header(_cells(line, _separator(line), str(path)))
        return "name" in columns and bool(set(columns) & set(_SIZES))

    @staticmethod
    def read(path: Path, options: ReadOptions) -> Draft:
        """Return the draft of a table: one iteration; TraceError for invalid cells."""
        draft = Draft("csv")
        with open_source(path, options.progress, options.notes) as source:
            lines = [(number, line) for number, line in source.lines() if line.strip()]
        if not lines:  # e.g. only a byte-order mark
            raise TraceError("has only blank lines", str(path), "a header, and a row per tensor")
        separator = _separator(lines[0][1])
        columns = _header(_cells(lines[0][1], separator, f"{path}, line {lines[0][0]}"))
        times, sizes = _columns(columns, str(path), draft.skipped)
        layers: dict[str, int] = {}
        line_of_name: dict[str, int] = {}
        forward: list[int] = []
        backward: list[int] = []
        ready: list[int | None] = []
        for number, line in lines[1:]:
            where = f"{path}, line {number}"
            cells = _cells(line, separator, where)
            if line.count('"') % 2:
                raise TraceError("unclosed quote", where, "a row on one line, quotes in pairs")
            if len(cells) > len(columns):
                raise TraceError(f"{len(cells)} cells", where, f"{len(columns)}, as the header has columns")
            row = dict(zip(columns, cells, strict=False))
            name = row.get("name") or f"row{number}"
            if line_of_name.setdefault(name, number) != number:
                raise TraceError(f"duplicate name {name!r}, also on line {line_of_name[name]}", where, "each name once")
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

    @staticmethod
    def write(trace: Trace, out: Path, options: WriteOptions) -> list[Path]:
        """Write one row per tensor with its ready time and mean |g| in the first of the chosen iterations. The table
        cannot hold chunk magnitudes, several iterations, the optimizer's time, or pauses in the forward pass. Repeated
        names get a number, since each name may occur only once."""
        iteration = trace.iterations[options.iterations[0]]
        text = io.StringIO()
        table = csv.writer(text, lineterminator="\n")
        table.writerow(["name", "layer", "shape", "dtype", "forward_ps", "ready_ps", "mean"])
        seen_layers: set[int] = set()
        name_counts: Counter[str] = Counter()
        for number, tensor in enumerate(trace.tensors):
            spent = iteration.forward_end_ps[tensor.layer] - iteration.forward_start_ps[tensor.layer]
            mean, _ = trace.magnitudes(iteration.index, number)
            name_counts[tensor.name] += 1
            table.writerow(
                [
                    tensor.name if name_counts[tensor.name] == 1 else f"{tensor.name} ({name_counts[tensor.name]})",
                    trace.layers[tensor.layer],
                    "x".join(map(str, tensor.shape or (1,))),
                    tensor.dtype,
                    0 if tensor.layer in seen_layers else int(spent),
                    int(iteration.ready_ps[number]),
                    f"{mean.mean():.6g}",
                ]
            )
            seen_layers.add(tensor.layer)
        return write_files({out: text.getvalue().encode()})


def _separator(line: str) -> str:
    return max(",;\t", key=line.count)


def _cells(line: str, separator: str, where: str) -> list[str]:
    try:
        return [cell.strip() for cell in next(csv.reader([line], delimiter=separator), [])]
    except csv.Error as error:  # e.g. a cell of more than 128 KiB
        raise TraceError(f"not a line of a table ({error})", where, "cells separated by commas") from None


def _header(cells: list[str]) -> list[str]:
    return [cell.lower() for cell in cells]


def _columns(
    columns: list[str], where: str, skipped: Counter[str]
) -> tuple[dict[str, tuple[str, int]], dict[str, str]]:
    """Return the columns of times, {"forward": ("forward_us", picoseconds)}, and of sizes, {"bytes": "size"}."""
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
    row: dict[str, str], name: str, layer: int, sizes: dict[str, str], dtype: str, where: str, skipped: Counter[str]
) -> Gradient:
    kind = row.get("dtype", "").removeprefix("torch.").lower() or dtype
    kind = _DTYPES.get(kind, kind)
    if kind not in ELEMENT_BYTES:
        raise TraceError(f"dtype {kind!r}", where, ", ".join(ELEMENT_BYTES) + nearest(kind, ELEMENT_BYTES))
    mean = _number(row["mean"], "mean", where) if row.get("mean") else None
    shape: tuple[int, ...] = ()
    sizes_given = {
        key: _whole_number(row[sizes[key]], sizes[key], where)
        for key in ("numel", "bytes")
        if key in sizes and row.get(sizes[key])
    }
    if "shape" in sizes and (text := row.get(sizes["shape"], "")):
        text = re.sub(r"^(?:torch\.)?Size(?=\()", "", text.strip())
        shape = tuple(int(part) for part in re.findall(r"\d+", text))
        is_scalar = re.fullmatch(r"[(\[\s\])]+", text) is not None  # () is a scalar in PyTorch
        if re.search(r"[^\d\sx×*,()\[\]]", text.lower()) or not (shape or is_scalar):
            raise TraceError(f"shape {text!r}", where, "a shape such as 64x3x7x7")
        numel = math.prod(shape)
    elif "numel" in sizes_given:
        numel = sizes_given["numel"]
    elif "bytes" in sizes_given:
        numel = gradient_of_bytes(name, sizes_given["bytes"], kind, layer, skipped).numel
    else:
        raise TraceError("no size", where, "one of " + ", ".join(_SIZES))
    for key, width in (("numel", 1), ("bytes", ELEMENT_BYTES[kind])):
        if key in sizes_given and -(-sizes_given[key] // width) != numel:
            what = f"{sizes[key]} is {sizes_given[key]}, but {numel * width} by the rest of the row"
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
        form = ", with a decimal point and without thousands separators" if "," in text else ""
        raise TraceError(f"{column} is {text!r}", where, f"a number from 0{form}")
    return value


def _whole_number(text: str, column: str, where: str) -> int:
    value = _number(text.replace("_", ""), column, where)
    if value != int(value):
        raise TraceError(f"{column} is {text!r}", where, "a whole number")
    return int(value)


def _time(row: dict[str, str], column: tuple[str, int], where: str) -> int | None:
    text = row.get(column[0], "")
    return round(_number(text, column[0], where) * column[1]) if text else None


def _set_times(
    draft: Draft, forward: list[int], backward: list[int], ready: list[int | None], times: dict[str, tuple[str, int]]
) -> None:
    ends, clock = [], 0
    for spent in forward:
        clock += spent
        ends.append(clock)
    moments, backward_clock = [0] * len(ready), clock
    for number in range(len(ready) - 1, -1, -1):
        backward_clock += backward[number]
        moment = ready[number]
        moments[number] = backward_clock if moment is None else moment
    end = max(backward_clock, *moments, 0)
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
