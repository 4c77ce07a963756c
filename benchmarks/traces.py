"""How fast traces are read: `gradwire bench traces`.

One row per bundled trace, and one for `vgg16-138m-50`, a made-up trace with the tensors of VGG-16 for ImageNet (138 M
parameters) and 50 iterations that all have statistics of their own, mean, maximum and rms: 27 million rows of chunks.

Every row runs five times, each time in a process of its own; the median counts. `read s` is `load_trace` alone,
with everything imported and the files in the page cache; `import s` is what a program pays before that, once. `peak MB`
is the most memory the process ever held, the interpreter and libraries included. `write s` is saving the made-up trace.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gradwire
from gradwire.benchmarks.fabric import BenchmarkError, machine
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


def bench_traces(*, case: str | None, as_json: bool) -> None:
    """Read the bundled traces and the large one, or the one called `case`; print a table or one JSON object.

    Raises
    ------
    GradwireError
        `case` names none of them.
    """
    from gradwire.traces.trace import BUNDLED, bundled_traces

    cases = [*bundled_traces(), LARGE]
    if case is not None and case not in cases:
        raise GradwireError("no such benchmark", "bench traces", f"--case {', '.join(cases)}")
    rows = []
    for number, name in enumerate(asked := [name for name in cases if case in (None, name)], start=1):
        print(f"{number}/{len(asked)}: {name}", file=sys.stderr, flush=True)
        if name == LARGE:
            with tempfile.TemporaryDirectory(prefix="gradwire-bench-") as folder:
                made = _in_own_process("make", str(Path(folder) / name))
                rows.append(_median(Path(folder) / name) | made)
        else:
            rows.append(_median(BUNDLED / name))
    if as_json:
        print(json.dumps({"machine": machine(), "rows": rows}))
    else:
        _print(rows)


def _median(directory: Path) -> dict[str, Any]:
    runs = [_in_own_process("read", str(directory)) for _ in range(REPEATS)]
    return sorted(runs, key=lambda run: float(run["read_s"]))[REPEATS // 2]


def _in_own_process(*arguments: str) -> dict[str, Any]:
    root = str(Path(gradwire.__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-m", "gradwire.benchmarks.traces", *arguments]
    what = " ".join(arguments)
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=ROW_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise BenchmarkError(f"no end after {ROW_TIMEOUT_S} s", what, "a faster machine") from error
    if done.returncode:
        raise BenchmarkError(done.stderr.strip()[-2000:], what, "a run that ends")
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def read_row(directory: str) -> dict[str, Any]:
    """Read the trace in `directory` once, in this process. Times in seconds, sizes and memory in bytes."""
    begin = time.perf_counter()
    import gradwire.traces.storage  # noqa: F401 - what load_trace would import at its first use
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


def make_row(directory: str) -> dict[str, Any]:
    """Make the large trace and save it, in this process. Times in seconds."""
    trace = large_trace()
    begin = time.perf_counter()
    trace.save(directory)
    return {"write_s": round(time.perf_counter() - begin, 4)}


def large_trace(iterations: int = LARGE_ITERATIONS, shapes: list[tuple[int, ...]] | None = None) -> Trace:
    """A trace with the tensors of VGG-16 (or of one layer per shape, a weight and a bias each): log-normal magnitudes,
    times in the right order. Seeded, so that it is the same every time.
    """
    import numpy as np

    from gradwire.traces.trace import Iteration, TensorInfo, Trace

    draw = np.random.default_rng(SEED)
    shapes = vgg16_shapes() if shapes is None else shapes
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
        captured.append(
            Iteration(index, phase, index, 2.0, starts, ends, ready.copy(), end, 10**9, end + 10**9)
        )
    size = (iterations, sum(tensor.chunks for tensor in tensors))
    mean = draw.lognormal(0, 1, size).astype(np.float16)
    rms = mean * draw.uniform(1.1, 1.4, size).astype(np.float16)
    largest = rms * draw.uniform(2, 5, size).astype(np.float16)
    manifest = {"name": LARGE, "timing": "estimated", "magnitudes": {"source": "model", "model": "lognormal"}}
    return Trace(manifest, [f"layer{n}" for n in range(len(shapes))], tensors, captured, mean, largest, rms)


def vgg16_shapes() -> list[tuple[int, ...]]:
    """Shapes of VGG-16's 16 weights for 224 x 224 images and 1000 classes."""
    pairs = zip(CONVOLUTIONS[1:], CONVOLUTIONS[:-1], strict=True)
    return [*((out, into, 3, 3) for out, into in pairs), *CONNECTED]


def _peak_memory() -> int:
    """The most memory this program ever held, in bytes. `getrusage` would count what its parent held when it forked."""
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _print(rows: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title="{processor}, {cores} cores, Python {python}".format(**machine()))
    heads = ("trace", "M parameters", "sampled", "disk MB", "import s", "read s", "peak MB", "write s")
    for head in heads:
        table.add_column(head, justify="left" if head == "trace" else "right")
    for row in rows:
        table.add_row(
            row["trace"], f"{row['parameters'] / 1e6:.1f}", str(row["sampled"]), f"{row['disk_bytes'] / 1e6:.1f}",
            f"{row['import_s']:.2f}", f"{row['read_s']:.3f}", f"{row['peak_rss_bytes'] / 1e6:.0f}",
            f"{row['write_s']:.1f}" if "write_s" in row else "",
        )  # fmt: skip
    Console(width=None if sys.stdout.isatty() else 110).print(table)


if __name__ == "__main__":
    print(json.dumps({"read": read_row, "make": make_row}[sys.argv[1]](sys.argv[2])))
