"""Drafts: the common form of all importers, a job as a foreign file describes it, without gradient magnitudes.

An importer fills a `Draft`; `draft_to_trace` turns it into a Trace. Parts that an importer did not understand or left
out on purpose are counted in `Draft.skipped` by a name that can be found in the file; the counts go into the trace's
manifest and are printed by `gradwire trace import`.
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
from gradwire.traces.formats.magnitudes import MagnitudeModel
from gradwire.traces.parts import ELEMENT_BYTES, Communication
from gradwire.traces.rank_graphs import RankGraphs
from gradwire.traces.storage.memory_limits import refuse_beyond
from gradwire.traces.trace import CHUNK_ELEMENTS, Float16s, Iteration, TensorInfo, Trace, scale_exponents, to_float16

PS_PER_NS, PS_PER_US, PS_PER_MS = 10**3, 10**6, 10**9
MAX_TIME_PS = 2**62  # 53 days; beyond it int64 picoseconds overflow
PHASE = "imported"  # only phase of an imported trace: other formats do not record the progress of training
MAX_ELEMENTS = 2**40  # a trillion parameters: 4 billion chunks, more than fit into memory
MAX_NAMES = 200  # names of skipped parts
KEPT_BYTES, DRAWN_BYTES = 4, 64  # per chunk: in the trace, and while its tensor is drawn [measured]
SAMPLED_CHUNKS = 4_000_000  # magnitudes are drawn for the first iterations up to this many chunks; our choice


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


def draft_to_trace(draft: Draft, source: Path, name: str, model: MagnitudeModel, seed: int) -> Trace:
    """Return the Trace of a draft, with magnitudes drawn from `model`. TraceError if the file held no gradient, no
    iteration, or impossible times."""
    where = str(source)
    if not draft.gradients:
        skipped = _listing(draft.doubtful + draft.skipped)
        raise TraceError(f"no gradients{skipped}", where, draft.advice)
    if not draft.iterations:
        skipped = _listing(draft.doubtful + draft.skipped)
        raise TraceError(f"no complete iteration{skipped}", where, "at least one")
    for timing in draft.iterations:
        if max(*timing.ready, *timing.forward_end, timing.backward_end + timing.optimizer) > MAX_TIME_PS:
            raise TraceError("an iteration of more than 50 days", where, "times of one iteration")
        if not 0 <= timing.step < 2**62 or not 0 <= timing.rank < 2**31:
            numbers = f"step {shorten(timing.step)} of rank {shorten(timing.rank)}"
            raise TraceError(numbers, where, "numbers from 0")
    elements = sum(gradient.numel for gradient in draft.gradients)
    if elements > MAX_ELEMENTS:
        raise TraceError(f"{elements} elements", where, f"at most {MAX_ELEMENTS}")
    sizes = np.array([gradient.numel for gradient in draft.gradients])
    chunks_per_tensor = -(-sizes // CHUNK_ELEMENTS)
    chunks = int(chunks_per_tensor.sum())
    sampled = list(range(max(1, min(len(draft.iterations), SAMPLED_CHUNKS // max(chunks, 1)))))
    sampled = _one_per_rank(draft.iterations, sampled)
    needed = len(sampled) * (KEPT_BYTES * chunks + DRAWN_BYTES * int(chunks_per_tensor.max()))
    refuse_beyond(needed, f"a trace of {elements} elements", where)
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
    except TraceError as error:  # impossible times
        raise TraceError(error.what, f"{where}: {error.where}", error.expected) from None


def _magnitudes(
    draft: Draft, model: MagnitudeModel, sizes: NDArray[np.int64], iterations: int, chunks: int, seed: int
) -> tuple[Float16s, Float16s, list[int]]:
    """Return (mean |g|, max |g|, scale exponents) of every tensor, as a Trace holds them."""
    depths = np.array([g.layer for g in draft.gradients]) / max(len(draft.layers) - 1, 1)
    means, largest = (np.empty((iterations, chunks), dtype=np.float16) for _ in range(2))
    exponents: list[int] = []
    at = 0
    for mean, top in model.draw(sizes, depths, iterations, seed, [g.mean for g in draft.gradients]):
        exponent = int(scale_exponents(np.array([top.max()]))[0])
        until = at + mean.shape[1]
        means[:, at:until], largest[:, at:until] = to_float16(mean, exponent), to_float16(top, exponent)
        exponents.append(exponent)
        at = until
    return means, largest, exponents


def _one_per_rank(iterations: Sequence[Timing], sampled: list[int]) -> list[int]:
    """Return `sampled` extended by the first iteration of every phase and rank without one."""
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


def _manifest(draft: Draft, source: Path, name: str, model: MagnitudeModel, seed: int) -> dict[str, Any]:
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
            "understood": _printable_counts(draft.understood),
            "skipped": _printable_counts(draft.skipped),
            **({"doubtful": _printable_counts(draft.doubtful)} if draft.doubtful else {}),
        },
    }


def _printable_counts(counts: Counter[str]) -> dict[str, int]:
    """Return printable, sorted counts by name; the rarest of very many are merged."""
    totals: Counter[str] = Counter()
    for name, count in counts.items():
        totals["".join(c if c.isprintable() else "?" for c in name)] += count
    rarest = totals.most_common()[MAX_NAMES:]
    for name, count in rarest:
        del totals[name]
        totals["other things"] += count
    return dict(sorted(item for item in totals.items() if item[1]))


def _listing(skipped: Counter[str]) -> str:
    largest = [f"{count} x {what}" for what, count in skipped.most_common(5) if count]
    return f" (left out: {', '.join(largest)})" if largest else ""
