"""Soundness of a trace: whether its parts fit together, and its times are those of a training."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from gradwire.scenarios.errors import TraceError
from gradwire.scenarios.json_data import JsonView
from gradwire.traces.parts import (
    COLLECTIVES,
    DIMENSIONS,
    ELEMENT_BYTES,
    PASSES,
    Communication,
    Halves,
    Iteration,
    TensorInfo,
    Times,
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
    chunks: Mapping[str, Halves | None],
) -> None:
    """Raise TraceError unless the parts fit together: counts, shapes, indices, times that are possible.

    Parameters
    ----------
    names : of the layers.
    sampled : numbers of the iterations of which there are magnitudes.
    chunks : arrays of magnitudes, by name; None for one that is not there.
    """
    layers = len(names)
    counts = f"{layers} layers, {len(tensors)} tensors, {len(iterations)} iterations"
    _require(min(layers, len(tensors), len(iterations)) > 0, counts, "trace", "at least one of each")
    for number, tensor in enumerate(tensors):
        place = f"tensor {number} ({tensor.name})"
        _require(tensor.dtype in ELEMENT_BYTES, f"dtype {tensor.dtype!r}", place, ", ".join(ELEMENT_BYTES))
        elements = math.prod(tensor.shape)
        _require(tensor.numel == elements > 0, f"numel {tensor.numel}", place, f"{elements} (shape), above 0")
        _require(0 <= tensor.layer < layers, f"layer {tensor.layer}", place, f"0 to {layers - 1}")
    rising = sampled == sorted({i for i in sampled if 0 <= i < len(iterations)})
    _require(rising, f"sampled {sampled}", "trace", f"rising indices, 0 to {len(iterations) - 1}")
    shape = (len(sampled), sum(tensor.chunks for tensor in tensors))
    for name, values in chunks.items():
        if values is None:
            continue
        fits = values.shape == shape and values.dtype == np.float16
        _require(fits, f"{values.dtype} {values.shape}", name, f"float16 {shape}")
        # What is neither negative, infinite nor NaN has a bit pattern below that of infinity.
        possible = bool(np.ascontiguousarray(values).view(np.uint16).max(initial=0) < 0x7C00)
        _require(possible, "values that are negative or not finite", name, "magnitudes of gradients")
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
    """Raise TraceError unless communications are in the order of their passes, forward first and front layers first,
    and back layers first on the way back, and their times rise within them."""
    for tensor in tensors:
        _require(tensor.group in DIMENSIONS[2:], f"group {tensor.group!r}", tensor.name, " or ".join(DIMENSIONS[2:]))
    places = []
    for number, each in enumerate(given):
        where = f"communication {number} ({each.name})"
        for what, value, known in (
            ("pass", each.turn, PASSES), ("kind", each.kind, COLLECTIVES), ("group", each.group, DIMENSIONS),
        ):  # fmt: skip
            _require(value in known, f"{what} {value!r}", where, ", ".join(known))
        _require(0 <= each.layer < len(layers), f"layer {each.layer}", where, f"0 to {len(layers) - 1}")
        _require(0 < each.bytes < 2**53, f"{each.bytes} bytes", where, "1 or more")
        back = each.turn == "backward"
        places.append((back, -each.layer if back else each.layer))
    _require(places == sorted(places), "communications in another order", "trace", "that in which passes come to them")
    forth = sum(not back for back, _ in places)
    for iteration in iterations:
        where, asked = f"iteration {iteration.index}", iteration.asked_ps
        fits = asked.shape == (len(given),) and asked.dtype == np.int64
        _require(fits, f"asked_ps is {asked.dtype} {asked.shape}", where, f"int64 ({len(given)},)")
        edges = [0, *asked[:forth].tolist(), int(iteration.forward_end_ps.max()), *asked[forth:].tolist()]
        rising = edges == sorted(edges) and edges[-1] <= iteration.backward_end_ps
        _require(rising, "communications at times outside of their passes", where, "rising ones, within the pass")


def _check_manifest(manifest: JsonView, tensors: int) -> None:
    """Raise TraceError unless the parts of the manifest that programs rely on are what they should be."""
    magnitudes = manifest.get("magnitudes", {"source": "measured"})
    known = isinstance(magnitudes, dict) and magnitudes.get("source") in ("measured", "model")
    _require(known, f"magnitudes {magnitudes!r}", "manifest", 'a table with source "measured" or "model"')
    parts = manifest.get("split", {})
    fits = isinstance(parts, dict) and all(type(each) is int and each > 0 for each in parts.values())
    _require(fits, f"split {parts!r}", "manifest", "a table of numbers from 1, by dimension")
    groups = manifest.get("groups", [])
    _require(isinstance(groups, list), "groups that are no list", "manifest", "a list of tables")
    for number, group in enumerate(groups):
        place = f"manifest: groups[{number}]"
        _require(isinstance(group, dict), f"is {group!r}", place, "a table with kind and tensors")
        _require(isinstance(group.get("kind"), str), f"kind {group.get('kind')!r}", place, "a name")
        members = group.get("tensors")
        fits = isinstance(members, list) and all(type(m) is int and 0 <= m < tensors for m in members)
        _require(fits, f"tensors {members!r}", place, f"a list of indices, 0 to {tensors - 1}")


def _check_iteration(iteration: Iteration, position: int, layers: int, layer_of: Times) -> None:
    where = f"iteration {position}"
    _require(iteration.index == position, f"index {iteration.index}", where, f"{position}, its place")
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
    _require(ordered, "a layer that ends before it starts", where, "0 <= forward start <= forward end")
    within = bool(ready.min() >= 0 and ready.max() <= iteration.backward_end_ps)
    _require(within, "a gradient ready outside it", where, f"0 to {iteration.backward_end_ps} ps")
    total = iteration.backward_end_ps + iteration.optimizer_ps
    sums = iteration.optimizer_ps >= 0 and iteration.end_ps == total
    _require(sums, f"end_ps {iteration.end_ps}", where, f"{total}: end of backward plus optimiser")


def _check_order(
    names: Sequence[str], tensors: Sequence[TensorInfo], iteration: Iteration, layer_of: Times
) -> None:
    """Raise TraceError unless every layer runs forward before the backward pass ends, and before the gradients of
    its own parameters are ready: times that no training has mean that something else was timed.
    """
    where = f"iteration {iteration.index}"
    end, ready, last = iteration.forward_end_ps, iteration.ready_ps, iteration.backward_end_ps
    if int(end.max()) > last:
        what = f"layer {names[int(end.argmax())]} runs forward until {end.max()} ps"
        raise TraceError(what, where, f"not beyond the end of the backward pass, {last} ps")
    early = ready < end[layer_of]
    if early.any():
        tensor = int(early.argmax())
        layer = int(layer_of[tensor])
        raise TraceError(
            f"the gradient of {tensors[tensor].name} is ready at {ready[tensor]} ps",
            where,
            f"not before its layer has run forward, until {end[layer]} ps",
        )


def magnitude_rows(iterations: Sequence[Iteration], sampled: Sequence[int]) -> list[int]:
    """Which row of the chunk arrays each iteration answers with (see `gradwire.traces.trace.Trace.sample_of`)."""
    by_moment: dict[tuple[str, int], list[int]] = {}
    for row, index in enumerate(sampled):
        iteration = iterations[index]
        by_moment.setdefault((iteration.phase, iteration.rank), []).append(row)
    own = {index: row for row, index in enumerate(sampled)}
    rows = []
    for iteration in iterations:
        if iteration.index in own:
            rows.append(own[iteration.index])
            continue
        near = by_moment.get((iteration.phase, iteration.rank), [])
        _require(
            bool(near),
            f"no sampled iteration in phase {iteration.phase!r} of rank {iteration.rank}",
            "trace",
            "magnitudes of at least one iteration per phase and rank",
        )
        rows.append(min(near, key=lambda row: (abs(sampled[row] - iteration.index), row)))
    return rows
