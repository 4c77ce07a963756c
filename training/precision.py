"""Precision: the numbers that a model computes with, while parameters, gradients and what is sent stay float32.

bfloat16 is mixed precision as frameworks have it: convolutions and products of matrices in bfloat16, sums over many
numbers in float32 (torch's autocast). On a GPU pictures then lie in memory with their channels together, as its
matrix units want them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from gradwire.scenarios.errors import ScenarioError

Loss = Callable[[nn.Module, tuple[Tensor, ...], Tensor], Tensor]
"""(model, inputs, targets) to the loss of each sample, (samples,), or of each of its tokens, (samples, length)."""
Precision = Literal["float32", "bfloat16"]


@dataclass(frozen=True)
class Mixed:
    """A loss that is computed in bfloat16 as far as torch's autocast does, and handed out as float32.

    exact : the same in float32.
    """

    exact: Loss
    device: torch.device

    def __call__(self, model: nn.Module, inputs: tuple[Tensor, ...], targets: Tensor) -> Tensor:
        # Without its cache, which keeps what was cast: a recorded step has to cast anew each time.
        with torch.autocast(self.device.type, torch.bfloat16, cache_enabled=False):
            return self.exact(model, inputs, targets).float()


def in_precision(loss: Loss, precision: Precision, device: torch.device) -> Loss:
    """A loss as it is computed in that precision."""
    return Mixed(loss, device) if precision == "bfloat16" else loss


def check_precision(model: nn.Module, precision: Precision, device: torch.device) -> None:
    """Whether a model's layers can be computed in that precision here: torch has recurrent ones in bfloat16 for
    processors with instructions for it only.

    Raises
    ------
    ScenarioError
        They cannot.
    """
    recurrent = any(isinstance(each, nn.RNNBase) for each in model.modules())
    if precision == "float32" or device.type != "cpu" or not recurrent:
        return
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            nn.LSTM(8, 8)(torch.zeros(1, 1, 8))
    except RuntimeError:
        what = "bfloat16 is nothing that this processor can compute the model's recurrent layers in"
        raise ScenarioError(what, "training.precision", "float32, or a GPU, or a processor with AVX-512") from None


def exact(loss: Loss) -> Loss:
    """A loss in float32, whatever it is computed in otherwise."""
    return loss.exact if isinstance(loss, Mixed) else loss


def as_computed(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """What a layer multiplies, in the precision that is asked for where this is called; tokens stay what they are."""
    kind = x.device.type
    if not (torch.is_autocast_enabled(kind) and x.is_floating_point()):
        return x, weight
    dtype = torch.get_autocast_dtype(kind)
    if x.dim() == 4 and kind == "cuda":
        return tuple(each.to(dtype, memory_format=torch.channels_last) for each in (x, weight))  # type: ignore[return-value]
    return x.to(dtype), weight.to(dtype)


def like(bias: Tensor | None, weight: Tensor) -> Tensor | None:
    """A layer's bias, if it has one, in the precision of its weight."""
    return None if bias is None else bias.to(weight.dtype)


def laid_as(gradient: Tensor, x: Tensor) -> Tensor:
    """A gradient with its channels together if those of `x` are."""
    if x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous():
        return gradient.contiguous(memory_format=torch.channels_last)
    return gradient
