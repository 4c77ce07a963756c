"""`initialise` sets the initial weights of convolutional networks, He's normal for convolutions."""

from __future__ import annotations

from typing import Literal

from torch import nn


def initialise(model: nn.Module, fan: Literal["fan_in", "fan_out"] = "fan_out") -> None:
    """Initialise convolutions by He's normal, linear layers by a normal of deviation 0.01, biases by zero.

    "fan_out" keeps the size of gradients through the backward pass and leaves that of activations to batch norm;
    "fan_in" keeps the size of activations, for networks without batch norm (in VGG-16 "fan_out" would shrink them
    thirteenfold, and it hardly learns).
    """
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode=fan, nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=0.01)
            nn.init.zeros_(module.bias)
