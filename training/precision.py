"""Computes a model's loss in float32 or in bfloat16 mixed precision; parameters, gradients and messages stay float32.

bfloat16 is the usual mixed precision: convolutions and matrix products in bfloat16, sums over many numbers in float32
(torch's autocast). On a GPU pictures are then stored channels last, as its matrix units need them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from gradwire.scenarios.errors import ScenarioError
from gradwire.training.recipe import Precision

Loss = Callable[[nn.Module, tuple[Tensor, ...], Tensor], Tensor]
"""(model, inputs, targets) -> loss of each sample, (samples,), or of each token, (samples, length)."""


@dataclass(frozen=True)
class MixedPrecisionLoss:
    """A loss computed in bfloat16 as far as torch's autocast does, and returned as float32.

    exact : the same in float32.
    """

    exact: Loss
    device: torch.device

    def __call__(self, model: nn.Module, inputs: tuple[Tensor, ...], targets: Tensor) -> Tensor:
        # No cache of casts: a recorded step has to cast anew each time.
        with torch.autocast(self.device.type, torch.bfloat16, cache_enabled=False):
            return self.exact(model, inputs, targets).float()


def in_precision(loss: Loss, precision: Precision, device: torch.device) -> Loss:
    """Return a loss that is computed in a precision."""
    return MixedPrecisionLoss(loss, device) if precision == "bfloat16" else loss


def check_precision(model: nn.Module, precision: Precision, device: torch.device) -> None:
    """Raise ScenarioError if a model's layers cannot be computed in a precision here. torch has recurrent layers in
    bfloat16 only for processors with the instructions for it."""
    recurrent = any(isinstance(module, nn.RNNBase) for module in model.modules())
    if precision == "float32" or device.type != "cpu" or not recurrent:
        return
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            nn.LSTM(8, 8)(torch.zeros(1, 1, 8))
    except RuntimeError:
        what = "this processor cannot compute the model's recurrent layers in bfloat16"
        raise ScenarioError(what, "training.precision", "float32, or a GPU, or a processor with AVX-512") from None


def exact(loss: Loss) -> Loss:
    """Return a loss in float32, whatever it is computed in otherwise."""
    return loss.exact if isinstance(loss, MixedPrecisionLoss) else loss


def cast_factors(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return a layer's factors in the precision in effect; tokens stay as they are."""
    kind = x.device.type
    if not (torch.is_autocast_enabled(kind) and x.is_floating_point()):
        return x, weight
    dtype = torch.get_autocast_dtype(kind)
    if x.dim() == 4 and kind == "cuda":
        return tuple(factor.to(dtype, memory_format=torch.channels_last) for factor in (x, weight))  # type: ignore[return-value]
    return x.to(dtype), weight.to(dtype)


def cast_bias(bias: Tensor | None, weight: Tensor) -> Tensor | None:
    """Return a layer's bias, if it has one, in the precision of its weight."""
    return None if bias is None else bias.to(weight.dtype)


def match_memory_format(gradient: Tensor, x: Tensor) -> Tensor:
    """Return a gradient in channels-last order if `x` has it."""
    if x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous():
        return gradient.contiguous(memory_format=torch.channels_last)
    return gradient
