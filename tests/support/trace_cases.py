"""Small made-up traces for the tests of `traces`."""

from __future__ import annotations

import numpy as np

from gradwire.traces.trace import Iteration, TensorInfo, Trace


def small_trace(
    *,
    seed: int = 0,
    iterations: int = 4,
    tensors: int = 4,
    exponent: int = 0,
    largest: int = 5_000,
    rms: bool = False,
    sampled: list[int] | None = None,
    ranks: int = 1,
) -> Trace:
    """Tensors of random sizes, one or two to a layer; plausible times; the first half of the iterations is "early".

    With several ranks every one has `iterations`, one rank after the other.
    """
    draw = np.random.default_rng(seed)
    shapes = [(int(draw.integers(1, 8)), int(draw.integers(1, largest // 8))) for _ in range(tensors)]
    infos = [
        TensorInfo(f"t{n}", shape, shape[0] * shape[1], "float32", n // 2, exponent) for n, shape in enumerate(shapes)
    ]
    layers = [f"layer{n}" for n in range((tensors + 1) // 2)]
    captured = []
    for index in range(ranks * iterations):
        place = index % iterations
        ends = np.cumsum(draw.integers(1, 10**9, len(layers))).astype(np.int64)
        starts = np.concatenate([[0], ends[:-1]]).astype(np.int64)
        ready = ends[-1] + np.cumsum(draw.integers(1, 10**9, tensors))[::-1].astype(np.int64)
        backward_end, optimizer = int(ready.max()) + 5, int(draw.integers(0, 10**8))
        captured.append(
            Iteration(
                index,
                "early" if place < iterations // 2 else "late",
                10 * place,
                float(draw.random()),
                starts,
                ends,
                np.ascontiguousarray(ready),
                backward_end,
                optimizer,
                backward_end + optimizer,
                index // iterations,
            )
        )
    chunks = sum(info.chunks for info in infos)
    rows = ranks * iterations if sampled is None else len(sampled)
    mean = draw.lognormal(0, 1, (rows, chunks)).astype(np.float16)
    top = (mean * draw.uniform(1, 4, mean.shape)).astype(np.float16)
    root = np.sqrt(mean.astype(np.float64) * top).astype(np.float16) if rms else None
    return Trace({"name": "small", "seed": seed}, layers, infos, captured, mean, top, root, sampled)
