"""`Trace` holds a training job's layers, tensors, and gradients' ready times and magnitudes by iteration; `load_trace`
loads one.

A trace holds, for a few captured iterations, *when* each gradient was ready and *how large* its values were, but not
the values themselves. No network policy needs more, and it is small: six bytes per 256 elements.

On disk a trace is a directory (see `gradwire.traces.storage.writer` for the columns)

    manifest.json       schema version, name, origin, expected numbers of rows
    layers.parquet      layers in forward order
    tensors.parquet     tensors in parameter order
    iterations.parquet  one row per captured iteration: rank, times and loss
    chunks.parquet      one row per sampled iteration and chunk of 256 elements: mean |g|, max |g|, rms
    communications.parquet  optional: collectives that passes wait for, other than those of gradients
    nodes.parquet, calls.parquet  optional: the graphs of all ranks (`gradwire.traces.rank_graphs`)

Times are recorded in every captured iteration, magnitudes perhaps only in some, the *sampled* ones. An iteration
without magnitudes uses those of the nearest sampled iteration of its phase and rank. A trace of several workers holds
the iterations of all of them, distinguished by `Iteration.rank`.

Optional keys of the manifest distinguish measured data from estimates:

    magnitudes  {"source": "measured"}, or {"source": "model", "model": "lognormal", "fitted_to": ...,
                "parameters": ...}; measured if absent
    timing      "measured", "imported", or "estimated" followed by the method; measured if absent
    groups      [{"kind": "ddp_bucket" | "fsdp_unit", "tensors": [indices], ...}, ...]: tensors that travel
                together
    source      of an imported trace: {"format", "file", "understood": {...}, "skipped": {name: count},
                "doubtful": {name: count}}, the last of records that were clipped or left out, if there are any
    split       numbers of parts into which the model was split: {"tensor": 2, "expert": 1, "pipeline": 1}; 1 if absent

A trace is refused unless every layer runs forward before the gradients of its parameters are ready, and all gradients
are ready before the backward pass ends.

Units: every time is int64 picoseconds relative to the start of its iteration (the call of the model), every size is
bytes.

Magnitudes are float16, which would turn anything below 3e-8 into zero; in the bundled trace that would be 3 % of the
chunks of an early iteration. So each tensor has one power of two, `scale_exponent`, the same in all iterations: stored
= |g| * 2**exponent, chosen so that the largest chunk maximum of the tensor lands in [2**14, 2**15), just below
float16's limit of 65504. Chunks down to 2**-28 of that maximum keep float16's full precision, and a nonzero chunk is
never stored as zero. Values of one tensor compare directly across iterations; to compare tensors use
`Trace.magnitudes`, which removes the scale.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradwire.scenarios.advice import nearest
from gradwire.scenarios.arrays import Float16s, Floats, Ints
from gradwire.scenarios.errors import TraceError
from gradwire.scenarios.json_data import Json, JsonView
from gradwire.scenarios.validation.argument_checks import require_path
from gradwire.traces.parts import CHUNK_ELEMENTS, Communication, Iteration, TensorInfo
from gradwire.traces.rank_graphs import RankGraphs
from gradwire.traces.storage.validation import check_communications, check_parts, magnitude_rows

EXPECTED_TRACE = "a trace directory, or the name of a bundled trace"
BUNDLED = Path(__file__).resolve().parent / "bundled"


class Trace:
    """Tensors, layers, iterations and chunk magnitudes of one recorded job. Treat it as read-only.

    `chunk_mean`, `chunk_max` and `chunk_rms` (root of the mean square) are float16 [sampled iterations, chunks of all
    tensors in order], scaled as described above; `chunk_rms` is None if unknown. `sampled` lists the iteration indices
    of these rows in ascending order, by default all; every phase of every rank needs one. `communications` are the
    collectives that passes wait for, in the order of their calls; `graphs` are those of all ranks, if known. TraceError
    if the parts do not fit together.
    """

    def __repr__(self) -> str:
        return f"<Trace {self._summary()}>"

    def _repr_html_(self) -> str:
        """Return the summary and the largest tensors, for notebooks."""
        largest = sorted(self.tensors, key=lambda tensor: -tensor.numel)[:10]
        lines = "".join(
            f"<tr><td>{escape(t.name)}</td><td>{escape(self.layers[t.layer])}</td><td>{t.numel:,}</td></tr>"
            for t in largest
        )
        head = "<tr><th>largest tensors</th><th>layer</th><th>elements</th></tr>"
        return f"<p><b>Trace</b>: {escape(self._summary())}</p><table>{head}{lines}</table>"

    def _summary(self) -> str:
        name, total = self.manifest.get("name", ""), sum(tensor.numel for tensor in self.tensors)
        counts = f"{len(self.tensors):,} tensors in {len(self.layers):,} layers, {total / 1e6:.1f} M elements"
        return f"{name}: {counts}, {len(self.iterations):,} iterations" if name else f"of {counts}"

    def __init__(
        self,
        manifest: JsonView,
        layers: Sequence[str],
        tensors: Sequence[TensorInfo],
        iterations: Sequence[Iteration],
        chunk_mean: Float16s,
        chunk_max: Float16s,
        chunk_rms: Float16s | None = None,
        sampled: Sequence[int] | None = None,
        communications: Sequence[Communication] = (),
        graphs: RankGraphs | None = None,
    ) -> None:
        self.manifest: Json = json.loads(json.dumps(manifest))  # exactly as read back from JSON
        self.layers = list(layers)
        self.tensors = list(tensors)
        self.iterations = list(iterations)
        self._offsets = np.concatenate([[0], np.cumsum([t.chunks for t in self.tensors], dtype=np.int64)])
        self._mean = _read_only(chunk_mean)
        self._max = _read_only(chunk_max)
        self._rms = None if chunk_rms is None else _read_only(chunk_rms)
        self.sampled = list(range(len(self.iterations))) if sampled is None else [int(i) for i in sampled]
        chunks = {"chunk_mean": self._mean, "chunk_max": self._max, "chunk_rms": self._rms}
        check_parts(self.manifest, self.layers, self.tensors, self.iterations, self.sampled, chunks)
        self.communications = list(communications)
        check_communications(self.communications, self.layers, self.tensors, self.iterations)
        self.graphs = graphs
        if graphs is not None:
            graphs.check()
        self._row = magnitude_rows(self.iterations, self.sampled)

    @property
    def name(self) -> str:
        """The name given at capture."""
        return str(self.manifest["name"])

    @property
    def phases(self) -> dict[str, list[int]]:
        """Iteration indices per phase of training, in order of capture, e.g. {"early": [0, 1], "late": [2, 3]}."""
        phases: dict[str, list[int]] = {}
        for iteration in self.iterations:
            phases.setdefault(iteration.phase, []).append(iteration.index)
        return phases

    @property
    def ranks(self) -> list[int]:
        """Recorded workers in ascending order; [0] if there was only one."""
        return sorted({iteration.rank for iteration in self.iterations})

    @property
    def groups(self) -> list[Json]:
        """Tensors that travel together (DDP buckets, FSDP units), from the manifest; often none."""
        return list(self.manifest.get("groups", []))

    @property
    def parallel(self) -> dict[str, int]:
        """Number of parts into which the job split its model, by dimension; 1 if the manifest has none."""
        split = self.manifest.get("split", {})
        return {name: int(split.get(name, 1)) for name in ("tensor", "context", "expert", "pipeline")}

    @property
    def magnitude_source(self) -> str:
        """Origin of the magnitudes: "measured" or "model"."""
        return str(self.manifest.get("magnitudes", {}).get("source", "measured"))

    @property
    def total_bytes(self) -> int:
        """Gradient bytes of one iteration."""
        return sum(tensor.bytes for tensor in self.tensors)

    @property
    def layer_bytes(self) -> Ints:
        """Gradient bytes of each layer, int64 [L]."""
        sizes = np.zeros(len(self.layers), dtype=np.int64)
        np.add.at(sizes, [tensor.layer for tensor in self.tensors], [tensor.bytes for tensor in self.tensors])
        return sizes

    def layer_ready(self, iteration: int) -> Ints:
        """Return the latest ready time of each layer, int64 [L]; -1 for layers without gradient."""
        ready = np.full(len(self.layers), -1, dtype=np.int64)
        np.maximum.at(ready, [tensor.layer for tensor in self.tensors], self.iterations[iteration].ready_ps)
        return ready

    def sample_of(self, iteration: int) -> int:
        """Return the sampled iteration whose magnitudes `iteration` uses. It is `iteration` itself if sampled, else the
        nearest one of its phase and rank, the earlier of two equally near."""
        return self.sampled[self._row[iteration]]

    def chunk_mean(self, iteration: int, tensor: int) -> Float16s:
        """Return mean |g| per chunk of 256 elements, float16 [chunks], times 2**scale_exponent of the tensor."""
        return self._chunks(self._mean, iteration, tensor)

    def chunk_max(self, iteration: int, tensor: int) -> Float16s:
        """Return the largest |g| per chunk, float16 [chunks], scaled like `chunk_mean`."""
        return self._chunks(self._max, iteration, tensor)

    def chunk_rms(self, iteration: int, tensor: int) -> Float16s | None:
        """Return the root of the mean of g**2 per chunk, scaled like `chunk_mean`; None if unknown."""
        return None if self._rms is None else self._chunks(self._rms, iteration, tensor)

    def _chunks(self, values: Float16s, iteration: int, tensor: int) -> Float16s:
        number = range(len(self.tensors))[tensor]  # negative indices count from the end
        return values[self._row[iteration], self._offsets[number] : self._offsets[number + 1]]

    def magnitudes(self, iteration: int, tensor: int) -> tuple[Floats, Floats]:
        """Return (mean |g|, max |g|) per chunk in the gradient's own units, float64 [chunks] each."""
        exponent = -self.tensors[tensor].scale_exponent
        return (
            np.ldexp(self.chunk_mean(iteration, tensor).astype(np.float64), exponent),
            np.ldexp(self.chunk_max(iteration, tensor).astype(np.float64), exponent),
        )

    def l2(self, iteration: int, tensor: int) -> Floats | None:
        """Return the Euclidean norm of each chunk in the gradient's own units, float64 [chunks]; None if unknown. The
        root mean square is stored because the norm itself, up to 16 times the largest value, could overflow."""
        rms = self.chunk_rms(iteration, tensor)
        if rms is None:
            return None
        info = self.tensors[tensor]
        elements = np.full(info.chunks, CHUNK_ELEMENTS, dtype=np.float64)
        elements[-1] = info.numel - (info.chunks - 1) * CHUNK_ELEMENTS
        return np.asarray(np.ldexp(rms.astype(np.float64), -info.scale_exponent) * np.sqrt(elements))

    def save(self, directory: str | Path) -> Path:
        """Write the trace to a new or empty directory, completely or not at all."""
        from gradwire.traces.storage.writer import write

        return write(self, directory)

    def digest(self) -> str:
        """Return the sha256 of the whole content, independent of its storage. Ranks, rms, sampling and communications
        count only if present, so that a trace of an older schema version keeps its digest."""
        hasher = hashlib.sha256()
        hasher.update(json.dumps([1, self.manifest, self.layers], sort_keys=True).encode())
        for t in self.tensors:
            columns = (t.name, t.shape, t.numel, t.dtype, t.layer, t.scale_exponent)
            hasher.update(repr(columns if t.group == "data" else (*columns, t.group)).encode())
        for i in self.iterations:
            scalars = (i.index, i.phase, i.step, i.loss, i.backward_end_ps, i.optimizer_ps, i.end_ps)
            hasher.update(repr(scalars if i.rank == 0 else (*scalars, i.rank)).encode())
            for times in (i.forward_start_ps, i.forward_end_ps, i.ready_ps, i.asked_ps):
                hasher.update(np.ascontiguousarray(times, dtype="<i8").tobytes())
        for values in (self._mean, self._max, self._rms):
            if values is not None:
                hasher.update(np.ascontiguousarray(values, dtype="<f2").data)
        if len(self.sampled) != len(self.iterations):
            hasher.update(repr(self.sampled).encode())
        if self.graphs is not None:
            hasher.update(self.graphs.digest())
        for call in self.communications:
            hasher.update(repr((call.name, call.layer, call.turn, call.kind, call.group, call.bytes)).encode())
        return hasher.hexdigest()


def _read_only(values: Float16s) -> Float16s:
    view = values.view()
    view.flags.writeable = False
    return view


def scale_exponents(largest: Floats) -> Ints:
    """Return the power of two per tensor that brings `largest` (its largest |g|) into [2**14, 2**15); 0 for zeros."""
    _, exponent = np.frexp(largest)  # largest = m * 2**exponent with m in [0.5, 1)
    return np.where(largest > 0, 15 - exponent.astype(np.int64), 0)


def to_float16(values: NDArray[np.floating], exponent: int | Ints) -> Float16s:
    """Return `values` * 2**exponent as float16; nonzero values stay at least the smallest float16."""
    halves = np.ldexp(values.astype(np.float64), exponent).astype(np.float16)
    halves[(halves == 0) & (values > 0)] = np.finfo(np.float16).smallest_subnormal
    return halves


def bundled_traces() -> list[str]:
    """Return the names of the traces that come with gradwire."""
    return sorted(path.parent.name for path in BUNDLED.glob("*/manifest.json"))


def resolve_trace(given: Any, where: str) -> Trace | None:
    """Return a Trace or None unchanged, else load the directory or bundled trace; TraceError if impossible."""
    if given is None or isinstance(given, Trace):
        return given
    require_path(given, where, f"a Trace, {EXPECTED_TRACE}", TraceError)
    return load_trace(given)


def load_trace(name: str | Path) -> Trace:
    """Load the bundled trace of that name, else the trace in that directory; TraceError if missing or damaged."""
    path = require_path(name, "load_trace(name)", EXPECTED_TRACE, TraceError)
    if str(name) in bundled_traces():
        return _read(BUNDLED / str(name))
    if os.path.isdir(path):
        return _read(path)
    known = bundled_traces()
    hint = nearest(str(name), known)
    if os.path.exists(path):
        raise TraceError("is a file", str(name), f"a trace directory with a manifest.json{hint}")
    raise TraceError("no such trace", str(name), f"a directory, or a bundled trace: {', '.join(known)}{hint}")


def _read(directory: Path) -> Trace:
    from gradwire.traces.storage.reader import read_parts

    parts = read_parts(directory, {name: BUNDLED / name for name in bundled_traces()})
    try:
        return Trace(**parts)
    except TraceError as error:
        raise TraceError(error.what, f"{directory}: {error.where}", error.expected) from None
