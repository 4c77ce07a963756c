"""`fill_draft` converts a profile's records to a draft trace's gradients, layers, iterations and groups."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from gradwire.scenarios.errors import TraceError
from gradwire.traces.formats.draft import Draft, Gradient
from gradwire.traces.formats.profile.backward import passes, updates
from gradwire.traces.formats.profile.collectives import count_unknown_groups, gradient_collectives
from gradwire.traces.formats.profile.iterations import (
    ONE_RANK,
    ProfiledIteration,
    checked_steps,
    iterations,
    usual_count,
)
from gradwire.traces.formats.profile.records import GradientCall, Records
from gradwire.traces.formats.profile.stray import drop_stray_records
from gradwire.traces.formats.profile.timeline import AcceleratorTimeline, launches_nothing, timeline
from gradwire.traces.formats.profile.times import timing

STRAY_SHARE = 0.1
"""A process with a smaller share of the training records is not a rank but a damaged record. Our choice."""


def fill_draft(records: Records, draft: Draft, rank: int, where: str) -> None:
    """Fill in the draft. TraceError if the file holds several ranks, or launches of an accelerator without its work."""
    _refuse_several_ranks(records, where)
    if category := launches_nothing(records):
        what = f"holds launches ({category}) but no work of the accelerator"
        raise TraceError(what, where, "a profile with its kernels")
    drop_stray_records(records, draft)
    steps = checked_steps(records, where, draft)
    accelerator = timeline(records, draft)
    backward = passes(records, draft)
    collectives = gradient_collectives(records, backward, accelerator.launched, draft)
    by_parameter = bool(records.accumulated)
    gradients = sorted(records.accumulated, key=lambda call: call.at) if by_parameter else collectives
    if not by_parameter:
        count_unknown_groups(collectives, records, draft)
    chosen = iterations(
        gradients,
        collectives,
        by_parameter,
        backward,
        updates(records, backward, draft),
        steps,
        accelerator.compute is None or accelerator.has_launches,
        records,
        draft,
    )
    chosen = _with_all_kernels(chosen, accelerator, draft)
    if chosen:
        _describe(chosen[0].calls, by_parameter, draft)
        for iteration in chosen:
            times = timing(iteration, backward, accelerator, rank, draft)
            if times is not None:
                draft.iterations.append(times)
        draft.understood["iterations"] = len(draft.iterations)
        side = "on the CPU" if accelerator.compute is None else f"on the {accelerator.title}'s compute stream"
        draft.how = (
            f"readiness and the ends of the passes as recorded {side}"
            "; forward times of single layers estimated from their share of the backward pass"
        )
        draft.groups = _groups(chosen[0].collectives, chosen[0].calls, by_parameter, draft.skipped)
    draft.skipped, draft.doubtful = +draft.skipped, +draft.doubtful


def _refuse_several_ranks(records: Records, where: str) -> None:
    most = max(records.processes.values(), default=0)
    ranks = sorted(process for process, count in records.processes.items() if count > STRAY_SHARE * most)
    if len(ranks) > 1:
        listed = ", ".join(ranks[:8])
        raise TraceError(f"holds several ranks (processes {listed})", where, ONE_RANK)


def _with_all_kernels(
    chosen: list[ProfiledIteration], accelerator: AcceleratorTimeline, draft: Draft
) -> list[ProfiledIteration]:
    """Return the iterations that launched as many kernels as most did, if some kernels are doubtful. A kernel without
    its launch looks like one from before the recording."""
    stream = accelerator.compute
    if stream is None or not accelerator.has_doubts:
        return chosen
    partial = [it for it in chosen if stream.misses_many(it.begin, it.high)]
    draft.doubtful["iterations that lack the kernels of many launches"] += len(partial)
    chosen = [it for it in chosen if it not in partial]
    counts = [stream.count(it.begin, it.high) for it in chosen]
    usual = usual_count(counts)
    whole = [it for it, count in zip(chosen, counts, strict=True) if usual in (None, count)]
    draft.doubtful["iterations with other kernels than most"] += len(chosen) - len(whole)
    return whole


def _describe(calls: Sequence[GradientCall], by_parameter: bool, draft: Draft) -> None:
    """Add a layer and a gradient for each call: back to front, the first call belongs to the last layer."""
    word = "parameter" if by_parameter else "bucket" if calls[0].kind == "all_reduce" else "unit"
    last = len(calls) - 1
    for index in range(last, -1, -1):
        layer = last - index
        draft.layers.append(f"{word}{layer}")
        call = calls[index]
        draft.gradients.append(Gradient(f"{word}{layer}", call.numel, call.dtype, layer, call.shape))


def _groups(
    buckets: Sequence[GradientCall], gradients: Sequence[GradientCall], by_parameter: bool, skipped: Counter[str]
) -> list[dict[str, object]]:
    """Return the gradients that travel together: each bucket, or the parameters that fill it in order of readiness."""
    last = len(gradients) - 1
    if not by_parameter:
        kind = "ddp_bucket" if gradients[0].kind == "all_reduce" else "fsdp_unit"
        return [{"kind": kind, "tensors": [last - n]} for n in range(len(gradients))]
    groups: list[dict[str, object]] = []
    taken = 0
    for bucket in buckets:
        filled, members = 0, []
        is_scattered = bucket.kind == "reduce_scatter"
        # A DDP bucket is full at a certain size. An FSDP unit may be padded, and is sent when its last
        # parameter is ready.
        while taken <= last and (gradients[taken].at <= bucket.at if is_scattered else filled < bucket.numel):
            filled += gradients[taken].numel
            members.append(last - taken)
            taken += 1
        if not members or filled > bucket.numel or (filled < bucket.numel and not is_scattered):
            skipped["buckets that do not match the parameters in order of readiness"] += 1
            return []
        groups.append({"kind": "fsdp_unit" if is_scattered else "ddp_bucket", "tensors": members})
    return groups
