"""Parts of a trace: what is known of a tensor and of an iteration, and the arrays that they come in."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

CHUNK_ELEMENTS = 256  # elements summarised by one row of chunks: mean |g|, max |g|, root of mean g**2
ELEMENT_BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}


Times = NDArray[np.int64]
Halves = NDArray[np.float16]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class TensorInfo:
    """One parameter's gradient. `layer` indexes `Trace.layers`; `gradwire.traces.trace` explains
    `scale_exponent`.
    """

    name: str
    shape: tuple[int, ...]
    numel: int
    dtype: str
    layer: int
    scale_exponent: int = 0

    @property
    def element_bytes(self) -> int:
        """Bytes of one element on the wire."""
        return ELEMENT_BYTES[self.dtype]

    @property
    def bytes(self) -> int:
        """Bytes of the whole tensor."""
        return self.numel * self.element_bytes

    @property
    def chunks(self) -> int:
        """Runs of 256 elements, the last one shorter."""
        return -(-self.numel // CHUNK_ELEMENTS)


@dataclass(frozen=True)
class Iteration:
    """Times of one captured iteration; L layers, T tensors, all picoseconds after its start.

    A layer that runs several times starts with its first run and ends with its last. `ready_ps[t]` is the
    moment gradient t is final. The backward pass ends at `backward_end_ps`, when the optimiser is called;
    the optimiser takes `optimizer_ps`, and `end_ps` is their sum: time spent recording between the two is
    left out. `rank` is the worker that was recorded, 0 where there was one.
    """

    index: int
    phase: str
    step: int
    loss: float
    forward_start_ps: Times
    forward_end_ps: Times
    ready_ps: Times
    backward_end_ps: int
    optimizer_ps: int
    end_ps: int
    rank: int = 0
