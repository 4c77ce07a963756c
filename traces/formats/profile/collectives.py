"""Selects a profile's collectives that carry gradients, not activations, statistics or metrics.

The criteria, in this order: the process group is data parallel (not tensor, pipeline, ... parallel); the call does not
lie in a function of autograd that ends in no gradient; its size is not that of SyncBatchNorm's statistics; its group is
not called in the forward pass, unless all are.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

import numpy as np

from gradwire.traces.formats.draft import Draft
from gradwire.traces.formats.profile.backward import Passes
from gradwire.traces.formats.profile.records import GradientCall, Records

_DATA = set("dp ddp fsdp hsdp cdp edp data replicate replica replicas shard sharded sharding zero dataparallel".split())
_MODEL = set(
    "tp mp pp ep cp sp tensor model pipeline pipe expert experts context sequence embedding position slice stage moe "
    "ulysses ring".split()
)
_SPLITS = {"tp", "mp", "pp", "tensor", "model", "pipeline", "pipe", "stage", "slice"}
MAX_METRIC_ELEMENTS = 4096
"""A metric after the backward pass has at most this many elements, and a hundredth of the largest gradient's."""


def dimension_of(description: str) -> str:
    """Return "data" for a process group that exchanges gradients, "model" for others, "" if unknown. Megatron's
    "DATA_PARALLEL_GROUP_WITH_CP", torchtitan's "mesh_dp_shard_cp" and "EXPERT_DATA_PARALLEL_GROUP" exchange gradients;
    "tp_dp" and "TENSOR_AND_DATA_PARALLEL_GROUP" hold ranks with different parameters."""
    spaced = re.sub(r"([a-z0-9])([A-Z])", r"\1 \2", description)
    words = set(re.findall(r"[a-z]+", spaced.lower()))
    if re.search(r"data[ _-]*parallel", spaced.lower()):
        words -= {"model"}  # as in DATA_MODEL_PARALLEL
    if words & _DATA:
        return "model" if words & _SPLITS else "data"
    return "model" if words & _MODEL else ""


def gradient_collectives(
    records: Records, backward: Passes, launched: Callable[[Iterable[float]], np.ndarray], draft: Draft
) -> list[GradientCall]:
    """Return the collectives that may carry gradients in order of their calls, from the file's best source. `launched`
    returns the times of launches by correlation id."""
    calls = records.calls or records.kernel_calls or records.operators
    if calls is records.kernel_calls and calls:
        times = launched([call.correlation for call in calls])
        if missing := int(np.isnan(times).sum()):
            draft.skipped["collectives without a launch: called when their kernel starts"] += missing
        calls = [call if np.isnan(at) else call._replace(at=float(at)) for call, at in zip(calls, times, strict=True)]
    calls = _of_data_parallel_groups(sorted(calls, key=lambda call: call.at), records, draft)
    calls = _of_accumulating_functions(calls, backward, draft)
    calls = _without_batch_norm(calls, records, draft)
    calls = _without_forward_groups(calls, backward, draft)
    if any(call.kind == "reduce_scatter" for call in calls):
        others = sum(call.kind == "all_reduce" for call in calls)
        if others:
            draft.skipped["all_reduce beside reduce_scatter (hybrid sharding, norms)"] += others
        calls = [call for call in calls if call.kind == "reduce_scatter"]
    return calls


def _of_data_parallel_groups(calls: list[GradientCall], records: Records, draft: Draft) -> list[GradientCall]:
    dimensions = {call.group: dimension_of(records.descriptions.get(call.group, "") or call.group) for call in calls}
    dimension = "data" if "data" in dimensions.values() else ""
    for call in calls:
        if dimensions[call.group] != dimension:
            title = records.descriptions.get(call.group) or call.group
            draft.skipped[f"{call.kind} of process group {title}"] += 1
    return [call for call in calls if dimensions[call.group] == dimension]


def _of_accumulating_functions(calls: list[GradientCall], backward: Passes, draft: Draft) -> list[GradientCall]:
    """Return the calls without those in functions that end in no gradient, if others end in one."""
    kinds = [_enclosing(call, backward) for call in calls]
    if True not in kinds:
        return calls
    draft.skipped["collectives of activations, within autograd functions"] += kinds.count(False)
    return [call for call, accumulates in zip(calls, kinds, strict=True) if accumulates is not False]


def _enclosing(call: GradientCall, backward: Passes) -> bool | None:
    """Return True if the call lies in a function that ends in a gradient, False if in another, None if in none."""
    index = int(np.searchsorted(backward.begin, call.at, side="right")) - 1
    for function in range(index, max(index - 64, -1), -1):
        if backward.row[function] == call.row and backward.end[function] > call.at:
            return bool(backward.accumulates[function])
    return None


def _without_batch_norm(calls: list[GradientCall], records: Records, draft: Draft) -> list[GradientCall]:
    """Return the calls without those of SyncBatchNorm: it gathers n + 1 values forward and reduces n backward."""
    gathered = {(call.numel - 1, call.dtype, call.group) for call in records.gathers}
    chosen = [
        call for call in calls if call.kind != "all_reduce" or (call.numel, call.dtype, call.group) not in gathered
    ]
    draft.skipped["all_reduce of SyncBatchNorm's statistics"] += len(calls) - len(chosen)
    return chosen


def _without_forward_groups(calls: list[GradientCall], backward: Passes, draft: Draft) -> list[GradientCall]:
    """Return the calls of groups not called in a forward pass, if there are such groups; else all."""
    moments = np.array([call.at for call in calls])
    last = np.append(-np.inf, backward.forward)[np.searchsorted(backward.forward, moments, side="right")]
    function = np.append(-np.inf, backward.begin)[np.searchsorted(backward.begin, moments, side="right")]
    forward = {call.group for call, is_forward in zip(calls, last > function, strict=True) if is_forward}
    chosen = [call for call in calls if call.group not in forward]
    if not chosen:
        return calls
    draft.skipped["collectives of groups that are called in the forward pass, too"] += len(calls) - len(chosen)
    return chosen


def within_backward(
    calls: list[GradientCall], begin: float, last_end: float, update: float, largest: int, draft: Draft
) -> list[GradientCall]:
    """Return the calls of one iteration that can carry gradients. They are called after the backward pass has begun
    (-inf if unknown), and before the first optimizer is done. After the backward pass, metrics of few elements are left
    out. `largest` is the number of elements of the iteration's largest gradient."""
    inside = [call for call in calls if begin <= call.at <= update]
    draft.skipped["collectives outside of the backward pass"] += len(calls) - len(inside)
    metrics = [call for call in inside if call.at > last_end and call.numel <= min(MAX_METRIC_ELEMENTS, largest // 100)]
    draft.skipped["collectives of few elements behind the backward pass (metrics)"] += len(metrics)
    return [call for call in inside if call not in metrics]


def count_unknown_groups(calls: list[GradientCall], records: Records, draft: Draft) -> None:
    """Count calls of several process groups if none has a known purpose."""
    groups = {call.group for call in calls}
    if len(groups) > 1 and not any(dimension_of(records.descriptions.get(g, "") or g) for g in groups):
        names = ", ".join(sorted(groups))[:80]
        draft.doubtful[f"collectives of process groups that may not exchange gradients ({names})"] += len(calls)
