"""`retime` combines the gradients of one trace with the times of another, for `gradwire trace retime`.

A CPU recording gives a model's gradients and their magnitudes, but not their ready times on a GPU: no scale factor
helps, as layers that compute much and layers that hold much slow down differently. So sizes and magnitudes of one
trace, `a`, are combined with the times of another, `b`, of the same model (see
`gradwire.traces.tools.tensor_matching`):

* a gradient is ready when its partner in b is (with several partners: the last of them);
* a layer runs forward from the first start to the last end of the layers of b with its gradients' partners;
* a gradient with the same neighbours in both, but another size (a head for other classes), has b's times unchanged;
* a gradient that b lacks is ready at the same share of the time between its neighbours as in a: the gradients with a
  partner that become ready just before and just after it in a. Before all of them it is ready with the first, after all
  of them at the end of the backward pass;
* a layer without any partner runs, in no time, after the previous one (layer 0: at the beginning);
* ends of the backward pass, and the optimizer, are those of b.

The iterations are those of a: the k-th of a phase and rank of a has the times of the k-th of b, of the phase of that
name if b has it and of all otherwise, cyclically, and of b's ranks cyclically.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from gradwire.scenarios.arrays import Ints
from gradwire.scenarios.errors import TraceError
from gradwire.scenarios.json_data import Json, JsonView
from gradwire.scenarios.readable import exact_percent_text
from gradwire.scenarios.validation.argument_checks import require_path
from gradwire.traces.formats.source import Progress
from gradwire.traces.parts import Iteration
from gradwire.traces.tools.tensor_matching import MatchUnit, TensorMatch, match_tensors
from gradwire.traces.trace import Trace, bundled_traces, load_trace

MIN_MATCHED_SHARE = 0.75
"""Share of tensors (or layers) of a with a partner of the same size, below which b is another model (our choice)."""
MACHINE_KEYS = (
    "capture_overhead",
    "clock",
    "compiled",
    "cpu",
    "cpu_share",
    "device",
    "exposed_communication_ps",
    "gpu",
    "threads",
    "timing",
    "timing_how",
    "versions",
)
"""Manifest keys of the recorded machine and its times."""
MAX_NAMES = 20  # tensor names per message or list


def retime(a: Trace, b: Trace, name: str | None = None, source: Json | None = None, command: str = "") -> Trace:
    """Return the gradients and magnitudes of `a` at the times of `b`. `name` is that of the new trace, by default a's;
    `source` is the manifest entry for b's file (see `load_times`); `command` goes into the manifest. TraceError if b is
    of another model, or its times are impossible for a."""
    if a.communications or a.graphs is not None:
        what = "has collectives besides those of gradients, for which b has no times"
        raise TraceError(what, a.name, "a trace of gradients only")
    matching = match_tensors(a, b)
    if matching.share < MIN_MATCHED_SHARE:
        raise _other_model_error(a, b, matching)
    manifest = {
        **_manifest(a, b, matching, source or _machine_entries(b) | _command_entries(b)),
        "name": name or a.name,
    }
    if command:
        manifest["command"] = command
    try:
        return Trace(manifest, a.layers, a.tensors, _iterations(a, b, matching), a._mean, a._max, a._rms, a.sampled)
    except TraceError as error:
        raise TraceError(error.what, f"{a.name} at the times of {b.name}: {error.where}", error.expected) from None


def load_times(
    given: str | Path, *, format: str = "auto", dtype: str = "float32", progress: Progress | None = None
) -> tuple[Trace, Json]:
    """Return (trace, manifest entry) of a source of times. It is a bundled trace, a trace directory, or a file of
    another tool; TraceError otherwise."""
    path = require_path(given, "times", "a trace, or a file of another tool", TraceError)
    if str(given) in bundled_traces() or path.is_dir():
        trace = load_trace(given)
        return trace, _machine_entries(trace) | _command_entries(trace)
    from gradwire.traces.formats import import_trace

    if not path.exists():
        known = ", ".join(bundled_traces())
        raise TraceError("no such trace or file", str(path), f"a file, a trace directory, or a bundled trace: {known}")
    trace = import_trace(path, format=format, dtype=dtype, progress=progress)
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    details = {
        key: value for key, value in _machine_entries(trace).items() if key != "digest"
    }  # it covers random magnitudes
    return trace, {**details, **trace.manifest["source"], "sha256": digest}


def _machine_entries(trace: Trace) -> Json:
    """Return the manifest entries on the machine and times of a trace."""
    machine = {key: trace.manifest[key] for key in MACHINE_KEYS if key in trace.manifest}
    return {"name": trace.name, "digest": trace.digest(), **machine}


def _command_entries(trace: Trace) -> Json:
    """Return the manifest entries on the step of the recording, and its command."""
    return {key: trace.manifest[key] for key in ("command", "batch", "image_size", "sequence") if key in trace.manifest}


def _manifest(a: Trace, b: Trace, matching: TensorMatch, source: Json) -> Json:
    entries = {key: value for key, value in a.manifest.items() if key not in (*MACHINE_KEYS, "command")}
    machine: Json = {key: b.manifest[key] for key in ("device", "gpu", "cpu", "threads") if key in b.manifest}
    timing = str(b.manifest.get("timing", "measured"))
    how = str(b.manifest.get("timing_how", "as captured"))
    command = {"command": a.manifest["command"]} if "command" in a.manifest else {}
    return {
        **entries,
        **machine,
        "timing": timing,
        "timing_how": f"{how}; of another recording than the magnitudes, see retimed",
        "retimed": {
            "magnitudes_of": {**_machine_entries(a), **command},
            "times_of": source,
            "matched_by": matching.by,
            "matched": len(matching.pairs),
            "units": len(matching.a),
            "same_place_other_size": [
                {"name": unit_a.name, "elements": unit_a.numel, "there": unit_b.name, "there_elements": unit_b.numel}
                for unit_a, unit_b in matching.resized
            ],
            "interpolated": [unit.name for unit in matching.only_a],
            "unused": [unit.name for unit in matching.only_b],
        },
    }


def _other_model_error(a: Trace, b: Trace, matching: TensorMatch) -> TraceError:
    what = "layers" if matching.by == "layers" else "tensors"
    unmatched: Sequence[MatchUnit] = [*(unit_a for unit_a, _ in matching.resized), *matching.only_a]
    names = ", ".join(f"{unit.name} ({unit.numel:,} elements)" for unit in unmatched[:3])
    more = f" and {len(unmatched) - 3} more" if len(unmatched) > 3 else ""
    return TraceError(
        f"is of another model: {len(matching.pairs)} of {len(matching.a)} {what} of {a.name} have a partner of the "
        f"same size in it, not {names}{more}",
        b.name,
        f"a recording of the same model, with at least {exact_percent_text(MIN_MATCHED_SHARE)} of them",
    )


def _iterations(a: Trace, b: Trace, matching: TensorMatch) -> list[Iteration]:
    partners = matching.partners
    layers = _partner_layers(a, b, partners)
    count: dict[tuple[str, int], int] = {}
    result = []
    for iteration_a in a.iterations:
        key = iteration_a.phase, iteration_a.rank
        position = count.get(key, 0)
        count[key] = position + 1
        iteration_b = _source_iteration(b, iteration_a, position)
        start, end = _forward(iteration_b, layers)
        ready = _ready(iteration_a, iteration_b, partners)
        layer_of = np.array([tensor.layer for tensor in a.tensors])
        lacking = np.array([number not in partners for number in range(len(a.tensors))])
        ready[lacking] = np.maximum(ready, end[layer_of])[lacking]  # estimates must not precede the forward pass
        result.append(
            replace(
                iteration_a,
                forward_start_ps=start,
                forward_end_ps=end,
                ready_ps=ready,
                backward_end_ps=iteration_b.backward_end_ps,
                optimizer_ps=iteration_b.optimizer_ps,
                end_ps=iteration_b.end_ps,
            )
        )
    return result


def _source_iteration(b: Trace, iteration_a: Iteration, position: int) -> Iteration:
    """Return the iteration of b for one of a, the `position`-th of its phase and rank."""
    rank = b.ranks[iteration_a.rank % len(b.ranks)]
    same = [iteration for iteration in b.iterations if iteration.rank == rank]
    of_phase = [iteration for iteration in same if iteration.phase == iteration_a.phase] or same
    return of_phase[position % len(of_phase)]


def _partner_layers(a: Trace, b: Trace, partners: dict[int, tuple[int, ...]]) -> list[list[int]]:
    """Return the layers of b that each layer of a is matched with, by their tensors. Layers without tensors (such as a
    head with the embedding's weights) match by name, or by order if both traces have equally many."""
    partner_layers: list[set[int]] = [set() for _ in a.layers]
    for number, tensor in enumerate(a.tensors):
        partner_layers[tensor.layer] |= {b.tensors[other].layer for other in partners.get(number, ())}
    bare_a, bare_b = _without_tensors(a), _without_tensors(b)
    for position, layer in enumerate(bare_a):
        named = [other for other in bare_b if b.layers[other] == a.layers[layer]]
        partner_layers[layer] |= set(named or (bare_b[position : position + 1] if len(bare_a) == len(bare_b) else []))
    return [sorted(layers) for layers in partner_layers]


def _without_tensors(trace: Trace) -> list[int]:
    return sorted(set(range(len(trace.layers))) - {tensor.layer for tensor in trace.tensors})


def _forward(iteration_b: Iteration, layers: Sequence[Sequence[int]]) -> tuple[Ints, Ints]:
    """Return (start, end) of the forward pass of each layer of a."""
    start, end = (np.zeros(len(layers), dtype=np.int64) for _ in range(2))
    for layer, partner_layers in enumerate(layers):
        if partner_layers:
            start[layer] = iteration_b.forward_start_ps[partner_layers].min()
            end[layer] = iteration_b.forward_end_ps[partner_layers].max()
        elif layer:
            start[layer] = end[layer] = end[layer - 1]
    return start, end


def _ready(iteration_a: Iteration, iteration_b: Iteration, partners: dict[int, tuple[int, ...]]) -> Ints:
    """Return the ready time of each gradient of a."""
    count = len(iteration_a.ready_ps)
    ready = np.zeros(count, dtype=np.int64)
    known = np.array(sorted(partners), dtype=np.int64)
    for number in known.tolist():
        ready[number] = iteration_b.ready_ps[list(partners[number])].max()
    order = known[np.argsort(iteration_a.ready_ps[known], kind="stable")]
    times_in_a = iteration_a.ready_ps[order]
    for number in sorted(set(range(count)) - set(partners)):
        moment = int(iteration_a.ready_ps[number])
        after = int(np.searchsorted(times_in_a, moment, side="right"))
        if after == 0:
            ready[number] = int(ready[order].min())
        elif after == len(order):
            ready[number] = iteration_b.backward_end_ps
        else:
            low, high = times_in_a[after - 1 : after + 1].tolist()
            first, last = ready[order[after - 1 : after + 1]].tolist()
            ready[number] = first + (last - first) * (moment - low) // (high - low)
    return ready


def describe_retiming(manifest: JsonView) -> list[str]:
    """Return lines that describe a retimed trace; none for another trace."""
    details = manifest.get("retimed")
    if not isinstance(details, dict):
        return []
    times, sizes = details.get("times_of", {}), details.get("magnitudes_of", {})
    where = times.get("file", times.get("name"))
    machine = times.get("gpu") or times.get("cpu") or times.get("device")
    what = "layers" if details.get("matched_by") == "layers" else "tensors"
    by = {"name": "by name", "order": "by order and size", "readiness": "by order of readiness and size"}
    lines = [
        f"sizes and magnitudes of {sizes.get('name')}; times of {where}" + (f" ({machine})" if machine else ""),
        f"  {details.get('matched')} of {details.get('units')} {what} matched "
        f"{by.get(str(details.get('matched_by')), 'by order and size')}",
    ]
    for item in details.get("same_place_other_size", [])[:MAX_NAMES]:
        lines.append(
            f"  same position, other size: {item['name']} ({item['elements']:,} elements) "
            f"has the times of {item['there']} ({item['there_elements']:,})"
        )
    for title, key in (("interpolated between its neighbours", "interpolated"), ("unmatched, unused", "unused")):
        names = list(details.get(key, []))
        lines += [f"  {title}: {item}" for item in names[:MAX_NAMES]]
        if len(names) > MAX_NAMES:
            lines.append(f"  {title}: {len(names) - MAX_NAMES} more, see manifest.json")
    return lines


def require_equal_magnitudes(trace: Trace, name: str) -> None:
    """Raise TraceError unless the bundled trace `name` has exactly the magnitudes of `trace`."""
    if name not in bundled_traces():
        known = ", ".join(bundled_traces())
        raise TraceError(f"shares the magnitudes of {name}", trace.name, f"a bundled trace: {known}")
    other = load_trace(name)
    for values, other_values in ((trace._mean, other._mean), (trace._max, other._max), (trace._rms, other._rms)):
        equal = values is other_values or (
            values is not None and other_values is not None and np.array_equal(values, other_values)
        )
        if not equal or trace.sampled != other.sampled:
            raise TraceError(f"magnitudes differ from those of {name}", trace.name, "equal magnitudes, to share them")
