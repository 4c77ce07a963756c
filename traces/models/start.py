"""The values that convolutional networks start from."""

from __future__ import annotations

from torch import nn


def initialise(model: nn.Module) -> None:
    """He's normal with fan-out for convolutions, normal of deviation 0.01 for linear layers, biases zero."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=0.01)
            nn.init.zeros_(module.bias)
