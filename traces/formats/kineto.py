"""PyTorch profiler output: Kineto's Chrome trace JSON, plain or gzipped, of one process.

What is taken as a gradient is, in this order of preference,

1. `parameters`: one per `torch::autograd::AccumulateGrad` with a shape (recorded with record_shapes=True);
   where DDP buckets were recorded as well, they become the trace's groups;
2. `collectives`: one per reduce-scatter (FSDP, ZeRO) or else all-reduce (DDP buckets) of each iteration, with
   the element count that NCCL kernels and `record_param_comms` carry since PyTorch 2.2, or the shape of
   `c10d::allreduce_`.

When a gradient was ready: on a GPU, at the end of the last kernel of the compute stream that had been
launched when the collective (or the accumulation) was called, which is what the communication stream waits
for; on a CPU, at the call itself. So waiting for other ranks or for earlier collectives is not counted as
computing. Launches are matched to kernels by correlation id; without launches in the file a collective counts
as called when its kernel starts. Where other kernels have launches, one without has been launched before the
recording began: it is of no recorded iteration, left out and counted.

With gradient accumulation a gradient is ready in the last micro-batch: where the parameters of a step repeat, with
operators of a forward pass in between, the last ones are taken and the others counted.

An iteration is a `ProfilerStep#`; without any, what lies between two optimiser steps; without those, all. Only
iterations with the sequence of gradients that most of them have are kept: the first step after DDP rebuilds
its buckets, and the halves at the ends of a recording, are left out and counted. Within an iteration
the forward pass ends with the last kernel launched before autograd's first function ran; PyTorch before 1.10 does
not record those functions but the operators within them, FooBackward, on autograd's own thread. Where in the forward
pass each gradient's layers ran is not recorded: see `spread_forward`.
"""

from __future__ import annotations

import math
import re
from array import array
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from gradwire.traces.formats.draft import Draft
from gradwire.traces.formats.json_events import events
from gradwire.traces.formats.kineto_steps import Call, Recording, build
from gradwire.traces.formats.source import opened

if TYPE_CHECKING:
    from gradwire.traces.formats.base import ReadOptions

ADVICE = "training profiled with record_shapes=True, or under DDP or FSDP with NCCL and PyTorch 2.2 or later"
_STEP = re.compile(r"ProfilerStep#(\d+)$")
_DTYPES = {
    "double": "float64",
    "float": "float32",
    "half": "float16",
    "float16": "float16",
    "bfloat16": "bfloat16",
    "float32": "float32",
    "float64": "float64",
}
_OLD_CATEGORIES = {  # up to PyTorch 1.11
    "Operator": "cpu_op",
    "Kernel": "kernel",
    "Runtime": "cuda_runtime",
    "Memcpy": "gpu_memcpy",
    "Memset": "gpu_memset",
}
_ANNOTATIONS = ("ProfilerStep#", "Optimizer.step#")  # up to PyTorch 1.11 they are operators
_GPU_WORK = ("kernel", "gpu_memcpy", "gpu_memset")
_LAUNCH = re.compile(r"launch|memcpy|memset", re.IGNORECASE)
_COLLECTIVES = {
    "allreduce": "all_reduce",
    "allreducecoalesced": "all_reduce",
    "reducescatter": "reduce_scatter",
    "reducescatterbase": "reduce_scatter",
    "reducescattertensor": "reduce_scatter",
    "reducescattertensorcoalesced": "reduce_scatter",
}
_ACCUMULATE = "torch::autograd::AccumulateGrad"
_ENGINE = "autograd::engine::evaluate_function"
_BACKWARD = re.compile(r"Backward\d*$")


class _Sized(NamedTuple):
    numel: int
    dtype: str
    shape: tuple[int, ...] = ()


def recognise(path: Path, head: bytes) -> bool:
    # A letter or a ' behind the bracket is of other things: "[rank0 ~ rank7]" of AICB's tables, a Python dict.
    return re.match(rb"\s*[\[{]\s*[^\s\w']", head.removeprefix(b"\xef\xbb\xbf") + b" .") is not None


def read(path: Path, options: ReadOptions) -> Draft:
    """The draft of a profile; its iterations are the complete ones. TraceError for damaged files."""
    draft = Draft("kineto", advice=ADVICE)
    header: dict[str, Any] = {}
    recording = Recording()
    with opened(path, options.progress) as source:
        for event in events(source, header, draft.skipped):
            _take(event, recording, draft)
    draft.about = _about(header)
    build(recording, draft, int(draft.about.get("rank", 0)))
    return draft


def _about(header: dict[str, Any]) -> dict[str, Any]:
    """What the file's header says about the machine and the job, for the manifest."""
    about: dict[str, Any] = {}
    devices = header.get("deviceProperties")
    if isinstance(devices, list) and devices and isinstance(devices[0], dict) and "name" in devices[0]:
        about.update(device="cuda", gpu=str(devices[0]["name"]))
    job = header.get("distributedInfo")
    if isinstance(job, dict):
        for key in ("backend", "world_size", "rank"):
            if isinstance(job.get(key), (int, str)) and not isinstance(job[key], bool):
                about[key] = job[key]
    if not isinstance(about.get("rank", 0), int) or about.get("rank", 0) < 0:
        del about["rank"]
    return about


def _take(event: dict[str, Any], recording: Recording, draft: Draft) -> None:
    """Sort one event into the recording, or count it as left out."""
    phase, category = event.get("ph"), event.get("cat")
    category = _OLD_CATEGORIES.get(category, category) if isinstance(category, str) else None
    if phase != "X":
        draft.skipped[f"events with ph {phase} ({category})" if category else f"events with ph {phase}"] += 1
        return
    name, begin, lasts = event.get("name"), _number(event.get("ts")), _number(event.get("dur", 0))
    args = event.get("args")
    args = args if isinstance(args, dict) else {}
    if not isinstance(name, str) or math.isnan(begin) or not lasts >= 0:
        draft.skipped["events without name, ts or dur"] += 1
    elif category in _GPU_WORK:
        draft.understood[f"{category} events"] += 1
        communicates = category == "kernel" and (
            name.startswith(("nccl", "rccl", "ncclDev")) or "Collective name" in args
        )
        if communicates:
            _collective(args, str(args.get("Collective name") or _kernel_name(name)), begin, recording, draft)
        recording.add_kernel(begin, lasts, _number(args.get("correlation")), event.get("tid"), communicates)
    elif category in ("cuda_runtime", "cuda_driver", "hip_runtime"):
        if _LAUNCH.search(name):
            recording.add_launch(begin, _number(args.get("correlation")))
            draft.understood["launches"] += 1
        else:
            draft.skipped[f"{category} events that launch nothing"] += 1
    elif category == "user_annotation" or (category == "cpu_op" and name.startswith(_ANNOTATIONS)):
        _annotation(name, begin, lasts, event.get("tid"), recording, draft)
    elif category == "cpu_op":
        _operator(name, begin, lasts, event.get("tid"), args, recording, draft)
    else:
        draft.skipped[f"{category} events" if category else "events without a category"] += 1


def _annotation(
    name: str, begin: float, lasts: float, thread: object, recording: Recording, draft: Draft
) -> None:
    if name.startswith(_ANNOTATIONS):
        recording.trainers.add(str(thread))
    if step := _STEP.search(name):
        recording.steps.append((begin, begin + lasts, int(step.group(1))))
        draft.understood["ProfilerStep annotations"] += 1
    elif name.startswith("Optimizer.step#"):
        recording.optimizers.append((begin, begin + lasts))
        draft.understood["Optimizer.step annotations"] += 1
    else:
        draft.skipped[f"annotation {_short(name)}"] += 1


def _operator(
    name: str,
    begin: float,
    lasts: float,
    thread: object,
    args: dict[str, Any],
    recording: Recording,
    draft: Draft,
) -> None:
    if name.startswith(_ENGINE):
        recording.engine.extend((begin, begin + lasts))
        draft.understood["autograd functions"] += 1
    elif name == _ACCUMULATE:
        sized = _shaped(args)
        if sized is None:
            draft.skipped["AccumulateGrad without a shape (profile with record_shapes=True)"] += 1
        else:
            recording.accumulated.append(Call("parameter", begin + lasts, *sized))
            draft.understood["AccumulateGrad with a shape"] += 1
    elif name == "record_param_comms":
        _collective(args, str(args.get("Collective name", "")), begin, recording, draft, called=True)
    elif name in ("c10d::allreduce_", "c10d::_reduce_scatter_base_"):
        kind = "all_reduce" if "allreduce" in name else "reduce_scatter"
        sized = _shaped(args, 0 if kind == "all_reduce" else 1)  # a reduce-scatter names its output first
        if sized is None:
            draft.skipped[f"{name} without a shape"] += 1
        else:
            recording.operators.append(Call(kind, begin, *sized))
            draft.understood[f"{name} with a shape"] += 1
    else:
        if args.get("Fwd thread id") == 0 and "Sequence number" in args:
            recording.forward.append(begin)  # an operator that autograd noted for the backward pass
        if _BACKWARD.search(name):
            recording.backward.setdefault(str(thread), array("d")).extend((begin, begin + lasts))
        draft.skipped["cpu_op events without a gradient"] += 1


def _collective(
    args: dict[str, Any],
    name: str,
    begin: float,
    recording: Recording,
    draft: Draft,
    called: bool = False,
) -> None:
    """Note a collective by its NCCL kernel or, if `called`, by the call of it on the CPU."""
    origin = "calls" if called else "kernels"
    kind = _COLLECTIVES.get(re.sub(r"[^a-z]", "", name.lower()))
    size, dtype = _number(args.get("In msg nelems")), _DTYPES.get(_type_name(args.get("dtype")))
    if kind is None:
        draft.skipped[f"{origin} of {name or 'a collective without a name'}"] += 1
    elif math.isnan(size):
        draft.skipped[f"{origin} of {kind} without an element count (PyTorch before 2.2)"] += 1
    elif dtype is None:
        draft.skipped[f"{origin} of {kind} of {args.get('dtype')}"] += 1
    elif size <= 1:
        draft.skipped[f"{origin} of {kind} of one element or none"] += 1
    else:
        calls = recording.calls if called else recording.kernels_of
        calls.append(Call(kind, begin, int(size), dtype, (), _number(args.get("correlation"))))
        draft.understood[f"{origin} of {kind}"] += 1


def _shaped(args: dict[str, Any], which: int = 0) -> _Sized | None:
    """Shape and dtype of an input, the first unless said otherwise; those of a list of one tensor as well."""
    dims, types = args.get("Input Dims", args.get("Input dims")), args.get("Input type")
    if not isinstance(dims, list) or len(dims) <= which or not isinstance(types, list) or len(types) <= which:
        return None
    shape, kind = dims[which], _type_name(types[which])
    if isinstance(shape, list) and len(shape) == 1 and isinstance(shape[0], list):
        shape = shape[0]  # a tensor list; its elements' type is not recorded
        kind = "float" if kind == "tensorlist" else kind
    whole = isinstance(shape, list) and all(isinstance(n, int) and 0 < n < 2**48 for n in shape)
    if not whole or kind not in _DTYPES or math.prod(shape) >= 2**48:
        return None
    return _Sized(math.prod(shape), _DTYPES[kind], tuple(shape) or (1,))


def _type_name(dtype: object) -> str:
    return str(dtype).rpartition("::")[2].rpartition(".")[2].lower()


def _kernel_name(name: str) -> str:
    """ "AllReduce" of "ncclKernel_AllReduce_RING_LL_Sum_float(...)" or "ncclDevKernel_AllReduce_..."."""
    parts = name.split("(")[0].split("_")
    return parts[1] if len(parts) > 1 else name


def _number(value: object) -> float:
    """`value` as a float, NaN if it is none or not finite."""
    if isinstance(value, (int, float, str)) and not isinstance(value, bool):
        try:
            number = float(value)
        except (ValueError, OverflowError):
            return math.nan
        return number if abs(number) < 2**53 else math.nan
    return math.nan


def _short(name: str) -> str:
    """A name without its numbers, so that equal things are counted together."""
    return re.sub(r"\d+", "N", name)[:60]
