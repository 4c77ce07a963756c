"""Peak rates of GPUs, and the shares of them that kernels of training reach.

Peaks are those of the makers' data sheets: dense bfloat16 (float16 for the V100), memory, and scale-up links per
direction. The shares are [ours]. Each generation has one set for all models. They are chosen so that the step estimate
(`gradwire.traces.presets.step_estimate`) meets published throughputs; its docstring lists how well.
"""

from __future__ import annotations

from dataclasses import dataclass

from gradwire.scenarios.advice import nearest
from gradwire.scenarios.errors import TraceError


@dataclass(frozen=True)
class Gpu:
    """Rates of a GPU.

    flops : peak, operations per second. memory_rate : bytes per second. memory : bytes. scale_up_rate : bytes per
    second and direction to the GPUs of its host.
    matrix_share, attention_share, memory_share, scale_up_share : of these, what matrix multiplications, attention
    kernels, element-wise kernels and collectives inside of a host reach [ours].
    """

    name: str
    flops: float
    memory_rate: float
    memory: float
    scale_up_rate: float
    matrix_share: float
    attention_share: float
    memory_share: float = 0.8
    scale_up_share: float = 0.8


GPUS: dict[str, Gpu] = {
    gpu.name: gpu
    for gpu in (
        Gpu("v100", 125e12, 0.9e12, 32e9, 150e9, 0.66, 0.4),
        Gpu("a100", 312e12, 2.039e12, 80e9, 300e9, 0.66, 0.4),
        Gpu("h100", 989.4e12, 3.35e12, 80e9, 450e9, 0.60, 0.5),
        Gpu("h200", 989.4e12, 4.8e12, 141e9, 450e9, 0.60, 0.5),
        Gpu("b200", 2250e12, 8.0e12, 180e9, 900e9, 0.60, 0.5),
    )
}
"""GPUs by name: SXM modules; the A100 with 80 GB, the V100 with 32 GB."""


def find_gpu(name: str) -> Gpu:
    """Return the GPU of that name. Raises TraceError with the nearest names."""
    if name not in GPUS:
        raise TraceError("unknown GPU", repr(name), f"one of {', '.join(GPUS)}{nearest(name.lower(), GPUS)}")
    return GPUS[name]
