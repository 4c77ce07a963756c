"""Sorts a profile's events into records, and counts events unrelated to a training step by name."""

from __future__ import annotations

import math
import re
from typing import Any

from gradwire.traces.formats.draft import Draft
from gradwire.traces.formats.profile.records import DEVICE, HOST, UNKNOWN, CpuSpan, GradientCall, Records, Step
from gradwire.traces.formats.profile.values import (
    DTYPES,
    correlation_of,
    input_tensor,
    kernel_collective,
    number,
    type_name,
    without_digits,
)

NO_TIME = "with ts 0 and dur 0"
_STEP = re.compile(r"ProfilerStep#(\d+)$")
_OLD_CATEGORIES = {  # up to PyTorch 1.11
    "Operator": "cpu_op",
    "Kernel": "kernel",
    "Runtime": "cuda_runtime",
    "Memcpy": "gpu_memcpy",
    "Memset": "gpu_memset",
}
_ANNOTATIONS = ("ProfilerStep#", "Optimizer.step#")  # up to PyTorch 1.11 they are operators
_DEVICE = ("kernel", "concurrent_kernel", "gpu_memcpy", "gpu_memcpy2", "gpu_memset")
_HOST = ("_runtime", "_driver")
_NEITHER = re.compile(r"annotation|sync$|_event$|insight|counter|range$|overhead|_comm$|python|^cpu_|^trace$")
"""Categories of neither launches nor work, although they may carry a correlation id."""
_COMMUNICATION = re.compile(r"(?:one|[a-z]{1,2})?ccl", re.IGNORECASE)  # nccl, rccl, hccl, xccl, oneccl
_COLLECTIVES = {
    "allreduce": "all_reduce",
    "allreducecoalesced": "all_reduce",
    "reducescatter": "reduce_scatter",
    "reducescatterbase": "reduce_scatter",
    "reducescattertensor": "reduce_scatter",
    "reducescattertensorcoalesced": "reduce_scatter",
}
_GATHERS = ("allgather", "allgatherbase", "allgatherintotensor", "allgatherintotensorcoalesced")
_ACCUMULATE = "torch::autograd::AccumulateGrad"
_ENGINE = "autograd::engine::evaluate_function"
_GRADIENT_ENDS = re.compile(r"AccumulateGrad|PostBackward")
_BACKWARD = re.compile(r"Backward\d*$")


def side_of(category: str) -> str:
    """Return HOST, DEVICE or UNKNOWN for a category of an accelerator's record, and "" for any other. Kineto calls
    launches `*_runtime` or `*_driver` for every vendor. A category that no rule names is UNKNOWN: the row of its
    records decides (see `gradwire.traces.formats.profile.timeline`)."""
    lower = category.lower()
    if lower in _DEVICE:
        return DEVICE
    if lower.endswith(_HOST):
        return HOST
    return "" if _NEITHER.search(lower) else UNKNOWN


def sort_event(event: dict[str, Any], records: Records, draft: Draft) -> None:
    """Add one event to the records, or count it in the draft as skipped or doubtful."""
    phase, category = event.get("ph"), event.get("cat")
    category = _OLD_CATEGORIES.get(category, category) if isinstance(category, str) else None
    if phase != "X":
        draft.skipped[f"events with ph {phase} ({category})" if category else f"events with ph {phase}"] += 1
        return
    name, begin, duration = event.get("name"), number(event.get("ts")), number(event.get("dur", 0))
    args = event.get("args")
    args = args if isinstance(args, dict) else {}
    if not isinstance(name, str) or math.isnan(begin) or not duration >= 0:
        draft.skipped["events without name, ts or dur"] += 1
        if category in ("cpu_op", "user_annotation") and isinstance(name, str):
            records.lost[_kind_of(name)] += 1
        return
    row = records.row(event.get("pid"), event.get("tid"))
    span = CpuSpan(begin, begin + duration)
    is_timed = begin != 0 or duration != 0
    side = side_of(category) if category else ""
    if side == DEVICE or (side == UNKNOWN and not math.isnan(correlation_of(args))):
        assert category is not None
        _device_record(category, side, name, span, row, args, records, draft)
    elif not is_timed and category:
        draft.doubtful[f"{category} records {NO_TIME}"] += 1
        records.lost[_kind_of(name)] += 1
    elif side == HOST and category:
        records.add_activity(category, HOST, span, correlation_of(args), row, name)
    elif category == "user_annotation" or (category == "cpu_op" and name.startswith(_ANNOTATIONS)):
        if name.startswith(_ANNOTATIONS):
            _count_process(event, records)
        _annotation(name, span, row, records, draft)
    elif category == "cpu_op":
        records.cpu_rows.add(row)
        if name.startswith(_ENGINE) or name == _ACCUMULATE:
            _count_process(event, records)
        _operator(name, span, row, args, records, draft)
    else:
        draft.skipped[f"{category} events" if category else "events without a category"] += 1


def _count_process(event: dict[str, Any], records: Records) -> None:
    if event.get("pid") is not None:
        records.processes[str(event["pid"])] += 1


def _kind_of(name: str) -> str:
    """Return the kind of training record that a name implies, "" for none."""
    if name.startswith("Optimizer.step#"):
        return "optimizer"
    if name.startswith(_ENGINE):
        return "function"
    return ""


def _device_record(
    category: str, side: str, name: str, span: CpuSpan, row: int, args: dict[str, Any], records: Records, draft: Draft
) -> None:
    if side == DEVICE:
        draft.understood[f"{category} events"] += 1
    communicates = not category.startswith("gpu_mem") and (
        _COMMUNICATION.match(name) is not None or "Collective name" in args
    )
    if communicates:
        collective = str(args.get("Collective name") or kernel_collective(name))
        _collective(args, collective, span.begin, row, records, draft)
    records.add_activity(category, side, span, correlation_of(args), row, name, communicates)


def _annotation(name: str, span: CpuSpan, row: int, records: Records, draft: Draft) -> None:
    if name.startswith(_ANNOTATIONS):
        records.trainers.add(row)
        records.cpu_rows.add(row)
    if step := _STEP.search(name):
        records.steps.append(Step(span.begin, span.end, int(step.group(1))))
        draft.understood["ProfilerStep annotations"] += 1
    elif name.startswith("Optimizer.step#"):
        records.optimizers.append(span)
        draft.understood["Optimizer.step annotations"] += 1
    else:
        draft.skipped[f"annotation {without_digits(name)}"] += 1


def _operator(name: str, span: CpuSpan, row: int, args: dict[str, Any], records: Records, draft: Draft) -> None:
    if name.startswith(_ENGINE):
        functions = records.functions
        functions.begin.append(span.begin)
        functions.end.append(span.end)
        functions.row.append(row)
        functions.accumulates.append(_GRADIENT_ENDS.search(name) is not None)
        draft.understood["autograd functions"] += 1
    elif name == _ACCUMULATE:
        tensor = input_tensor(args)
        if tensor is None:
            draft.skipped["AccumulateGrad without a shape (profile with record_shapes=True)"] += 1
        else:
            records.accumulated.append(GradientCall("parameter", span.end, *tensor))
            draft.understood["AccumulateGrad with a shape"] += 1
    elif name == "record_param_comms":
        collective = str(args.get("Collective name", ""))
        _collective(args, collective, span.begin, row, records, draft, is_call=True)
    elif name in ("c10d::allreduce_", "c10d::_reduce_scatter_base_"):
        kind = "all_reduce" if "allreduce" in name else "reduce_scatter"
        tensor = input_tensor(args, 0 if kind == "all_reduce" else 1)  # a reduce-scatter names its output first
        if tensor is None:
            draft.skipped[f"{name} without a shape"] += 1
        else:
            records.operators.append(GradientCall(kind, span.begin, *tensor, row=row))
            draft.understood[f"{name} with a shape"] += 1
    else:
        if args.get("Fwd thread id") == 0 and "Sequence number" in args:
            records.forward.append(span.begin)  # autograd recorded this operator for the backward pass
            records.forward_rows.append(row)
        if _BACKWARD.search(name):
            records.backward_operators.setdefault(row, []).append(span)
        draft.skipped["cpu_op events without a gradient"] += 1


def _collective(
    args: dict[str, Any], name: str, begin: float, row: int, records: Records, draft: Draft, is_call: bool = False
) -> None:
    """Add a collective by its kernel or, if `is_call`, by its call on the CPU."""
    origin = "calls" if is_call else "kernels"
    plain = re.sub(r"[^a-z]", "", name.lower())
    kind = _COLLECTIVES.get(plain)
    size, dtype = number(args.get("In msg nelems")), DTYPES.get(type_name(args.get("dtype")))
    group = _group(args, records)
    if kind is None:
        draft.skipped[f"{origin} of {name or 'a collective without a name'}"] += 1
        if plain in _GATHERS and size > 1 and dtype:
            records.gathers.append(GradientCall("all_gather", begin, int(size), dtype, group=group, row=row))
    elif math.isnan(size):
        draft.skipped[f"{origin} of {kind} without an element count (PyTorch before 2.2)"] += 1
    elif dtype is None:
        draft.skipped[f"{origin} of {kind} of {args.get('dtype')}"] += 1
    elif size <= 1:
        draft.skipped[f"{origin} of {kind} of one element or none"] += 1
    else:
        calls = records.calls if is_call else records.kernel_calls
        calls.append(GradientCall(kind, begin, int(size), dtype, (), correlation_of(args), group, row))
        draft.understood[f"{origin} of {kind}"] += 1


def _group(args: dict[str, Any], records: Records) -> str:
    """Return the name of a collective's process group, or its ranks; store its description."""
    name = args.get("Process Group Name", args.get("Process Group Ranks", ""))
    key = str(name)[:200] if isinstance(name, (str, int)) else ""
    description = args.get("Process Group Description")
    if isinstance(description, str) and description:
        records.descriptions[key] = description[:200]
    return key


def describe_groups(header: dict[str, Any], records: Records) -> None:
    """Add missing descriptions of process groups from the header's `distributedInfo`."""
    job = header.get("distributedInfo")
    groups = job.get("pg_config") if isinstance(job, dict) else None
    for group in groups if isinstance(groups, list) else []:
        if isinstance(group, dict) and isinstance(group.get("pg_desc"), str):
            records.descriptions.setdefault(str(group.get("pg_name"))[:200], group["pg_desc"][:200])
