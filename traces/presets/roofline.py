"""Times of a block on a GPU, by the roofline model.

A matrix multiplication takes the longer of its operations at the peak rate and its weights at the memory rate (Williams
et al., CACM 2009), element-wise kernels their bytes at the memory rate; each at the share that `Gpu` gives. The
backward pass has twice the operations of the forward pass, and of a fused attention 2.5 times (Dao, FlashAttention-2,
section 3.1). Recomputation repeats the forward pass.
"""

from __future__ import annotations

from typing import NamedTuple

from gradwire.traces.presets.gpus import Gpu
from gradwire.traces.presets.layout import Layout
from gradwire.traces.presets.model_specs import Block

VALUE_BYTES = 2
"""Bytes of a weight, an activation and a gradient: bfloat16."""
UPDATE_BYTES = 28
"""Bytes that Adam reads and writes for a parameter: gradient 2, weight 2, and 8 each for three float32 values."""
ATTENTION_BACKWARD = 2.5


class PassTimes(NamedTuple):
    """Seconds of a block's forward and backward pass of one micro-batch."""

    forward: float
    backward: float


def block_times(block: Block, gpu: Gpu, layout: Layout) -> PassTimes:
    """Return the times of a block on one rank."""
    units = layout.micro_batch * layout.length / layout.context
    ranks = layout.tensor if block.split else 1
    weights = rank_parameters(block, layout) * VALUE_BYTES / (gpu.memory_rate * gpu.memory_share)
    matrices = max(block.flops * units / ranks / (gpu.flops * gpu.matrix_share), weights if block.flops else 0.0)
    scores = block.attention_flops * layout.length * units / ranks / (gpu.flops * gpu.attention_share)
    split, whole = block.activations
    shared = ranks if layout.sequence_parallel else 1
    elementwise = (split / ranks + whole / shared) * units / (gpu.memory_rate * gpu.memory_share)
    forward = matrices + scores + elementwise
    backward = 2 * matrices + ATTENTION_BACKWARD * scores + 2 * elementwise
    return PassTimes(forward, backward + (forward if layout.recompute else 0.0))


def rank_parameters(block: Block, layout: Layout) -> float:
    """Return the parameters of a block that one rank holds."""
    return block.parameters / (layout.tensor if block.split else 1) / (layout.expert if block.expert else 1)


def update_time(parameters: float, gpu: Gpu) -> float:
    """Return the seconds of the optimiser step for a number of parameters."""
    return parameters * UPDATE_BYTES / (gpu.memory_rate * gpu.memory_share)
