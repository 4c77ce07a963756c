"""From the events of a profile to iterations: the second half of `gradwire.traces.formats.kineto`, which says the
rules.

Times of events are microseconds of the profiler's clock, float64; those of the draft picoseconds since the
start of the iteration.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradwire.traces.formats.draft import PS_PER_US, Draft, Gradient, Timing, spread_forward

Floats = NDArray[np.float64]


class Call(NamedTuple):
    """A gradient's collective, or its accumulation, as called at `at` microseconds."""

    kind: str
    at: float
    numel: int
    dtype: str
    shape: tuple[int, ...] = ()
    correlation: float = math.nan


@dataclass
class Recording:
    """What of a profile matters, in arrays: a file of a gigabyte has millions of kernels and launches."""

    steps: list[tuple[float, float, int]] = field(default_factory=list)
    optimizers: list[tuple[float, float]] = field(default_factory=list)
    accumulated: list[Call] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)  # record_param_comms
    operators: list[Call] = field(default_factory=list)  # c10d::allreduce_ with shapes
    kernels_of: list[Call] = field(default_factory=list)  # NCCL kernels
    forward: array[float] = field(default_factory=lambda: array("d"))  # operators of forward passes
    engine: array[float] = field(default_factory=lambda: array("d"))  # autograd functions: start, end
    backward: dict[str, array[float]] = field(default_factory=dict)  # operators of autograd by thread: start, end
    trainers: set[str] = field(default_factory=set)  # threads that call the model and the optimiser
    kernels: array[float] = field(default_factory=lambda: array("d"))  # start, end, correlation, stream
    launches: array[float] = field(default_factory=lambda: array("d"))  # correlation, time
    streams: dict[object, int] = field(default_factory=dict)
    communicating: set[int] = field(default_factory=set)

    def add_kernel(
        self, begin: float, lasts: float, correlation: float, stream: object, communicates: bool
    ) -> None:
        number = self.streams.setdefault(
            stream if isinstance(stream, (int, str)) else None, len(self.streams)
        )
        if communicates:
            self.communicating.add(number)
        else:
            self.kernels.extend((begin, begin + lasts, correlation, number))

    def add_launch(self, begin: float, correlation: float) -> None:
        if not math.isnan(correlation):
            self.launches.extend((correlation, begin))


class _Gpu:
    """Kernels of the compute stream by the time of their launch; empty for a profile of the CPU alone."""

    def __init__(self, recording: Recording, skipped: Counter[str]) -> None:
        kernels = np.array(recording.kernels).reshape(-1, 4)
        launches = np.array(recording.launches).reshape(-1, 2)
        self._order = launches[np.argsort(launches[:, 0], kind="stable")]
        launched = self.launched(kernels[:, 2])
        known = np.isfinite(launched)
        if known.any():
            skipped["kernels launched before the recording began"] += int((~known).sum())
            kernels, launched = kernels[known], launched[known]
        else:
            launched = kernels[:, 0]
        if len(kernels):
            streams, counts = np.unique(kernels[:, 3], return_counts=True)
            # NCCL's own streams apart, computing happens where most kernels run.
            counts = np.where(np.isin(streams, list(recording.communicating)), 0, counts)
            computing = kernels[:, 3] == streams[np.argmax(counts)]
            kernels, launched = kernels[computing], launched[computing]
        order = np.argsort(launched, kind="stable")
        self.launch: Floats = launched[order]
        self.start: Floats = kernels[order, 0]
        self.end: Floats = np.maximum.accumulate(kernels[order, 1]) if len(kernels) else kernels[:, 1]

    def __bool__(self) -> bool:
        return len(self.launch) > 0

    def launched(self, correlations: Floats) -> Floats:
        """Times of the launches with these correlation ids, NaN where there is none."""
        if not len(self._order):
            return np.full(len(correlations), math.nan)
        place = np.searchsorted(self._order[:, 0], correlations)
        place = np.minimum(place, len(self._order) - 1)
        found = self._order[place, 0] == correlations
        return np.where(found, self._order[place, 1], math.nan)

    def done(self, moment: float) -> float:
        """When the compute stream has done all that was launched before `moment`; NaN if that was nothing."""
        before = int(np.searchsorted(self.launch, moment, side="left"))
        return float(self.end[before - 1]) if before else math.nan

    def within(self, begin: float, end: float) -> slice:
        """The kernels launched from `begin` up to `end`."""
        return slice(*np.searchsorted(self.launch, (begin, end), side="left"))


def build(recording: Recording, draft: Draft, rank: int) -> None:
    """Fill in the draft's gradients, layers, iterations and groups."""
    gpu = _Gpu(recording, draft.skipped)
    recording.optimizers.sort()
    buckets = _buckets(recording, gpu, draft.skipped)
    calls = sorted(recording.accumulated, key=lambda call: call.at) or buckets
    by_parameter = bool(recording.accumulated)
    engine, forward = _passes(recording)
    steps = _steps(recording, draft.skipped)
    moments = [call.at for call in calls]
    members = [calls[bisect_left(moments, begin) : bisect_left(moments, end)] for begin, end, _ in steps]
    draft.skipped["gradients outside of every iteration"] += len(calls) - sum(map(len, members))
    if by_parameter:
        members = [_last_micro_batch(called, forward, draft.skipped) for called in members]
    sequences = [tuple((c.numel, c.dtype, c.shape) for c in called) for called in members]
    common = Counter(sequence for sequence in sequences if sequence).most_common(1)
    if not common:
        return
    chosen = common[0][0]
    kept = [n for n, sequence in enumerate(sequences) if sequence == chosen]
    draft.skipped["iterations with other gradients than most"] += len(steps) - len(kept)
    word = "parameter" if by_parameter else "bucket" if members[kept[0]][0].kind == "all_reduce" else "unit"
    last = len(chosen) - 1
    # Gradients become ready back to front: the first call belongs to the last layer.
    for place in range(last, -1, -1):
        numel, dtype, shape = chosen[place]
        layer = last - place
        draft.layers.append(f"{word}{layer}")
        draft.gradients.append(Gradient(f"{word}{layer}", numel, dtype, layer, shape))
    for number in kept:
        timing = _timing(members[number], steps[number], recording, gpu, forward, engine, rank, draft.skipped)
        if timing is not None:
            draft.iterations.append(timing)
    draft.understood["iterations"] = len(draft.iterations)
    draft.how = (
        "readiness and the ends of the passes as recorded"
        + (" on the GPU's compute stream" if gpu else " on the CPU")
        + "; forward times of single layers estimated from their share of the backward pass"
    )
    draft.groups = _groups(buckets, steps[kept[0]], members[kept[0]], by_parameter, draft.skipped)
    draft.skipped += Counter()  # without the names that were counted zero times


def _passes(recording: Recording) -> tuple[Floats, Floats]:
    """Times at which autograd's functions began, and those of the operators of forward passes.

    What ran within one of autograd's functions is no forward pass but activation checkpointing.
    """
    engine = np.array(recording.engine or _operators_of_autograd(recording)).reshape(-1, 2)
    engine = engine[np.argsort(engine[:, 0], kind="stable")]
    forward = np.sort(np.array(recording.forward))
    if not len(engine):
        return engine[:, 0], forward
    place = np.searchsorted(engine[:, 0], forward, side="right") - 1
    within = (place >= 0) & (np.maximum.accumulate(engine[:, 1])[place] > forward)
    return engine[:, 0], forward[~within]


def _operators_of_autograd(recording: Recording) -> array[float]:
    """Start and end of the operators of backward passes where autograd's functions were not recorded: those on a
    thread that calls neither model nor optimiser; with none (a CPU's backward pass runs where it is called), all.
    """
    apart = [times for thread, times in recording.backward.items() if thread not in recording.trainers]
    together = array("d")
    for times in apart or recording.backward.values():
        together.extend(times)
    return together


def _last_micro_batch(called: list[Call], forward: Floats, skipped: Counter[str]) -> list[Call]:
    """The accumulations of the last of a step's micro-batches: all of them, unless they repeat with forward
    passes in between.
    """
    count = len(called)
    sequence = [(call.numel, call.dtype, call.shape) for call in called]
    for size in (n for n in range(1, count // 2 + 1) if count % n == 0):
        if sequence != sequence[:size] * (count // size):
            continue
        edges = [(called[at - 1].at, called[at].at) for at in range(size, count, size)]
        if all(np.searchsorted(forward, before) < np.searchsorted(forward, after) for before, after in edges):
            skipped["micro-batches before the last of a step"] += count // size - 1
            return called[-size:]
    return called


def _buckets(recording: Recording, gpu: _Gpu, skipped: Counter[str]) -> list[Call]:
    """The gradients' collectives in order of their calls, from the best source that the file has."""
    calls = recording.calls or recording.kernels_of or recording.operators
    if calls is recording.kernels_of and calls:
        launched = gpu.launched(np.array([call.correlation for call in calls]))
        lost = int(np.isnan(launched).sum())
        if lost:
            skipped["collectives without a launch: called when their kernel starts"] += lost
        calls = [
            call if math.isnan(at) else call._replace(at=float(at))
            for call, at in zip(calls, launched, strict=True)
        ]
    if any(call.kind == "reduce_scatter" for call in calls):
        others = sum(call.kind == "all_reduce" for call in calls)
        if others:
            skipped["all_reduce beside reduce_scatter (hybrid sharding, norms)"] += others
        calls = [call for call in calls if call.kind == "reduce_scatter"]
    return sorted(calls, key=lambda call: call.at)


def _steps(recording: Recording, skipped: Counter[str]) -> list[tuple[float, float, int]]:
    """(begin, end, number) of each iteration."""
    if recording.steps:
        return sorted(recording.steps)
    if recording.optimizers:
        skipped["no ProfilerStep: iterations are cut at the ends of optimiser steps"] += 1
        edges = [-math.inf, *(end for _, end in recording.optimizers)]
        return [(edges[n], edges[n + 1], n) for n in range(len(edges) - 1)]
    skipped["no ProfilerStep and no optimiser step: all is one iteration"] += 1
    return [(-math.inf, math.inf, 0)]


def _timing(
    calls: Sequence[Call],
    step: tuple[float, float, int],
    recording: Recording,
    gpu: _Gpu,
    forward_ops: Floats,
    engine: Floats,
    rank: int,
    skipped: Counter[str],
) -> Timing | None:
    """Times of one iteration; None, and counted, if the GPU's part of it is not in the file."""
    begin, end, number = step
    # With gradient accumulation, the last backward pass: the one behind the last forward pass.
    forward = np.searchsorted(forward_ops, calls[0].at) - 1
    since = max(begin, forward_ops[forward] if forward >= 0 else begin)
    first = int(np.searchsorted(engine, since))
    backward = float(engine[first]) if first < len(engine) and engine[first] < end else math.nan
    place = bisect_left(recording.optimizers, (begin, begin))
    optimizer = recording.optimizers[place] if place < len(recording.optimizers) else None
    if optimizer is not None and optimizer[0] >= end:
        optimizer = None
    if gpu:
        kernels = gpu.within(begin, end)
        if kernels.start == kernels.stop:
            skipped["iterations without kernels"] += 1
            return None
        start = float(gpu.start[kernels].min())
        ready = [gpu.done(call.at) for call in calls]
        middle = math.nan if math.isnan(backward) else gpu.done(backward)
        spent = 0.0
        if optimizer:
            chosen = gpu.within(*optimizer)
            if chosen.start < chosen.stop:
                spent = float(gpu.end[chosen].max() - gpu.start[chosen].min())
            else:
                spent = optimizer[1] - optimizer[0]
    else:
        start = begin
        if not math.isfinite(begin):
            start = calls[0].at if math.isnan(backward) else min(calls[0].at, backward)
        ready = [call.at for call in calls]
        middle = backward
        spent = optimizer[1] - optimizer[0] if optimizer else 0.0
    if any(math.isnan(moment) for moment in ready):
        skipped["iterations without kernels before a collective"] += 1
        return None
    if not optimizer:
        skipped["iterations without Optimizer.step: it takes no time"] += 1
    if math.isnan(middle):
        skipped["iterations without autograd events: forward pass taken as a third of the time"] += 1
        middle = start + (max(ready) - start) / 3
    moments = [max(round((moment - start) * PS_PER_US), 0) for moment in reversed(ready)]
    forward_end = min(max(round((middle - start) * PS_PER_US), 0), max(moments))
    if min(moments) < forward_end:
        skipped["iterations with a gradient ready before the forward pass ended"] += 1
        return None
    starts, ends = spread_forward(moments, forward_end, forward_end)
    return Timing(starts, ends, moments, max(moments), max(round(spent * PS_PER_US), 0), number, rank)


def _groups(
    buckets: Sequence[Call],
    step: tuple[float, float, int],
    parameters: Sequence[Call],
    by_parameter: bool,
    skipped: Counter[str],
) -> list[dict[str, object]]:
    """Which gradients travel together: each bucket, or the parameters that fill it in order of readiness."""
    inside = [call for call in buckets if step[0] <= call.at < step[1]]
    last = len(parameters) - 1
    if not by_parameter:
        kind = "ddp_bucket" if inside and inside[0].kind == "all_reduce" else "fsdp_unit"
        return [{"kind": kind, "tensors": [last - n]} for n in range(len(inside))]
    groups: list[dict[str, object]] = []
    taken = 0
    for bucket in inside:
        filled, members = 0, []
        scattered = bucket.kind == "reduce_scatter"
        # A DDP bucket is full at a certain size. An FSDP unit may be padded, and is sent when its last
        # parameter is ready.
        while taken <= last and (parameters[taken].at <= bucket.at if scattered else filled < bucket.numel):
            filled += parameters[taken].numel
            members.append(last - taken)
            taken += 1
        if not members or filled > bucket.numel or (filled < bucket.numel and not scattered):
            skipped["buckets that do not match the parameters in order of readiness"] += 1
            return []
        groups.append({"kind": "fsdp_unit" if scattered else "ddp_bucket", "tensors": members})
    return groups
