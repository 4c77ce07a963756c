"""`Draft` declares the common form in which importers describe a foreign file's job; functions derive its layers'
times. It has no gradient magnitudes.

An importer fills a `Draft`; `gradwire.traces.formats.convert` turns it into a Trace. Parts that an importer did not
understand or left out on purpose are counted in `Draft.skipped` by a name that can be found in the file; the counts go
into the trace's manifest and are printed by `gradwire trace import`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from gradwire.traces.parts import ELEMENT_BYTES, Communication

if TYPE_CHECKING:
    from gradwire.traces.rank_graphs import RankGraphs

PS_PER_NS, PS_PER_US, PS_PER_MS = 10**3, 10**6, 10**9
MAX_TIME_PS = 2**62  # 53 days; beyond it int64 picoseconds overflow
PHASE = "imported"  # only phase of an imported trace: other formats do not record the progress of training


@dataclass(frozen=True)
class Gradient:
    """One exchanged tensor; `shape` is empty if only the number of elements is known."""

    name: str
    numel: int
    dtype: str
    layer: int
    shape: tuple[int, ...] = ()
    mean: float | None = None  # mean |g|, if the file has it
    group: str = "data"


@dataclass(frozen=True)
class Timing:
    """Times of one iteration in picoseconds since its start: forward per layer, readiness per gradient."""

    forward_start: Sequence[int]
    forward_end: Sequence[int]
    ready: Sequence[int]
    backward_end: int
    optimizer: int = 0
    step: int = 0
    rank: int = 0
    loss: float = math.nan  # none of the formats knows the loss
    phase: str = PHASE
    asked: Sequence[int] = ()  # time of each communication's call


@dataclass
class Draft:
    """Job as described by a foreign file. `how` states which of its times are measured and which are estimated."""

    format: str
    layers: list[str] = field(default_factory=list)
    gradients: list[Gradient] = field(default_factory=list)
    iterations: list[Timing] = field(default_factory=list)
    communications: list[Communication] = field(default_factory=list)
    graphs: RankGraphs | None = None
    timing: str = "imported"
    how: str = ""
    groups: list[dict[str, Any]] = field(default_factory=list)
    understood: Counter[str] = field(default_factory=Counter)
    skipped: Counter[str] = field(default_factory=Counter)
    doubtful: Counter[str] = field(default_factory=Counter)  # implausible records, clipped or left out
    advice: str = "at least one gradient tensor or collective"  # expectation named for a file without gradients
    about: dict[str, Any] = field(default_factory=dict)  # other manifest entries, e.g. the GPU


def gradient_of_bytes(
    name: str, size: int, dtype: str, layer: int, skipped: Counter[str], group: str = "data"
) -> Gradient:
    """Return a gradient given in bytes only; a last partial element counts as a whole one and is noted."""
    width = ELEMENT_BYTES[dtype]
    if size % width:
        skipped[f"bytes beyond whole {dtype} elements, rounded up"] += 1
    return Gradient(name, -(-size // width), dtype, layer, group=group)


def serial_timing(
    forward: Sequence[int], backward: Sequence[int], layer_of: Sequence[int], *, before: int = 0
) -> Timing:
    """Return the times of layers that run one after the other: forward in order after `before`, then backward in
    reverse. `forward` and `backward` are picoseconds per layer, `layer_of` the layer of each gradient, which is ready
    when its layer's backward ends."""
    # Python integers: a damaged file may hold times that overflow int64.
    ends = list(accumulate(forward, initial=before))
    done = list(accumulate(reversed(backward), initial=ends[-1]))[:0:-1]
    return Timing(
        forward_start=ends[:-1],
        forward_end=ends[1:],
        ready=[done[layer] for layer in layer_of],
        backward_end=done[0] if done else ends[-1],
    )


def estimate_forward(
    layer_ready: Sequence[int], begin: int, forward_end: int, start: int = 0
) -> tuple[list[int], list[int]]:
    """Return (start, end) of each layer's forward pass, given only the whole one, `start` to `forward_end`. Each layer
    gets its share of the backward pass: the time between its gradient's readiness and that of the layer behind it, or
    `begin` for the last (our choice). Layers are in forward order."""
    latest, shares = begin, []
    for ready in reversed(layer_ready):
        shares.append(max(ready - latest, 0))
        latest = max(latest, ready)
    total = sum(shares)
    weights = shares[::-1] if total else [1] * len(shares)
    total = total or len(shares)
    span, passed, edges = forward_end - start, 0, [start]
    for weight in weights:
        passed += weight
        edges.append(start + span * passed // total)
    return edges[:-1], edges[1:]
