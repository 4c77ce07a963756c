"""What a foreign file says about a job, before gradient magnitudes are added: the common form of all importers.

An importer fills a `Draft`; `finish` turns it into a Trace. What an importer did not understand or left out on
purpose goes into `Draft.skipped` under a name that a person can look for in the file; it stands in the
trace's manifest and is printed by `gradwire trace import`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradwire.scenarios.errors import TraceError, shorten
from gradwire.traces.formats.magnitudes import Model
from gradwire.traces.graphs import Graphs
from gradwire.traces.parts import ELEMENT_BYTES, Communication
from gradwire.traces.room import refuse_beyond
from gradwire.traces.trace import (
    CHUNK_ELEMENTS,
    Halves,
    Iteration,
    TensorInfo,
    Trace,
    scale_exponents,
    to_halves,
)

PS_PER_NS, PS_PER_US, PS_PER_MS = 10**3, 10**6, 10**9
LONGEST_PS = 2**62  # 53 days; beyond it int64 picoseconds overflow
PHASE = "imported"  # the one phase of an imported trace: other formats do not say how far training was
MOST_ELEMENTS = 2**40  # a trillion parameters: 4 billion runs, more than fit into memory
MOST_NAMES = 200  # of what was left out
KEPT_BYTES, DRAWN_BYTES = 4, 64  # of one chunk: in the trace, and while its tensor is drawn [measured]
SAMPLED_CHUNKS = 4_000_000  # magnitudes are drawn for the first iterations up to this many chunks; our choice


@dataclass(frozen=True)
class Gradient:
    """One tensor that is exchanged; `shape` is empty where only the number of elements is known."""

    name: str
    numel: int
    dtype: str
    layer: int
    shape: tuple[int, ...] = ()
    mean: float | None = None  # mean |g|, where the file says it
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
    asked: Sequence[int] = ()  # when each communication is called


@dataclass
class Draft:
    """A job as a foreign file tells it. `how` says which of its times are measured and which are estimated."""

    format: str
    layers: list[str] = field(default_factory=list)
    gradients: list[Gradient] = field(default_factory=list)
    iterations: list[Timing] = field(default_factory=list)
    communications: list[Communication] = field(default_factory=list)
    graphs: Graphs | None = None
    timing: str = "imported"
    how: str = ""
    groups: list[dict[str, Any]] = field(default_factory=list)
    understood: Counter[str] = field(default_factory=Counter)
    skipped: Counter[str] = field(default_factory=Counter)
    doubtful: Counter[str] = field(default_factory=Counter)  # records that cannot be believed: clipped or left out
    advice: str = "at least one gradient tensor or collective"  # for a file without any
    about: dict[str, Any] = field(default_factory=dict)  # what else the manifest should say, e.g. the GPU


def gradient_of_bytes(
    name: str, size: int, dtype: str, layer: int, skipped: Counter[str], group: str = "data"
) -> Gradient:
    """A gradient of which the file gives only bytes; a last partial element counts as a whole one, noted."""
    width = ELEMENT_BYTES[dtype]
    if size % width:
        skipped[f"bytes beyond whole {dtype} elements, rounded up"] += 1
    return Gradient(name, -(-size // width), dtype, layer, group=group)


def serial(
    forward: Sequence[int], backward: Sequence[int], layer_of: Sequence[int], *, before: int = 0
) -> Timing:
    """Times of layers that run one after the other: forward in order after `before`, then backward in reverse.

    `forward` and `backward` are picoseconds per layer, `layer_of` the layer of each gradient, which is ready
    when its layer's backward ends.
    """
    # In Python's own integers: a damaged file may hold times that overflow any other.
    ends = list(accumulate(forward, initial=before))
    done = list(accumulate(reversed(backward), initial=ends[-1]))[:0:-1]
    return Timing(
        forward_start=ends[:-1],
        forward_end=ends[1:],
        ready=[done[layer] for layer in layer_of],
        backward_end=done[0] if done else ends[-1],
    )


def spread_forward(
    layer_ready: Sequence[int], begin: int, forward_end: int, start: int = 0
) -> tuple[list[int], list[int]]:
    """(start, end) of each layer's forward pass where a file has only the whole one, `start` to `forward_end`.

    Each layer gets the share of the forward pass that it has of the backward pass: the time between its
    gradient's readiness and that of the layer behind it, or `begin` for the last (our choice). Layers are in
    forward order.
    """
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


def finish(draft: Draft, source: Path, name: str, model: Model, seed: int) -> Trace:
    """The Trace of a draft, with magnitudes drawn from `model`.

    TraceError if the file held no gradient or no iteration, or times that cannot be.
    """
    where = str(source)
    if not draft.gradients:
        left = _listing(draft.doubtful + draft.skipped)
        raise TraceError(f"no gradient in it{left}", where, draft.advice)
    if not draft.iterations:
        left = _listing(draft.doubtful + draft.skipped)
        raise TraceError(f"no complete iteration in it{left}", where, "at least one")
    for timing in draft.iterations:
        if max(*timing.ready, *timing.forward_end, timing.backward_end + timing.optimizer) > LONGEST_PS:
            raise TraceError("an iteration of more than 50 days", where, "times of one iteration")
        if not 0 <= timing.step < 2**62 or not 0 <= timing.rank < 2**31:
            numbers = f"step {shorten(timing.step)} of rank {shorten(timing.rank)}"
            raise TraceError(numbers, where, "numbers from 0")
    elements = sum(gradient.numel for gradient in draft.gradients)
    if elements > MOST_ELEMENTS:
        raise TraceError(f"{elements} elements", where, f"at most {MOST_ELEMENTS}")
    sizes = np.array([gradient.numel for gradient in draft.gradients])
    runs = -(-sizes // CHUNK_ELEMENTS)
    chunks = int(runs.sum())
    sampled = list(range(max(1, min(len(draft.iterations), SAMPLED_CHUNKS // max(chunks, 1)))))
    sampled = _one_per_rank(draft.iterations, sampled)
    wanted = len(sampled) * (KEPT_BYTES * chunks + DRAWN_BYTES * int(runs.max()))
    refuse_beyond(wanted, f"a trace of {elements} elements", where)
    means, largest, exponents = _magnitudes(draft, model, sizes, len(sampled), chunks, seed)
    tensors = [
        TensorInfo(g.name, g.shape or (g.numel,), g.numel, g.dtype, g.layer, exponent, g.group)
        for g, exponent in zip(draft.gradients, exponents, strict=True)
    ]
    try:
        return Trace(
            _manifest(draft, source, name, model, seed),
            draft.layers,
            tensors,
            [_iteration(index, timing) for index, timing in enumerate(draft.iterations)],
            means,
            largest,
            sampled=sampled,
            communications=draft.communications,
            graphs=draft.graphs,
        )
    except TraceError as error:  # times that no training has
        raise TraceError(error.what, f"{where}: {error.where}", error.expected) from None


def _magnitudes(
    draft: Draft, model: Model, sizes: NDArray[np.int64], iterations: int, chunks: int, seed: int
) -> tuple[Halves, Halves, list[int]]:
    """(mean |g|, max |g|, scale exponents), as a Trace holds them, of every tensor."""
    depths = np.array([g.layer for g in draft.gradients]) / max(len(draft.layers) - 1, 1)
    means, largest = (np.empty((iterations, chunks), dtype=np.float16) for _ in range(2))
    exponents: list[int] = []
    at = 0
    for mean, top in model.draw(sizes, depths, iterations, seed, [g.mean for g in draft.gradients]):
        exponent = int(scale_exponents(np.array([top.max()]))[0])
        until = at + mean.shape[1]
        means[:, at:until], largest[:, at:until] = to_halves(mean, exponent), to_halves(top, exponent)
        exponents.append(exponent)
        at = until
    return means, largest, exponents


def _one_per_rank(iterations: Sequence[Timing], sampled: list[int]) -> list[int]:
    """`sampled`, and the first iteration of every phase and rank that would have none."""
    known = {(iterations[i].phase, iterations[i].rank) for i in sampled}
    for index, timing in enumerate(iterations):
        if (timing.phase, timing.rank) not in known:
            known.add((timing.phase, timing.rank))
            sampled.append(index)
    return sorted(sampled)


def _iteration(index: int, timing: Timing) -> Iteration:
    return Iteration(
        index=index,
        phase=timing.phase,
        step=timing.step,
        loss=timing.loss,
        forward_start_ps=np.array(timing.forward_start, dtype=np.int64),
        forward_end_ps=np.array(timing.forward_end, dtype=np.int64),
        ready_ps=np.array(timing.ready, dtype=np.int64),
        backward_end_ps=int(timing.backward_end),
        optimizer_ps=int(timing.optimizer),
        end_ps=int(timing.backward_end + timing.optimizer),
        rank=timing.rank,
        asked_ps=np.array(timing.asked, dtype=np.int64),
    )


def _manifest(draft: Draft, source: Path, name: str, model: Model, seed: int) -> dict[str, Any]:
    return {
        **draft.about,
        "name": name,
        "timing": draft.timing,
        "timing_how": draft.how,
        "magnitudes": {**model.as_dict(), "seed": seed},
        "groups": draft.groups,
        "source": {
            "format": draft.format,
            "file": source.name,
            "understood": _told(draft.understood),
            "skipped": _told(draft.skipped),
            **({"doubtful": _told(draft.doubtful)} if draft.doubtful else {}),
        },
    }


def _told(counts: Counter[str]) -> dict[str, int]:
    """Counts by name, for a manifest and a terminal: printable, sorted, the rarest of very many together."""
    told: Counter[str] = Counter()
    for name, count in counts.items():
        told["".join(c if c.isprintable() else "?" for c in name)] += count
    rare = told.most_common()[MOST_NAMES:]
    for name, count in rare:
        del told[name]
        told["other things"] += count
    return dict(sorted(item for item in told.items() if item[1]))


def _listing(skipped: Counter[str]) -> str:
    most = [f"{count} x {what}" for what, count in skipped.most_common(5) if count]
    return f" (left out: {', '.join(most)})" if most else ""
