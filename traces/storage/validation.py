"""Checks that the parts of a trace fit together, and that its times are possible in training."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from gradwire.scenarios.arrays import Float16s, Ints
from gradwire.scenarios.errors import TraceError
from gradwire.scenarios.json_data import JsonView
from gradwire.traces.parts import (
    COLLECTIVES,
    DIMENSIONS,
    ELEMENT_BYTES,
    GRADIENT_DIMENSIONS,
    PASSES,
    Communication,
    Iteration,
    TensorInfo,
)


def _require(holds: bool, what: str, where: str, expected: str) -> None:
    if not holds:
        raise TraceError(what, where, expected)


def check_parts(
    manifest: JsonView,
    names: Sequence[str],
    tensors: Sequence[TensorInfo],
    iterations: Sequence[Iteration],
    sampled: list[int],
    chunks: Mapping[str, Float16s | None],
) -> None:
    """Raise TraceError unless counts, shapes, indices and times of the parts fit together. `names` are those of the
    layers, `sampled` the indices of the iterations with magnitudes, `chunks` the arrays of magnitudes by name, None if
    absent."""
    layers = len(names)
    counts = f"{layers} layers, {len(tensors)} tensors, {len(iterations)} iterations"
    _require(min(layers, len(tensors), len(iterations)) > 0, counts, "trace", "at least one of each")
    for number, tensor in enumerate(tensors):
        where = f"tensor {number} ({tensor.name})"
        _require(tensor.dtype in ELEMENT_BYTES, f"dtype {tensor.dtype!r}", where, ", ".join(ELEMENT_BYTES))
        elements = math.prod(tensor.shape)
        _require(tensor.numel == elements > 0, f"numel {tensor.numel}", where, f"{elements} (shape), above 0")
        _require(0 <= tensor.layer < layers, f"layer {tensor.layer}", where, f"0 to {layers - 1}")
    rising = sampled == sorted({i for i in sampled if 0 <= i < len(iterations)})
    _require(rising, f"sampled {sampled}", "trace", f"rising indices, 0 to {len(iterations) - 1}")
    shape = (len(sampled), sum(tensor.chunks for tensor in tensors))
    for name, values in chunks.items():
        if values is None:
            continue
        fits = values.shape == shape and values.dtype == np.float16
        _require(fits, f"{values.dtype} {values.shape}", name, f"float16 {shape}")
        # Values that are not negative, infinite or NaN have bit patterns below that of infinity.
        possible = bool(np.ascontiguousarray(values).view(np.uint16).max(initial=0) < 0x7C00)
        _require(possible, "negative or non-finite values", name, "magnitudes of gradients")
    layer_of = np.array([tensor.layer for tensor in tensors], dtype=np.int64)
    for position, iteration in enumerate(iterations):
        _check_iteration(iteration, position, layers, layer_of)
        _check_order(names, tensors, iteration, layer_of)
    _check_manifest(manifest, len(tensors))


def check_communications(
    given: Sequence[Communication],
    layers: Sequence[str],
    tensors: Sequence[TensorInfo],
    iterations: Sequence[Iteration],
) -> None:
    """Raise TraceError unless communications are in the order of their passes and their times rise. The forward pass
    comes first, with front layers first; the backward pass has back layers first."""
    for tensor in tensors:
        _require(
            tensor.group in GRADIENT_DIMENSIONS,
            f"group {tensor.group!r}",
            tensor.name,
            " or ".join(GRADIENT_DIMENSIONS),
        )
    positions = []
    for number, communication in enumerate(given):
        where = f"communication {number} ({communication.name})"
        for what, value, known in (
            ("pass", communication.turn, PASSES),
            ("kind", communication.kind, COLLECTIVES),
            ("group", communication.group, DIMENSIONS),
        ):
            _require(value in known, f"{what} {value!r}", where, ", ".join(known))
        _require(
            0 <= communication.layer < len(layers), f"layer {communication.layer}", where, f"0 to {len(layers) - 1}"
        )
        _require(0 < communication.bytes < 2**53, f"{communication.bytes} bytes", where, "1 or more")
        back = communication.turn == "backward"
        positions.append((back, -communication.layer if back else communication.layer))
    _require(positions == sorted(positions), "communications out of order", "trace", "the order of the passes")
    forward = sum(not back for back, _ in positions)
    for iteration in iterations:
        where, times = f"iteration {iteration.index}", iteration.asked_ps
        fits = times.shape == (len(given),) and times.dtype == np.int64
        _require(fits, f"asked_ps is {times.dtype} {times.shape}", where, f"int64 ({len(given)},)")
        edges = [0, *times[:forward].tolist(), int(iteration.forward_end_ps.max()), *times[forward:].tolist()]
        rising = edges == sorted(edges) and edges[-1] <= iteration.backward_end_ps
        _require(rising, "communication times outside of their passes", where, "rising times within the pass")


def _check_manifest(manifest: JsonView, tensors: int) -> None:
    """Raise TraceError unless the parts of the manifest that programs rely on are valid."""
    magnitudes = manifest.get("magnitudes", {"source": "measured"})
    known = isinstance(magnitudes, dict) and magnitudes.get("source") in ("measured", "model")
    _require(known, f"magnitudes {magnitudes!r}", "manifest", 'a table with source "measured" or "model"')
    parts = manifest.get("split", {})
    fits = isinstance(parts, dict) and all(type(count) is int and count > 0 for count in parts.values())
    _require(fits, f"split {parts!r}", "manifest", "a table of numbers from 1, by dimension")
    groups = manifest.get("groups", [])
    _require(isinstance(groups, list), "groups is not a list", "manifest", "a list of tables")
    for number, group in enumerate(groups):
        where = f"manifest: groups[{number}]"
        _require(isinstance(group, dict), f"is {group!r}", where, "a table with kind and tensors")
        _require(isinstance(group.get("kind"), str), f"kind {group.get('kind')!r}", where, "a name")
        members = group.get("tensors")
        fits = isinstance(members, list) and all(type(m) is int and 0 <= m < tensors for m in members)
        _require(fits, f"tensors {members!r}", where, f"a list of indices, 0 to {tensors - 1}")


def _check_iteration(iteration: Iteration, position: int, layers: int, layer_of: Ints) -> None:
    where = f"iteration {position}"
    _require(iteration.index == position, f"index {iteration.index}", where, f"{position}, its position")
    _require(iteration.rank >= 0, f"rank {iteration.rank}", where, "0 or more")
    start, end, ready = iteration.forward_start_ps, iteration.forward_end_ps, iteration.ready_ps
    for name, times, count in (
        ("forward_start_ps", start, layers),
        ("forward_end_ps", end, layers),
        ("ready_ps", ready, len(layer_of)),
    ):
        fits = times.shape == (count,) and times.dtype == np.int64
        _require(fits, f"{name} is {times.dtype} {times.shape}", where, f"int64 ({count},)")
    ordered = bool((start >= 0).all() and (end >= start).all())
    _require(ordered, "a layer ends before it starts", where, "0 <= forward start <= forward end")
    within = bool(ready.min() >= 0 and ready.max() <= iteration.backward_end_ps)
    _require(within, "a gradient is ready outside of the iteration", where, f"0 to {iteration.backward_end_ps} ps")
    total = iteration.backward_end_ps + iteration.optimizer_ps
    sums = iteration.optimizer_ps >= 0 and iteration.end_ps == total
    _require(sums, f"end_ps {iteration.end_ps}", where, f"{total}: end of backward plus optimiser")


def _check_order(names: Sequence[str], tensors: Sequence[TensorInfo], iteration: Iteration, layer_of: Ints) -> None:
    """Raise TraceError unless every layer runs forward before its gradients are ready and the backward pass ends.
    Impossible times mean that something else was timed."""
    where = f"iteration {iteration.index}"
    end, ready, last = iteration.forward_end_ps, iteration.ready_ps, iteration.backward_end_ps
    if int(end.max()) > last:
        what = f"layer {names[int(end.argmax())]} runs forward until {end.max()} ps"
        raise TraceError(what, where, f"not beyond the end of the backward pass, {last} ps")
    early = ready < end[layer_of]
    if early.any():
        tensor = int(early.argmax())
        layer = int(layer_of[tensor])
        what = f"the gradient of {tensors[tensor].name} is ready at {ready[tensor]} ps"
        raise TraceError(what, where, f"not before its layer has run forward, until {end[layer]} ps")


def magnitude_rows(iterations: Sequence[Iteration], sampled: Sequence[int]) -> list[int]:
    """Return the row of the chunk arrays that each iteration uses (see `gradwire.traces.trace.Trace.sample_of`)."""
    by_moment: dict[tuple[str, int], list[int]] = {}
    for row, index in enumerate(sampled):
        iteration = iterations[index]
        by_moment.setdefault((iteration.phase, iteration.rank), []).append(row)
    row_of = {index: row for row, index in enumerate(sampled)}
    rows = []
    for iteration in iterations:
        if iteration.index in row_of:
            rows.append(row_of[iteration.index])
            continue
        candidates = by_moment.get((iteration.phase, iteration.rank), [])
        _require(
            bool(candidates),
            f"no sampled iteration in phase {iteration.phase!r} of rank {iteration.rank}",
            "trace",
            "magnitudes of at least one iteration per phase and rank",
        )
        rows.append(min(candidates, key=lambda row: (abs(sampled[row] - iteration.index), row)))
    return rows
