"""`model_trace` computes the trace of a well-known model on a GPU: gradients, times, and what passes wait for.

The model becomes a workload in SimAI's format, one row per block, which the importer of that format reads. So a job
plays it as any imported trace: data-parallel as it is, tensor, context and expert ranks with `parallel`, pipeline
stages as graphs of all ranks. Times are those of the roofline (`gradwire.traces.presets.roofline`).

A trace may hold a part of the repeated layers. Its manifest then has the sums of the whole model, from which
`gradwire.traces.presets.whole_model` scales a run back up.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from gradwire.scenarios.errors import TraceError
from gradwire.scenarios.json_data import Json
from gradwire.traces.formats import import_trace
from gradwire.traces.presets.gpus import Gpu, find_gpu
from gradwire.traces.presets.layout import Layout
from gradwire.traces.presets.model_specs import Block, ModelSpec, find_model
from gradwire.traces.presets.roofline import VALUE_BYTES, block_times, rank_parameters, update_time
from gradwire.traces.trace import Trace

NS = 1e9
GATHER, SCATTER = "ALLGATHER_CP", "REDUCESCATTER_CP"
"""Rows' collectives among the context ranks: of keys and values, and of their gradients."""
COLLECTIVES = {"tensor": "ALLREDUCE", "expert": "ALLTOALL_EP", "data": "ALLTOALL_DP"}
"""Names of the rows' collectives, by the ranks that wait for each other."""


def model_trace(model: str | ModelSpec, gpu: str = "h100", layout: Layout | None = None, name: str = "") -> Trace:
    """Return the trace of a model; `length`, `layers` and `micro_batch` of a default layout are the model's own.

    With pipeline stages it holds the graphs of all `layout.gpus` ranks. Raises TraceError if a name is unknown or the
    layout does not fit.
    """
    spec, device = model if isinstance(model, ModelSpec) else find_model(model), find_gpu(gpu)
    layout = layout or layout_of(spec)
    layout.check(spec)
    if layout.pipeline > 1 and layout.gpus is None:
        raise TraceError("pipeline stages need the number of all ranks", "--gpus", "--gpus N")
    with tempfile.TemporaryDirectory(prefix="gradwire-") as folder:
        file = Path(folder) / f"{spec.name}.txt"
        file.write_text(workload(spec, device, layout), encoding="utf-8")
        trace = import_trace(file, format="simai", dtype="bfloat16", ranks=layout.pipeline > 1)
    trace.manifest.update(
        name=name or f"{spec.name}-{device.name}",
        timing="estimated: roofline",
        timing_how=f"operations and bytes of {spec.title} at the rates of the GPU {device.name}, with shares of ours",
        gpu=device.name,
        model=spec.name,
        preset=describe(spec, device, layout),
    )
    return trace


def layout_of(spec: ModelSpec, layers: int | None = None, **sizes: int | bool | None) -> Layout:
    """Return a layout with the model's own length, layers and micro-batch where `sizes` has None."""
    defaults = {"length": spec.length, "micro_batch": spec.batch}
    given = {key: value for key, value in sizes.items() if value is not None}
    kept = spec.repeats if layers is None else layers
    return replace(Layout(), layers=kept, **{**defaults, **given})  # type: ignore[arg-type]


def workload(spec: ModelSpec, gpu: Gpu, layout: Layout) -> str:
    """Return the text of the workload of one rank: of one micro-batch, or with stages of all of them."""
    stages = layout.pipeline
    header = (
        f"HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: {layout.tensor} cp: {layout.context} "
        f"ep: {layout.expert} pp: {stages} vpp: 1 ga: {layout.micro_batches if stages > 1 else 1} "
        f"all_gpus: {layout.gpus or layout.model_ranks * layout.expert}"
    )
    blocks = list(spec.blocks(layout.layers // stages))
    if stages == 1:
        rows = [row for block in blocks for row in _rows(spec, block, gpu, layout)]
    else:
        transfer = VALUE_BYTES * spec.hidden * layout.micro_batch * layout.length // layout.context // layout.tensor
        header += f" pp_comm: {int(transfer)}"
        outer = {*spec.first, *spec.last}
        divided = [_shared(block, stages) if block in outer else block for block in blocks]
        parameters = sum(rank_parameters(block, layout) for block in divided if not block.local)
        update = round(update_time(parameters, gpu) * NS)
        rows = [f"gradients -1 1 NONE 0 1 NONE 0 1 ALLREDUCE {int(VALUE_BYTES * parameters)} {update}"]
        micro = [row for block in divided for row in _rows(spec, block, gpu, layout, exchanged=False)]
        rows += micro * layout.micro_batches
    return "\n".join([header, str(len(rows)), *rows]) + "\n"


def describe(spec: ModelSpec, gpu: Gpu, layout: Layout) -> Json:
    """Return the manifest entry on the model: sizes of an iteration of the trace for one rank, and of the whole
    model."""
    ranks, micros = layout.model_ranks, layout.micro_batches if layout.pipeline > 1 else 1
    samples = layout.micro_batch * micros / ranks
    kept, whole = (_sums(spec, gpu, replace(layout, layers=layers)) for layers in (layout.layers, spec.repeats))
    return {
        "model": spec.name,
        "title": spec.title,
        "gpu": gpu.name,
        "peak_flops": gpu.flops,
        "unit": spec.unit,
        "units": samples * layout.length,
        "flops": samples * spec.flops(layout.length, layout.layers),
        "layers": {"kept": layout.layers, "of": spec.repeats},
        "seconds": {"passes": kept["passes"] * micros / layout.pipeline, "update": kept["update"] / layout.pipeline},
        "whole": {key: whole[key] / kept[key] for key in kept},
        "layout": {key: value for key, value in vars(layout).items() if key != "layers"},
    }


def memory_note(spec: ModelSpec, gpu: Gpu, layout: Layout, fsdp: bool) -> str:
    """Return a note if a GPU cannot hold its part of the whole model's state; "" if it can, activations aside.

    With Adam in mixed precision, a parameter takes 2 bytes, its gradient 2, and the optimiser's state 12 (Rajbhandari
    et al., ZeRO, SC '20, section 3.1). Data-parallel ranks divide all of it (stage 3), or the last part beside
    tensor, context or expert ranks (stage 1).
    """
    kept, divided = (0, 16) if layout.tensor * layout.context * layout.expert == 1 else (4, 12)
    ranks = layout.context * layout.copies if fsdp else 1
    parameters = sum(rank_parameters(block, layout) for block in spec.blocks() if not block.local) / layout.pipeline
    size = parameters * (kept + divided / ranks)
    if size <= gpu.memory or (fsdp and layout.gpus is None):
        return ""
    return (
        f"parameters, gradients and Adam's state of {spec.title} take {size / 1e9:,.0f} GB a GPU, which has "
        f"{gpu.memory / 1e9:.0f} GB: divide the model further (--fsdp, --tp, --pp), or read the times as those of a "
        "larger GPU"
    )


def job_keys(trace: Trace, fsdp: bool) -> list[str]:
    """Return the keys of a [[job]] that plays a trace of `model_trace`."""
    layout = trace.manifest["preset"]["layout"]
    if layout["pipeline"] > 1:
        return [f"workers = {layout['gpus']}", 'exchange = { kind = "graph" }']
    keys = [f"accumulate = {layout['micro_batches']}"] if layout["micro_batches"] > 1 else []
    if trace.communications:
        return [*keys, f'exchange = {{ kind = "{"sharded" if fsdp else "ring"}" }}', "parallel = {}"]
    return [*keys, f'exchange = {{ kind = "{"fsdp" if fsdp else "ring"}" }}']


def _sums(spec: ModelSpec, gpu: Gpu, layout: Layout) -> dict[str, float]:
    """Return sums over the blocks: seconds of a micro-batch's passes and of the update, exchanged bytes, operations."""
    blocks = list(spec.blocks(layout.layers))
    parameters = [rank_parameters(block, layout) for block in blocks]
    exchanged = [size for block, size in zip(blocks, parameters, strict=True) if not block.local]
    return {
        "passes": sum(sum(block_times(block, gpu, layout)) for block in blocks),
        "update": update_time(sum(parameters), gpu),
        "bytes": VALUE_BYTES * sum(exchanged),
        "flops": spec.flops(layout.length, layout.layers),
    }


def _rows(spec: ModelSpec, block: Block, gpu: Gpu, layout: Layout, exchanged: bool = True) -> Iterator[str]:
    """Yield the row of a block: compute in nanoseconds, collective and bytes of the three passes, then its update.

    Before attention, context ranks gather keys and values of the whole sample, as Llama 3 does (2024, section 3.3.2).
    After divided experts, tensor ranks sum what they return, as after any divided block.
    """
    if layout.context > 1 and block.attention_flops:
        gathered = int(VALUE_BYTES * spec.keys_values * layout.micro_batch * layout.length / layout.tensor)
        yield f"keys_values -1 1 {GATHER} {gathered} 1 {SCATTER} {gathered} 0 NONE 0 0"
    forward, backward = (max(1, round(seconds * NS)) for seconds in block_times(block, gpu, layout))
    half = backward // 2
    group, size = block.collective
    ranks = {"tensor": layout.tensor, "expert": layout.expert, "data": layout.gpus or 2}.get(group, 1)
    units = layout.micro_batch * layout.length / layout.context
    call = f"{COLLECTIVES[group]} {int(size * units)}" if ranks > 1 and size else "NONE 0"
    gradient, update = "NONE 0", 0
    if exchanged and block.parameters and not block.local:
        held = rank_parameters(block, layout)
        suffix = "_DP_EP" if block.expert and layout.expert > 1 else ""
        gradient, update = f"ALLREDUCE{suffix} {VALUE_BYTES * int(held)}", round(update_time(held, gpu) * NS)
    yield f"{block.name} -1 {forward} {call} {backward - half} {call} {half} {gradient} {update}"
    if block.expert and layout.tensor > 1:
        total = f"ALLREDUCE {int(VALUE_BYTES * spec.hidden * units)}"
        yield f"{block.name}_sums -1 1 {total} 1 {total} 0 NONE 0 0"


def _shared(block: Block, stages: int) -> Block:
    """Return an equal part of a block for every stage [ours]: stages of a workload are alike."""
    split, whole = block.activations
    return replace(
        block,
        parameters=block.parameters // stages,
        flops=block.flops / stages,
        activations=(split / stages, whole / stages),
    )
