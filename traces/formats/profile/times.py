"""`timing` computes the times of a profiled iteration from its passes on the CPU and the kernels they launched."""

from __future__ import annotations

import math

import numpy as np

from gradwire.traces.formats.draft import PS_PER_US, Draft, Timing, estimate_forward
from gradwire.traces.formats.profile.backward import Passes
from gradwire.traces.formats.profile.iterations import ProfiledIteration
from gradwire.traces.formats.profile.records import CpuSpan
from gradwire.traces.formats.profile.timeline import AcceleratorTimeline, DoubtfulRecord, KernelStream


def timing(
    iteration: ProfiledIteration, backward: Passes, accelerator: AcceleratorTimeline, rank: int, draft: Draft
) -> Timing | None:
    """Return the times of one iteration; None, and counted, if they depend on a missing or doubtful record."""
    calls = iteration.calls
    start_of_pass = max([start for start in iteration.starts if start < calls[0].at], default=iteration.begin)
    functions = backward.functions(max(start_of_pass, iteration.low), iteration.high)
    first = float(backward.begin[functions.start]) if functions.stop > functions.start else math.nan
    try:
        if accelerator.compute is not None:
            result = _on_accelerator(iteration, first, backward, accelerator, draft)
        else:
            result = _on_cpu(iteration, first)
    except DoubtfulRecord:
        draft.doubtful["iterations left out, since a time of theirs depends on a doubtful record"] += 1
        return None
    if result is None:
        return None
    ready, middle = result
    if any(math.isnan(moment) for moment in ready):
        draft.skipped["iterations without kernels before a collective"] += 1
        return None
    try:
        update_us = _update(iteration, accelerator, draft)
    except DoubtfulRecord:
        draft.doubtful["iterations left out, since their update depends on a doubtful record"] += 1
        return None
    if math.isnan(middle):
        draft.skipped["iterations without autograd events: forward pass taken as a third of the time"] += 1
        middle = max(ready) / 3
    moments = [max(round(moment * PS_PER_US), 0) for moment in reversed(ready)]
    forward_end = min(max(round(middle * PS_PER_US), 0), max(moments))
    if min(moments) < forward_end:
        draft.skipped["iterations with a gradient ready before the forward pass ended"] += 1
        return None
    starts, ends = estimate_forward(moments, forward_end, forward_end)
    return Timing(starts, ends, moments, max(moments), max(round(update_us * PS_PER_US), 0), iteration.number, rank)


def _on_cpu(iteration: ProfiledIteration, first: float) -> tuple[list[float], float]:
    """Return the ready time of each gradient and the end of the forward pass, microseconds since the start."""
    calls, start = iteration.calls, iteration.begin
    if not math.isfinite(start):
        start = calls[0].at if math.isnan(first) else min(calls[0].at, first)
    return [call.at - start for call in calls], first - start


def _on_accelerator(
    iteration: ProfiledIteration, first: float, backward: Passes, accelerator: AcceleratorTimeline, draft: Draft
) -> tuple[list[float], float] | None:
    """Return the same from the compute stream, without waits for the next micro-batch's first kernel."""
    stream = accelerator.compute
    assert stream is not None
    index = stream.first(iteration.begin, iteration.high)
    if index is None:
        draft.skipped["iterations without kernels"] += 1
        return None
    start = float(stream.start[index])
    for moment in iteration.starts[1:]:
        if moment < iteration.calls[0].at:
            start += _idle_before(moment, iteration, backward, stream)
    ready = [stream.done(call.at) - start for call in iteration.calls]
    middle = math.nan if math.isnan(first) else stream.done(first) - start
    return ready, middle


def _idle_before(moment: float, iteration: ProfiledIteration, backward: Passes, stream: KernelStream) -> float:
    """Return the stream's wait for the first kernel of the micro-batch whose forward pass begins at `moment`."""
    if backward.is_cut[backward.functions(iteration.low, moment)].any():
        raise DoubtfulRecord  # the end of the previous backward pass is unknown
    since = backward.last_end(iteration.low, moment)
    index = stream.first(since, iteration.high)
    if not index:
        return 0.0
    return max(float(stream.start[index] - stream.done(since)), 0.0)


def _update(iteration: ProfiledIteration, accelerator: AcceleratorTimeline, draft: Draft) -> float:
    """Return the total time of the iteration's optimizers, in microseconds."""
    if iteration.update is None:
        draft.skipped["iterations without Optimizer.step: it takes no time"] += 1
        return 0.0
    last_call = max(call.at for call in [*iteration.calls, *iteration.collectives])
    total = 0.0
    for window in iteration.update.windows:
        span = CpuSpan(min(max(window.begin, np.nextafter(last_call, math.inf)), window.end), window.end)
        durations = [
            duration for stream in accelerator.streams.values() if (duration := stream.kernel_span(*span)) is not None
        ]
        if not durations and accelerator.streams:
            draft.doubtful["updates without a kernel: no time is taken from them"] += 1
            continue
        total += max(durations) if durations else span.end - span.begin
    return total
