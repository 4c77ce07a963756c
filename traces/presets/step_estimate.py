"""`estimate_step` predicts the iteration time and MFU of a training job in closed form, without a packet.

    iteration = micro-batches x (passes + tensor collectives + transfers) x (1 + bubble) + exposed reduction + update

* The bubble of P stages with m micro-batches and v interleaved parts of each stage is (P - 1) / (v m) (Narayanan et
  al., SC '21, section 2.2).
* Tensor collectives are rings inside a host, all exposed. Half of the gradients' reduction is exposed [ours].
* Context ranks gather keys and values before each layer's attention, exposed.
* MFU: operations of forward and backward pass at the peak rate, over the time (Chowdhery et al. 2022, appendix B). Half
  of the attention counts, as of a causal mask. `recomputed` counts the repeated forward pass and all attention, too, as
  Narayanan et al. do in their equation 3.

It is for a first answer, and to check the GPUs' shares against published figures: within 8 % of the ten rows of table 1
of Narayanan et al. (micro-batches of 2, ours), and of Llama 3's two rows with 8,192 tokens (table 4).
"""

from __future__ import annotations

from dataclasses import dataclass

from gradwire.traces.presets.gpus import Gpu
from gradwire.traces.presets.layout import Layout
from gradwire.traces.presets.model_specs import ModelSpec
from gradwire.traces.presets.roofline import VALUE_BYTES, block_times, rank_parameters, update_time

LATENCY_S = 5e-6
"""Of a step of a ring inside a host [ours]."""
EXPOSED_REDUCTION = 0.5


@dataclass(frozen=True)
class StepEstimate:
    """Seconds of an iteration and of its parts, and operations per second of a GPU.

    computing : passes and update. tensor, pipeline, reduction : exposed communication; `pipeline` includes the bubble.
    """

    iteration: float
    computing: float
    tensor: float
    pipeline: float
    reduction: float
    flops: float
    mfu: float


def estimate_step(
    spec: ModelSpec, gpu: Gpu, layout: Layout, network_rate: float, interleaved: int = 1, recomputed: bool = False
) -> StepEstimate:
    """Return the estimate. `network_rate` : bytes per second of a GPU to others' hosts. `interleaved` : parts of a
    stage. `recomputed` : see the module."""
    blocks = list(spec.blocks())
    times = [block_times(block, gpu, layout) for block in blocks]
    stages, micros = layout.pipeline, layout.micro_batches
    units = layout.micro_batch * layout.length / layout.context
    passes = sum(time.forward + time.backward for time in times) / stages
    calls = 3 if layout.recompute else 2
    tensor = context = 0.0
    for block in blocks:
        if block.expert or block.collective[0] == "tensor":
            tensor += calls * _ring(2 * VALUE_BYTES * spec.hidden * units, layout.tensor, gpu) / stages
        if block.attention_flops:
            gathered = VALUE_BYTES * spec.keys_values * units * (layout.context - 1)
            context += calls * gathered / layout.tensor / network_rate / stages
    transfer = 2 * interleaved * VALUE_BYTES * spec.hidden * units / layout.tensor / network_rate if stages > 1 else 0.0
    micro = passes + tensor + context + transfer
    bubble = (stages - 1) / (micros * interleaved)
    parameters = sum(rank_parameters(block, layout) for block in blocks) / stages
    share = (layout.copies - 1) / layout.copies
    reduction = EXPOSED_REDUCTION * 2 * VALUE_BYTES * parameters * share / network_rate
    update = update_time(parameters, gpu)
    iteration = micros * micro * (1 + bubble) + reduction + update
    flops = _counted_flops(spec, layout, recomputed) * layout.micro_batch * micros / layout.model_ranks / iteration
    return StepEstimate(
        iteration,
        micros * passes + update,
        micros * (tensor + context),
        micros * (transfer + micro * bubble),
        reduction,
        flops,
        flops / gpu.flops,
    )


def _ring(sent: float, ranks: int, gpu: Gpu) -> float:
    """Return the seconds of a ring all-reduce. `sent` : bytes of the buffer, twice."""
    if ranks == 1:
        return 0.0
    rate = gpu.scale_up_rate * gpu.scale_up_share
    return (ranks - 1) / ranks * sent / rate + 2 * (ranks - 1) * LATENCY_S


def _counted_flops(spec: ModelSpec, layout: Layout, recomputed: bool) -> float:
    if not recomputed:
        return spec.flops(layout.length)
    scores = sum(block.attention_flops for block in spec.blocks()) * layout.length
    repeated = 4 * sum(block.flops for block in spec.blocks() if block.attention_flops or block.collective[0])
    once = 3 * sum(block.flops for block in spec.blocks() if not (block.attention_flops or block.collective[0]))
    return layout.length * (repeated + 4 * 2 * scores + once)
