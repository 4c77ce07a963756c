"""Merges the traces recorded by the ranks of one job into one trace, for `gradwire trace merge`.

Ranks of a data-parallel job run the same model on different data, so their traces agree in layers, tensors and steps
and differ in times and magnitudes. The merged trace holds the iterations of all of them, rank after rank, and the
simulator lets worker w replay rank w mod R (see `gradwire.workload.jobs`).

A tensor gets the scale of the rank with the largest gradient. Scales are powers of two, so this changes only values
that become float16 subnormals, and turns none into zero.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from gradwire.result_store.folders.output_folder import NEW_FOLDER, is_taken
from gradwire.scenarios.arrays import Float16s
from gradwire.scenarios.errors import TraceError
from gradwire.scenarios.interrupt import defer_interrupt
from gradwire.scenarios.json_data import Json
from gradwire.traces.storage.writer import RAW, raw_folder, write
from gradwire.traces.trace import Iteration, TensorInfo, Trace, load_trace, to_float16

PER_RANK = ("capture_overhead", "cpu_share", "exposed_communication_ps", "loss_history", "model_calls")


def merge_ranks(paths: Sequence[str | Path], out: str | Path) -> Path:
    """Write the trace of all ranks, recorded in `paths`, to the new directory `out` and return it.

    The order of `paths` does not matter. Entries that all manifests share stay in the manifest; those that differ, or
    concern one rank only, go under "per_rank". Raw gradients are copied.

    TraceError if there is nothing to merge, if a rank occurs twice, or if layers, tensors or recorded steps differ
    between ranks.
    """
    out = Path(out)
    if is_taken(out):
        raise TraceError("exists already", str(out), NEW_FOLDER)
    if not paths:
        raise TraceError("no traces given", "merge", "the trace of every rank")
    sources = sorted(((load_trace(path), Path(path)) for path in paths), key=lambda source: source[0].ranks)
    _check(sources)
    traces = [trace for trace, _ in sources]
    exponents = _common_exponents(traces)
    iterations, sampled, raws = _renumbered(sources)
    whole = Trace(
        {**_manifest(traces), "name": out.name},
        traces[0].layers,
        [replace(t, scale_exponent=e) for t, e in zip(traces[0].tensors, exponents, strict=True)],
        iterations,
        np.concatenate([_rescaled(trace, trace._mean, exponents) for trace in traces]),
        np.concatenate([_rescaled(trace, trace._max, exponents) for trace in traces]),
        _all_rms(traces, exponents),
        sampled,
        traces[0].communications,
    )
    if not raws:
        return write(whole, out)
    out.parent.mkdir(parents=True, exist_ok=True)
    with defer_interrupt(), tempfile.TemporaryDirectory(prefix=f".{out.name}-", dir=out.parent) as folder:
        for index, raw in raws:
            shutil.copytree(raw, raw_folder(Path(folder), index))
        return write(whole, out, raw=Path(folder) / RAW)


def _check(sources: Sequence[tuple[Trace, Path]]) -> None:
    """Raise TraceError, naming the trace and the first difference, unless all are ranks of one job."""
    first, first_path = sources[0]
    owner: dict[int, Path] = {}
    for trace, path in sources:
        for rank in trace.ranks:
            if rank in owner:
                raise TraceError(f"rank {rank} is also in {owner[rank]}", str(path), "each rank once")
            owner[rank] = path
        if trace.layers != first.layers:
            raise TraceError(_difference("layer", trace.layers, first.layers), str(path), f"as in {first_path}")
        tensors, expected = (
            [replace(tensor, scale_exponent=0) for tensor in source.tensors] for source in (trace, first)
        )
        if tensors != expected:
            raise TraceError(_difference("tensor", tensors, expected), str(path), f"as in {first_path}")
        if trace.communications != first.communications:
            difference = _difference("communication", trace.communications, first.communications)
            raise TraceError(difference, str(path), f"as in {first_path}")
        if _steps_by_phase(trace) != _steps_by_phase(first):
            difference = f"recorded steps {_steps_by_phase(trace)}"
            raise TraceError(difference, str(path), f"{_steps_by_phase(first)}, as in {first_path}")


def _difference(what: str, actual: Sequence[object], expected: Sequence[object]) -> str:
    for number, (item, expected_item) in enumerate(zip(actual, expected, strict=False)):
        if item != expected_item:
            text = item.name + f" {item.shape} {item.dtype}" if isinstance(item, TensorInfo) else item
            return f"{what} {number} differs ({text})"
    return f"{len(actual)} {what}s instead of {len(expected)}"


def _steps_by_phase(trace: Trace) -> dict[str, list[int]]:
    """Return the recorded steps by phase of the first rank of `trace`."""
    moments: dict[str, list[int]] = {}
    for iteration in trace.iterations:
        if iteration.rank == trace.ranks[0]:
            moments.setdefault(iteration.phase, []).append(iteration.step)
    return moments


def _renumbered(sources: Sequence[tuple[Trace, Path]]) -> tuple[list[Iteration], list[int], list[tuple[int, Path]]]:
    """Return (iterations with new indices, sampled indices, (new index, old folder) of raw gradients)."""
    iterations: list[Iteration] = []
    sampled: list[int] = []
    raws: list[tuple[int, Path]] = []
    for trace, path in sources:
        first = len(iterations)
        sampled += [first + index for index in trace.sampled]
        folders = [(first + index, raw_folder(path, index)) for index in trace.sampled]
        raws += [(index, folder) for index, folder in folders if folder.is_dir()]
        iterations += [replace(iteration, index=first + iteration.index) for iteration in trace.iterations]
    return iterations, sampled, raws


def _common_exponents(traces: Sequence[Trace]) -> list[int]:
    """Return the scale of each tensor with the largest gradient of all ranks; all-zero ones are ignored."""
    common = []
    for number in range(len(traces[0].tensors)):
        chunks = slice(int(traces[0]._offsets[number]), int(traces[0]._offsets[number + 1]))
        exponents = [t.tensors[number].scale_exponent for t in traces if t._max[:, chunks].any()]
        common.append(min(exponents, default=0))
    return common


def _rescaled(trace: Trace, values: Float16s, exponents: Sequence[int]) -> Float16s:
    """Return `values`, rows of chunks of `trace`, with the scale of each tensor changed to `exponents`."""
    changes = [new - tensor.scale_exponent for new, tensor in zip(exponents, trace.tensors, strict=True)]
    if not any(changes):
        return values
    result = np.array(values)
    for number, change in enumerate(changes):
        if change:
            chunks = slice(int(trace._offsets[number]), int(trace._offsets[number + 1]))
            result[:, chunks] = to_float16(result[:, chunks], change)
    return result


def _all_rms(traces: Sequence[Trace], exponents: Sequence[int]) -> Float16s | None:
    """Return the rms of all ranks; None unless every rank has it."""
    rows = [_rescaled(trace, trace._rms, exponents) for trace in traces if trace._rms is not None]
    return np.concatenate(rows) if len(rows) == len(traces) else None


def _manifest(traces: Sequence[Trace]) -> Json:
    manifests = [trace.manifest for trace in traces]
    keys = list(dict.fromkeys(key for manifest in manifests for key in manifest))
    common = [
        key
        for key in keys
        if key not in PER_RANK and all(key in manifest and manifest[key] == manifests[0][key] for manifest in manifests)
    ]
    merged: Json = {key: manifests[0][key] for key in common}
    if any(trace.magnitude_source == "model" for trace in traces) and "magnitudes" not in merged:
        merged["magnitudes"] = {"source": "model", "model": "of some ranks only, see per_rank"}
    merged["per_rank"] = {
        ",".join(map(str, trace.ranks)): {k: v for k, v in trace.manifest.items() if k not in common}
        for trace in traces
    }
    return merged
