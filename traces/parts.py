"""Parts of a trace: what is known of a tensor and of an iteration, and the arrays that they come in."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

CHUNK_ELEMENTS = 256  # elements summarised by one row of chunks: mean |g|, max |g|, root of mean g**2
ELEMENT_BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}

PASSES = ("forward", "backward")
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast")
DIMENSIONS = ("tensor", "expert", "data", "expert_data")
"""Which workers communicate with each other: those that share a layer's matrices, those that share the experts, those
that have the same part of the model, and those that have the same part of the same experts."""


Times = NDArray[np.int64]
Halves = NDArray[np.float16]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class TensorInfo:
    """One parameter's gradient. `layer` indexes `Trace.layers`; `gradwire.traces.trace` explains
    `scale_exponent`. `group`: with whom it is summed up, "data", or "expert_data" for a gradient of experts, where
    groups of workers share them.
    """

    name: str
    shape: tuple[int, ...]
    numel: int
    dtype: str
    layer: int
    scale_exponent: int = 0
    group: str = "data"

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
class Communication:
    """A collective that a pass waits for before it goes on, other than that of a gradient.

    layer : after whose computing, in this pass, it is called; of the backward pass after that of the input gradient.
    turn : "forward" or "backward": the pass.
    kind : of `COLLECTIVES`.
    group : of `DIMENSIONS`: among whom.
    bytes : of a worker's whole buffer: what it has before an all-reduce, a reduce-scatter, a broadcast or an all-to-all
        (its own part included), and after an all-gather.
    """

    name: str
    layer: int
    turn: str
    kind: str
    group: str
    bytes: int


@dataclass(frozen=True)
class Iteration:
    """Times of one captured iteration; L layers, T tensors, all picoseconds after its start.

    A layer that runs several times starts with its first run and ends with its last. `ready_ps[t]` is the
    moment gradient t is final. The backward pass ends at `backward_end_ps`, when the optimiser is called;
    the optimiser takes `optimizer_ps`, and `end_ps` is their sum: time spent recording between the two is
    left out. `rank` is the worker that was recorded, 0 where there was one. `asked_ps[c]` is when communication c of
    the trace is called, by a clock that stands while it is waited for.
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
    asked_ps: Times = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
