"""`import_trace` and `export_trace` convert other tools' files to traces and back, and draw magnitudes that a file
lacks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gradwire.scenarios.advice import nearest
from gradwire.scenarios.arrays import Float16s, Ints
from gradwire.scenarios.errors import TraceError, shorten
from gradwire.scenarios.loading.registry import components
from gradwire.scenarios.validation.argument_checks import require_instance, require_integer, require_path
from gradwire.traces.formats.base import ReadOptions, WriteOptions, exporters, importers
from gradwire.traces.formats.draft import MAX_TIME_PS, Draft, Timing
from gradwire.traces.formats.magnitudes import FITTED_TO, MagnitudeModel, fit_model
from gradwire.traces.formats.source import Progress, head
from gradwire.traces.parts import CHUNK_ELEMENTS, ELEMENT_BYTES, Iteration, TensorInfo
from gradwire.traces.storage.memory_limits import refuse_beyond
from gradwire.traces.trace import Trace, bundled_traces, load_trace, scale_exponents, to_float16

MAX_RANKS = 1 << 16
"""Maximum number of workers in an export; Chakra has a file for each."""
MAX_ELEMENTS = 2**40  # a trillion parameters: 4 billion chunks, more than fit into memory
MAX_NAMES = 200  # names of skipped parts
KEPT_BYTES, DRAWN_BYTES = 4, 64  # per chunk: in the trace, and while its tensor is drawn [measured]
SAMPLED_CHUNKS = 4_000_000  # magnitudes are drawn for the first iterations up to this many chunks; our choice

_FITTED: dict[str, MagnitudeModel] = {}  # cached models of bundled traces


def import_trace(
    path: str | Path,
    *,
    format: str = "auto",
    name: str | None = None,
    seed: int = 1,
    dtype: str = "float32",
    fit_to: str | None = None,
    ranks: bool = False,
    repair: bool = False,
    progress: Progress | None = None,
) -> Trace:
    """Import a file of another tool as a trace; its manifest lists what was understood and what left out.

    `format` is one of `importers()` or "auto", by the file's first bytes. Magnitudes are drawn with `seed` from the
    model of `gradwire.traces.formats.magnitudes`, fitted to the measured trace `fit_to` (by default a bundled one).
    `dtype` applies to gradients given in bytes only. With `ranks` the trace also has the graphs of all ranks, from the
    files beside this one or computed from it, for replay as they are. With `repair`, control dependencies that close
    cycles are left out of a Chakra graph, and counted. TraceError for a file that is missing, empty, damaged or of an
    unknown format, or without gradients.
    """
    path = require_path(path, "import_trace(path)", "a file", TraceError)
    if dtype not in ELEMENT_BYTES:
        raise TraceError(f"dtype {dtype!r}", "import", ", ".join(ELEMENT_BYTES) + nearest(dtype, ELEMENT_BYTES))
    if format not in ("auto", *importers()):
        raise TraceError(
            f"format {format!r}", "import", ", ".join(["auto", *importers()]) + nearest(format, importers())
        )
    begin = head(path)
    if format == "auto":
        format = _recognised(path, begin)
    if ranks and not components("trace_format")[format].ranks:
        supported = ", ".join(name for name, component in components("trace_format").items() if component.ranks)
        what = f"format {format} has no graphs of ranks"
        raise TraceError(what, str(path), f"a file of {supported}, or without ranks")
    model = _fitted(fit_to or FITTED_TO)
    options = ReadOptions(dtype, progress, ranks, repair)
    draft = components("trace_format")[format].read(path, options)
    draft.doubtful.update(options.notes)
    return _draft_to_trace(draft, path, name or path.name.split(".")[0], model, seed)


def export_trace(
    trace: Trace, out: str | Path, *, format: str, iterations: Sequence[int] | None = None, ranks: int = 1
) -> list[Path]:
    """Write `trace` in one of `exporters()` and return the files, which must not exist yet. `iterations` defaults to
    the first one. TraceError for an unknown format, iteration or number of ranks, and if a file cannot be written; then
    none is left behind."""
    trace = require_instance(trace, Trace, "export_trace(trace)", "a Trace", TraceError)
    path = require_path(out, "export_trace(out)", "a new file", TraceError)
    ranks = require_integer(ranks, "export_trace(ranks)", 1, TraceError)
    if format not in exporters():
        raise TraceError(f"format {format!r}", "export", ", ".join(exporters()) + nearest(format, exporters()))
    where = "export_trace(iterations)"
    chosen = [0] if iterations is None else [require_integer(index, where, 0, TraceError) for index in iterations]
    for index in chosen:
        if not 0 <= index < len(trace.iterations):
            raise TraceError(f"iteration {index}", trace.name, f"0 to {len(trace.iterations) - 1}")
    if not chosen or not 1 <= ranks <= MAX_RANKS:
        expected = f"at least one of each, and at most {MAX_RANKS} ranks"
        raise TraceError(f"{len(chosen)} iterations, {ranks} ranks", "export", expected)
    files: list[Path] = components("trace_format")[format].write(trace, path, WriteOptions(chosen, ranks))
    return files


def _fitted(name: str) -> MagnitudeModel:
    if name not in bundled_traces():
        return fit_model(load_trace(name))
    if name not in _FITTED:
        _FITTED[name] = fit_model(load_trace(name))
    return _FITTED[name]


def _recognised(path: Path, begin: bytes) -> str:
    readable = [components("trace_format")[name] for name in importers()]
    for component in sorted(readable, key=lambda component: component.offered):
        if component.recognise(path, begin):
            return str(component.kind)
    titles = ", ".join(f"{component.kind} ({component.title})" for component in readable)
    raise TraceError("unknown format", str(path), titles)


def _draft_to_trace(draft: Draft, source: Path, name: str, model: MagnitudeModel, seed: int) -> Trace:
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
    draft: Draft, model: MagnitudeModel, sizes: Ints, iterations: int, chunks: int, seed: int
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
