"""The trace: what one training job would put on a network, recorded once and replayed as often as needed.

A trace holds, for a few captured iterations, *when* each gradient was ready and *how large* its values were;
never the values themselves. That is all a network can be sensitive to, and it is small: six bytes per 256
elements.

On disk a trace is a directory (see `gradwire.traces.storage` for the columns)

    manifest.json       schema version, name, where it comes from, how many rows the tables must have
    layers.parquet      layers in forward order
    tensors.parquet     tensors in parameter order
    iterations.parquet  one row per captured iteration: rank, times and loss
    chunks.parquet      one row per sampled iteration and run of 256 elements: mean |g|, max |g|, rms
    communications.parquet  where there are any: collectives that passes wait for, other than those of gradients
    nodes.parquet, calls.parquet  where they are known: the graphs of all ranks (`gradwire.traces.graphs`)

Times are recorded in every captured iteration, magnitudes perhaps only in some, the *sampled* ones. An
iteration without magnitudes of its own answers with those of the nearest sampled one of its phase and rank.
A trace of several workers holds the iterations of all of them; `Iteration.rank` says whose each is.

What the manifest may say beyond the name, all optional, for those who must tell real from estimated:

    magnitudes  {"source": "measured"}, or {"source": "model", "model": "lognormal", "fitted_to": ...,
                "parameters": ...}; measured if absent
    timing      "measured", "imported", or "estimated" followed by how; measured if absent
    groups      [{"kind": "ddp_bucket" | "fsdp_unit", "tensors": [indices], ...}, ...]: tensors that travel
                together
    source      of an imported trace: {"format", "file", "understood": {...}, "skipped": {name: count},
                "doubtful": {name: count}}, the last of records that were clipped or left out, if there are any
    parallel    into how many parts the job's model was split: {"tensor": 2, "expert": 1, "pipeline": 1}; 1 if absent

Every layer runs forward before the gradients of its parameters are ready, and all of that before the backward pass
ends; a trace in another order is refused.

Units: every time is int64 picoseconds relative to the start of its iteration (the moment the model is
called), every size is bytes.

Magnitudes are float16, which would turn anything below 3e-8 into zero; in the bundled trace that would be 3 %
of the chunks of an early iteration. So each tensor has one power of two, `scale_exponent`, the same in all
iterations: stored = |g| * 2**exponent, chosen so that the largest chunk maximum of the tensor lands in
[2**14, 2**15), just below float16's limit of 65504. Chunks down to 2**-28 of that maximum keep float16's full
precision, and a chunk that is not zero is never stored as zero. Values of one tensor compare directly across
iterations; to compare tensors use `Trace.magnitudes`, which removes the scale.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import os
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradwire.scenarios.errors import TraceError
from gradwire.scenarios.given import path_of
from gradwire.scenarios.json_data import Json, JsonView
from gradwire.traces.graphs import Graphs
from gradwire.traces.parts import CHUNK_ELEMENTS, Communication, Floats, Halves, Iteration, TensorInfo
from gradwire.traces.soundness import check_communications, check_parts, magnitude_rows

SCHEMA_VERSION = 3
NAMED_BY = "a trace directory, or the name of a bundled trace"
BUNDLED = Path(__file__).resolve().parent / "bundled"



class Trace:
    """Tensors, layers, iterations and chunk magnitudes of one recorded job. Treat it as read-only.

    `chunk_mean`, `chunk_max` and `chunk_rms` (root of the mean square) are float16 [sampled iterations,
    chunks of all tensors in order], scaled as described above; `chunk_rms` is None where it is not known.
    `sampled` lists the indices of the iterations that the rows belong to, rising; all iterations by default.
    Every phase of every rank needs a sampled one. `communications` are the collectives that passes wait for, in the
    order in which they are called; `graphs` are those of all ranks, where they are known. TraceError if the parts do
    not fit together.
    """

    def __repr__(self) -> str:
        return f"<Trace {self._what()}>"

    def _repr_html_(self) -> str:
        """What notebooks show: what it is, and its largest tensors."""
        largest = sorted(self.tensors, key=lambda each: -each.numel)[:10]
        lines = "".join(
            f"<tr><td>{escape(each.name)}</td><td>{escape(self.layers[each.layer])}</td><td>{each.numel:,}</td></tr>"
            for each in largest
        )
        head = "<tr><th>largest tensors</th><th>layer</th><th>elements</th></tr>"
        return f"<p><b>Trace</b>: {escape(self._what())}</p><table>{head}{lines}</table>"

    def _what(self) -> str:
        name, total = self.manifest.get("name", ""), sum(each.numel for each in self.tensors)
        counts = f"{len(self.tensors):,} tensors in {len(self.layers):,} layers, {total / 1e6:.1f} M elements"
        return f"{name}: {counts}, {len(self.iterations):,} iterations" if name else f"of {counts}"

    def __init__(
        self,
        manifest: JsonView,
        layers: Sequence[str],
        tensors: Sequence[TensorInfo],
        iterations: Sequence[Iteration],
        chunk_mean: Halves,
        chunk_max: Halves,
        chunk_rms: Halves | None = None,
        sampled: Sequence[int] | None = None,
        communications: Sequence[Communication] = (),
        graphs: Graphs | None = None,
    ) -> None:
        self.manifest: Json = json.loads(json.dumps(manifest))  # as it will be read back
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
        """Iteration indices per phase of training, in order of capture; e.g. {"early": [0, 1], "late": [2,
        3]}.
        """
        phases: dict[str, list[int]] = {}
        for iteration in self.iterations:
            phases.setdefault(iteration.phase, []).append(iteration.index)
        return phases

    @property
    def ranks(self) -> list[int]:
        """The workers whose iterations the trace holds, rising; [0] for one that recorded a single worker."""
        return sorted({iteration.rank for iteration in self.iterations})

    @property
    def groups(self) -> list[Json]:
        """Tensors that travel together (DDP buckets, FSDP units), as the manifest says; often none."""
        return list(self.manifest.get("groups", []))

    @property
    def parallel(self) -> dict[str, int]:
        """Into how many parts the recorded job had split its model, by dimension; 1 where the manifest says nothing."""
        said = self.manifest.get("split", {})
        return {name: int(said.get(name, 1)) for name in ("tensor", "expert", "pipeline")}

    @property
    def magnitude_source(self) -> str:
        """Where the magnitudes come from: "measured" or "model"."""
        return str(self.manifest.get("magnitudes", {}).get("source", "measured"))

    @property
    def total_bytes(self) -> int:
        """Gradient bytes of one iteration."""
        return sum(tensor.bytes for tensor in self.tensors)

    def sample_of(self, iteration: int) -> int:
        """The sampled iteration whose magnitudes stand for those of `iteration`: itself if it is sampled, else
        the nearest of its phase and rank, the earlier of two equally near.
        """
        return self.sampled[self._row[iteration]]

    def chunk_mean(self, iteration: int, tensor: int) -> Halves:
        """Mean |g| of each run of 256 elements, float16 [chunks], times 2**scale_exponent of the tensor."""
        return self._chunks(self._mean, iteration, tensor)

    def chunk_max(self, iteration: int, tensor: int) -> Halves:
        """Largest |g| of each run of 256 elements, float16 [chunks], scaled like `chunk_mean`."""
        return self._chunks(self._max, iteration, tensor)

    def chunk_rms(self, iteration: int, tensor: int) -> Halves | None:
        """Root of the mean of g**2 of each run, float16 [chunks], scaled like `chunk_mean`; None if unknown."""
        return None if self._rms is None else self._chunks(self._rms, iteration, tensor)

    def _chunks(self, values: Halves, iteration: int, tensor: int) -> Halves:
        number = range(len(self.tensors))[tensor]  # from the end if it is negative, as in a list
        return values[self._row[iteration], self._offsets[number] : self._offsets[number + 1]]

    def magnitudes(self, iteration: int, tensor: int) -> tuple[Floats, Floats]:
        """(mean |g|, max |g|) per chunk in the gradient's own units, float64 [chunks] each."""
        exponent = -self.tensors[tensor].scale_exponent
        return (
            np.ldexp(self.chunk_mean(iteration, tensor).astype(np.float64), exponent),
            np.ldexp(self.chunk_max(iteration, tensor).astype(np.float64), exponent),
        )

    def l2(self, iteration: int, tensor: int) -> Floats | None:
        """Euclidean norm of each run in the gradient's own units, float64 [chunks]; None if unknown.

        Stored is the root mean square, as the norm itself, up to 16 times the largest value, could overflow.
        """
        rms = self.chunk_rms(iteration, tensor)
        if rms is None:
            return None
        info = self.tensors[tensor]
        elements = np.full(info.chunks, CHUNK_ELEMENTS, dtype=np.float64)
        elements[-1] = info.numel - (info.chunks - 1) * CHUNK_ELEMENTS
        return np.asarray(np.ldexp(rms.astype(np.float64), -info.scale_exponent) * np.sqrt(elements))

    def save(self, directory: str | Path) -> Path:
        """Write the trace to a new directory, or to an empty one; it appears complete or not at all."""
        from gradwire.traces.storage import write

        return write(self, directory)

    def digest(self) -> str:
        """sha256 over everything the trace says, independent of how it was stored.

        Ranks, rms, sampling and communications count where they are used, so that a trace of an older schema version
        keeps its digest.
        """
        hasher = hashlib.sha256()
        hasher.update(json.dumps([1, self.manifest, self.layers], sort_keys=True).encode())
        for t in self.tensors:
            told = (t.name, t.shape, t.numel, t.dtype, t.layer, t.scale_exponent)
            hasher.update(repr(told if t.group == "data" else (*told, t.group)).encode())
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
        for each in self.communications:
            hasher.update(repr((each.name, each.layer, each.turn, each.kind, each.group, each.bytes)).encode())
        return hasher.hexdigest()


def _read_only(values: Halves) -> Halves:
    view = values.view()
    view.flags.writeable = False
    return view


def scale_exponents(largest: NDArray[np.float64]) -> NDArray[np.int64]:
    """The power of two per tensor that brings `largest` (its largest |g|) into [2**14, 2**15); 0 for an all-
    zero tensor.
    """
    _, exponent = np.frexp(largest)  # largest = m * 2**exponent with m in [0.5, 1)
    return np.where(largest > 0, 15 - exponent.astype(np.int64), 0)


def to_halves(values: NDArray[np.floating], exponent: int) -> Halves:
    """`values` * 2**exponent as float16; what is not zero stays at least the smallest float16."""
    halves = np.ldexp(values.astype(np.float64), exponent).astype(np.float16)
    vanished = (halves == 0) & (values > 0)
    halves[vanished] = np.finfo(np.float16).smallest_subnormal
    return halves


def bundled_traces() -> list[str]:
    """Names of the traces that come with gradwire."""
    return sorted(path.parent.name for path in BUNDLED.glob("*/manifest.json"))


def trace_of(given: Any, where: str) -> Trace | None:
    """A Trace as it is, or None; a directory or the name of a bundled trace loaded. Raises `TraceError`."""
    if given is None or isinstance(given, Trace):
        return given
    path_of(given, where, f"a Trace, {NAMED_BY}", TraceError)
    return load_trace(given)


def load_trace(name: str | Path) -> Trace:
    """The bundled trace of that name, else the trace in that directory. TraceError if neither, or if it is
    damaged.
    """
    from gradwire.traces.reading import read

    path = path_of(name, "load_trace(name)", NAMED_BY, TraceError)
    if str(name) in bundled_traces():
        return read(BUNDLED / str(name))
    if os.path.isdir(path):
        return read(path)
    known = bundled_traces()
    near = difflib.get_close_matches(str(name), known, n=3)
    hint = f"; did you mean {' or '.join(near)}?" if near else ""
    if os.path.exists(path):
        raise TraceError("is a file", str(name), f"a trace directory with a manifest.json{hint}")
    raise TraceError("no such trace", str(name), f"a directory, or a bundled trace: {', '.join(known)}{hint}")
