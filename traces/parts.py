"""Declares the parts of a trace, namely tensors, iterations and communications, and computes the members of parallel
groups."""

from __future__ import annotations

from dataclasses import dataclass, field

from gradwire.scenarios.arrays import Ints
from gradwire.scenarios.lazily import np

CHUNK_ELEMENTS = 256  # elements per chunk, summarised by mean |g|, max |g| and root of mean g**2
ELEMENT_BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}

PASSES = ("forward", "backward")
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast")
GRADIENT_DIMENSIONS = ("data", "expert_data")
DIMENSIONS = ("tensor", "context", "expert", *GRADIENT_DIMENSIONS)
"""Groups of workers that communicate: those that share a layer's matrices ("tensor"), a sample ("context") or the
experts ("expert"), and those with the same part of the model ("data") or with the same experts ("expert_data")."""


def group_members(dimension: str, tensor: int, expert: int, copies: int, context: int = 1) -> Ints:
    """Return the groups of one of `DIMENSIONS`, int64[groups, members]. There are `tensor` * `copies` workers, numbered
    with tensor parallelism innermost, then context and expert parallelism, as in Megatron-LM [recalled]."""
    outer = copies // expert // context
    grid = np.arange(tensor * copies).reshape(outer, expert, context, tensor)
    return {
        "tensor": grid.reshape(-1, tensor),
        "context": grid.transpose(0, 1, 3, 2).reshape(-1, context),
        "expert": grid.transpose(0, 2, 3, 1).reshape(-1, expert),
        "data": grid.transpose(3, 0, 1, 2).reshape(-1, copies),
        "expert_data": grid.transpose(3, 1, 0, 2).reshape(-1, outer * context),
    }[dimension]


@dataclass(frozen=True)
class TensorInfo:
    """Gradient of one parameter. `layer` indexes `Trace.layers`; `gradwire.traces.trace` explains `scale_exponent`.
    `group` is the dimension over which it is summed: "data", or "expert_data" for a gradient of experts, where groups
    of workers share them."""

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
        """Number of chunks of 256 elements, the last one shorter."""
        return -(-self.numel // CHUNK_ELEMENTS)


@dataclass(frozen=True)
class Communication:
    """Collective that a pass waits for, other than that of a gradient.

    layer : called after this layer has computed in this pass; in the backward pass, after its input gradient.
    turn : the pass, "forward" or "backward".
    kind : one of `COLLECTIVES`.
    group : one of `DIMENSIONS`: the workers that take part.
    bytes : size of a worker's whole buffer: its input (its own part included) of an all-reduce, reduce-scatter,
        broadcast or all-to-all, and its output of an all-gather.
    """

    name: str
    layer: int
    turn: str
    kind: str
    group: str
    bytes: int


@dataclass(frozen=True)
class Iteration:
    """Times of one captured iteration; L layers, T tensors, in picoseconds after its start.

    A layer that runs several times starts with its first run and ends with its last. `ready_ps[t]` is when gradient t
    is final. The backward pass ends at `backward_end_ps`, when the optimizer is called; the optimizer takes
    `optimizer_ps`, and `end_ps` is their sum: time spent recording between the two is left out. `rank` is the recorded
    worker, 0 if there was one only. `asked_ps[c]` is when communication c of the trace is called, by a clock that stops
    while the worker waits for it.
    """

    index: int
    phase: str
    step: int
    loss: float
    forward_start_ps: Ints
    forward_end_ps: Ints
    ready_ps: Ints
    backward_end_ps: int
    optimizer_ps: int
    end_ps: int
    rank: int = 0
    asked_ps: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
