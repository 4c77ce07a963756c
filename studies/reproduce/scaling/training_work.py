"""Counts the floating-point operations and memory traffic of a training step from a model's layers.

Memory traffic is what the authors' code of Lee et al. moves [code: github.com/NU-CUCIS/pcnn]: it writes every
convolution as a matrix of columns (im2col) and multiplies matrices with MKL. Each pass over an array counts once, at
four bytes per value; writes that first read a cache line, pooling, and arrays that stay in a cache are left out [ours].
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gradwire.scenarios.errors import ScenarioError
from gradwire.traces.models import find_model

if TYPE_CHECKING:
    from torch import nn

VALUE_BYTES = 4
OUTPUT_PASSES = 12
"""Passes over a convolution's output [code]: product 1, bias 2, clearing its errors 1, ReLU forward 2 and backward 3,
and one each for the products of errors, of weight gradients and of bias gradients."""
NORM_PASSES = 42
"""Passes over the output of a batch norm [code]: 16 forward, 26 backward."""
RESIDUAL_PASSES = 10
"""Passes over the output of a residual block [code]: scaling 2 and adding 3, forward and backward."""
RESIDUAL_BLOCKS = ("BasicBlock", "Bottleneck", "CifarBlock")


@dataclass(frozen=True)
class TrainingWork:
    """Work of one training step.

    flops : floating-point operations per picture, two for each multiplication with its addition.
    memory_bytes : bytes that move between cores and memory, per picture.
    parameter_bytes : bytes of all parameters.
    """

    flops: float
    memory_bytes: float
    parameter_bytes: float


def training_work(model: str, size: int) -> TrainingWork:
    """Return the work of training a built-in image model on pictures of `size` pixels a side. Raises `ScenarioError` if
    the model does not take such pictures."""
    import torch
    from torch import nn

    kind = find_model(model)
    if kind.task != "images" or not kind.accepts_size(size):
        raise ScenarioError(f"{model} does not take pictures of {size} pixels", "size", "an image model and its size")
    counted = {"flops": 0, "passes": 0}

    def count(layer: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        name, values = type(layer).__name__, output.numel()
        if isinstance(layer, (nn.Conv2d, nn.Linear)):
            products = 2 if counted["flops"] == 0 else 3  # the first layer has no errors to pass on
            counted["flops"] += 2 * products * values * layer.weight[0].numel()
            if isinstance(layer, nn.Conv2d):
                columns = layer.weight[0].numel() * output.shape[-2] * output.shape[-1]
                # columns are written and read for each product; inputs are read, errors read and written
                counted["passes"] += 2 * products * columns + (2 * products - 2) * inputs[0].numel()
                counted["passes"] += OUTPUT_PASSES * values
        elif isinstance(layer, nn.BatchNorm2d):
            counted["passes"] += NORM_PASSES * values
        elif name in RESIDUAL_BLOCKS:
            counted["passes"] += RESIDUAL_PASSES * values

    with torch.device("meta"), torch.no_grad():
        network = kind.build()
        for layer in network.modules():
            layer.register_forward_hook(count)
        network(torch.empty(1, 3, size, size))
    parameters = sum(parameter.numel() for parameter in network.parameters())
    return TrainingWork(counted["flops"], VALUE_BYTES * counted["passes"], VALUE_BYTES * parameters)
