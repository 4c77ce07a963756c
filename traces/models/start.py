"""The values that convolutional networks start from."""

from __future__ import annotations

from typing import Literal

from torch import nn


def initialise(model: nn.Module, fan: Literal["fan_in", "fan_out"] = "fan_out") -> None:
    """He's normal for convolutions, normal of deviation 0.01 for linear layers, biases zero.

    "fan_out" keeps the size of gradients on their way back and leaves that of activations to batch norm;
    "fan_in" keeps the size of activations, for networks without (in VGG-16 "fan_out" would shrink them
    thirteenfold on their way, and it hardly learns).
    """
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode=fan, nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=0.01)
            nn.init.zeros_(module.bias)
