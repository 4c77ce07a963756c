"""Networks with kernels, vectors and weight matrices, as traces of round times."""

from __future__ import annotations

from sim_cases import make_trace

from gradwire.traces.parts import TensorInfo
from gradwire.traces.trace import Trace


def shaped_trace(shapes: list[list[tuple[int, ...]]], **times: int) -> Trace:
    """A trace whose layer l has tensors of `shapes[l]`; times as `make_trace` has them."""
    numels = [[_product(shape) for shape in layer] for layer in shapes]
    plain = make_trace(numels, **times)
    flat = [shape for layer in shapes for shape in layer]
    tensors = [
        TensorInfo(info.name, shape, info.numel, info.dtype, info.layer)
        for info, shape in zip(plain.tensors, flat, strict=True)
    ]
    return Trace(plain.manifest, plain.layers, tensors, plain.iterations, plain._mean, plain._max)


def _product(shape: tuple[int, ...]) -> int:
    found = 1
    for each in shape:
        found *= each
    return found
