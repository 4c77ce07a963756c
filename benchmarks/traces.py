"""Runs `gradwire bench traces`, which measures the time and memory of reading the bundled traces and a large one.

One row per bundled trace, and one for `vgg16-138m-50`, a synthetic trace with the tensors of VGG-16 for ImageNet (138 M
parameters) and 50 iterations that each have statistics, mean, maximum and rms: 27 million rows of chunks.

Every row runs five times, each in a separate process; the median counts. `read s` is `load_trace` alone, with
everything imported and the files in the page cache; `import s` is the preceding import. `peak MB` is the process's peak
memory, including interpreter and libraries. `write s` is saving the synthetic trace.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from gradwire.benchmarks.rows import Columns, Row, print_json, print_table, run_module
from gradwire.scenarios.errors import GradwireError

if TYPE_CHECKING:
    from gradwire.traces.trace import Trace

LARGE = "vgg16-138m-50"
LARGE_ITERATIONS = 50
# Channels of VGG-16's convolutions, all 3x3, and its three fully connected layers (Simonyan and Zisserman 2015, D).
CONVOLUTIONS = (3, 64, 64, 128, 128, 256, 256, 256, 512, 512, 512, 512, 512, 512)
CONNECTED = ((4096, 25088), (4096, 4096), (1000, 4096))
REPEATS = 5
ROW_TIMEOUT_S = 600
SEED = 1
COLUMNS: Columns = {
    "trace": lambda row: row["trace"],
    "M parameters": lambda row: f"{row['parameters'] / 1e6:.1f}",
    "sampled": lambda row: str(row["sampled"]),
    "disk MB": lambda row: f"{row['disk_bytes'] / 1e6:.1f}",
    "import s": lambda row: f"{row['import_s']:.2f}",
    "read s": lambda row: f"{row['read_s']:.3f}",
    "peak MB": lambda row: f"{row['peak_rss_bytes'] / 1e6:.0f}",
    "write s": lambda row: f"{row['write_s']:.1f}" if "write_s" in row else "",
}


def bench_traces(*, case: str | None, as_json: bool) -> None:
    """Read the bundled traces and the large one, or the one called `case`; print a table or one JSON object.

    Raises GradwireError if `case` is unknown.
    """
    from gradwire.traces.trace import BUNDLED, bundled_traces

    cases = [*bundled_traces(), LARGE]
    if case is not None and case not in cases:
        raise GradwireError("no such benchmark", "bench traces", f"--case {', '.join(cases)}")
    rows = []
    for number, name in enumerate(selected := [name for name in cases if case in (None, name)], start=1):
        print(f"{number}/{len(selected)}: {name}", file=sys.stderr, flush=True)
        if name == LARGE:
            with tempfile.TemporaryDirectory(prefix="gradwire-bench-") as folder:
                written = _in_own_process("make", str(Path(folder) / name))
                rows.append(_median(Path(folder) / name) | written)
        else:
            rows.append(_median(BUNDLED / name))
    if as_json:
        print_json(rows)
    else:
        print_table(rows, COLUMNS, ("trace",))


def _median(directory: Path) -> Row:
    runs = [_in_own_process("read", str(directory)) for _ in range(REPEATS)]
    return sorted(runs, key=lambda run: float(run["read_s"]))[REPEATS // 2]


def _in_own_process(*arguments: str) -> Row:
    return run_module(["gradwire.benchmarks.traces", *arguments], " ".join(arguments), ROW_TIMEOUT_S)


def read_row(directory: str) -> Row:
    """Read the trace in `directory` once, in this process. Times in seconds, sizes and memory in bytes."""
    begin = time.perf_counter()
    import gradwire.traces.storage.writer  # noqa: F401 - load_trace imports it at its first use
    from gradwire.traces.trace import load_trace

    imported = time.perf_counter()
    trace = load_trace(directory)
    read = time.perf_counter()
    return {
        "trace": trace.name,
        "parameters": sum(tensor.numel for tensor in trace.tensors),
        "iterations": len(trace.iterations),
        "sampled": len(trace.sampled),
        "disk_bytes": sum(file.stat().st_size for file in Path(directory).iterdir()),
        "import_s": round(imported - begin, 4),
        "read_s": round(read - imported, 4),
        "peak_rss_bytes": _peak_memory(),
    }


def make_row(directory: str) -> Row:
    """Create and save the large trace, in this process. Times in seconds."""
    trace = large_trace()
    begin = time.perf_counter()
    trace.save(directory)
    return {"write_s": round(time.perf_counter() - begin, 4)}


def large_trace(iterations: int = LARGE_ITERATIONS, shapes: list[tuple[int, ...]] | None = None) -> Trace:
    """Return a seeded trace with the tensors of VGG-16, or of one layer per shape, a weight and a bias each.

    Magnitudes are log-normal, times are in the right order.
    """
    import numpy as np

    from gradwire.traces.trace import Iteration, TensorInfo, Trace

    draw = np.random.default_rng(SEED)
    if shapes is None:  # 16 weights, for 224 x 224 images and 1000 classes
        pairs = zip(CONVOLUTIONS[1:], CONVOLUTIONS[:-1], strict=True)
        shapes = [*((out, into, 3, 3) for out, into in pairs), *CONNECTED]
    tensors = [
        TensorInfo(f"layer{layer}.{kind}", shape, int(np.prod(shape)), "float32", layer, 12)
        for layer, weight in enumerate(shapes)
        for kind, shape in (("weight", weight), ("bias", weight[:1]))
    ]
    captured = []
    for index in range(iterations):
        ends = np.cumsum(draw.integers(10**8, 10**10, len(shapes)))
        ready = ends[-1] + np.cumsum(draw.integers(10**8, 10**10, len(tensors)))[::-1]
        end = int(ready.max())
        phase = "early" if index < iterations // 2 else "late"
        starts = np.concatenate([[0], ends[:-1]])
        captured.append(Iteration(index, phase, index, 2.0, starts, ends, ready.copy(), end, 10**9, end + 10**9))
    size = (iterations, sum(tensor.chunks for tensor in tensors))
    mean = draw.lognormal(0, 1, size).astype(np.float16)
    rms = mean * draw.uniform(1.1, 1.4, size).astype(np.float16)
    largest = rms * draw.uniform(2, 5, size).astype(np.float16)
    manifest = {"name": LARGE, "timing": "estimated", "magnitudes": {"source": "model", "model": "lognormal"}}
    return Trace(manifest, [f"layer{n}" for n in range(len(shapes))], tensors, captured, mean, largest, rms)


def _peak_memory() -> int:
    """Return this program's peak memory in bytes; `getrusage` would include its parent's at the fork."""
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


if __name__ == "__main__":
    print(json.dumps({"read": read_row, "make": make_row}[sys.argv[1]](sys.argv[2])))
