"""Defines residual networks in plain PyTorch, ResNet-18 and -50 for large pictures, ResNet-8, -20 and -110 for CIFAR.

They are written out here because torchvision is a large dependency for a few well-known architectures. Parameters,
checked in the tests: ResNet-18 11,689,512 and ResNet-50 25,557,032 with 1000 classes, as in torchvision; ResNet-20
269,722 and ResNet-110 1,727,962 with 10 (0.27 M and 1.7 M in the paper).

Source: He et al., "Deep Residual Learning for Image Recognition" (2016). The stride of a bottleneck is on its 3x3
convolution, as in most frameworks ("v1.5"). The CIFAR networks have shortcuts without parameters (option A of the
paper: every second pixel, new channels zero). Initialisation is He's normal with fan-out. In the large networks the
last batch norm of a block starts with weight zero, as in Goyal et al., "Accurate, Large Minibatch SGD" (2017)
[recalled]; not in the CIFAR ones, where a channel that is zero on both branches would never learn, as ReLU passes no
gradient there. `PreactivatedResNet` has its own initialisation.

All take images [N, 3, H, W] of any H and W (at least 32; 8 for the CIFAR ones) and return logits [N, classes].
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from gradwire.traces.models.start import initialise


def _conv3(inputs: int, outputs: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut (ResNet-18 and -34)."""

    expansion = 1

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = _conv3(inputs, width, stride)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = _conv3(width, width)
        self.bn2 = nn.BatchNorm2d(width)
        self.shortcut = _shortcut(inputs, width * self.expansion, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return torch.relu(y + self.shortcut(x))


class Bottleneck(nn.Module):
    """1x1 down, 3x3, 1x1 up by four, and a shortcut (ResNet-50 and deeper)."""

    expansion = 4

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = width * self.expansion
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = _conv3(width, width, stride)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, outputs, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.shortcut = _shortcut(inputs, outputs, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.bn1(self.conv1(x)))
        y = torch.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        return torch.relu(y + self.shortcut(x))


def _shortcut(inputs: int, outputs: int, stride: int) -> nn.Module:
    """Return the identity where shapes agree, else a strided 1x1 projection with batch norm."""
    if stride == 1 and inputs == outputs:
        return nn.Identity()
    return nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False), nn.BatchNorm2d(outputs))


def _stages(
    block: Callable[[int, int, int], nn.Module], widths: Sequence[int], counts: Sequence[int], expansion: int = 1
) -> nn.Sequential:
    """Return stages of `counts` blocks; all but the first begin by halving the resolution."""
    stages: list[nn.Module] = []
    inputs = widths[0]
    for width, count in zip(widths, counts, strict=True):
        layers: list[nn.Module] = []
        for index in range(count):
            layers.append(block(inputs, width, 2 if width > widths[0] and index == 0 else 1))
            inputs = width * expansion
        stages.append(nn.Sequential(*layers))
    return nn.Sequential(*stages)


class ResNet(nn.Module):
    """A residual network with the ImageNet stem (7x7 stride 2, 3x3 max pool stride 2) and four stages."""

    def __init__(self, block: type[BasicBlock] | type[Bottleneck], blocks: list[int], classes: int = 1000) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        self.stages = _stages(block, (64, 128, 256, 512), blocks, block.expansion)
        self.fc = nn.Linear(512 * block.expansion, classes)
        initialise(self)
        for module in self.modules():
            # Each block starts as its shortcut. Without this, momentum SGD at batch 32 overshoots in its
            # first steps (loss 2.3 -> 11 by step 13 with ResNet-50, learning rate 0.01, on CIFAR-10).
            if isinstance(module, BasicBlock):
                nn.init.zeros_(module.bn2.weight)
            elif isinstance(module, Bottleneck):
                nn.init.zeros_(module.bn3.weight)

    def forward(self, x: Tensor) -> Tensor:
        y = self.maxpool(torch.relu(self.bn1(self.conv1(x))))
        y = self.stages(y).mean(dim=(2, 3))
        return self.fc(y)


class CifarBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut without parameters."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = _conv3(inputs, width, stride)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = _conv3(width, width)
        self.bn2 = nn.BatchNorm2d(width)
        self.stride = stride
        self.added = width - inputs

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        shortcut = x[:, :, :: self.stride, :: self.stride]
        if self.added:
            shortcut = nn.functional.pad(shortcut, (0, 0, 0, 0, 0, self.added))
        return torch.relu(y + shortcut)


class CifarResNet(nn.Module):
    """Residual network with a 3x3 stem and three stages of `blocks` blocks: 6 blocks + 2 weight layers."""

    def __init__(self, blocks: int, classes: int = 10) -> None:
        super().__init__()
        self.conv1 = _conv3(3, 16)
        self.bn1 = nn.BatchNorm2d(16)
        self.stages = _stages(CifarBlock, (16, 32, 64), [blocks] * 3)
        self.fc = nn.Linear(64, classes)
        initialise(self)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.bn1(self.conv1(x)))
        y = self.stages(y).mean(dim=(2, 3))
        return self.fc(y)


class PreactivatedBlock(nn.Module):
    """Two 3x3 convolutions, each after batch norm and ReLU, and a shortcut without parameters."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.bn1 = _shift_only_norm(inputs)
        self.conv1 = _conv3(inputs, width, stride)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv2 = _conv3(width, width)
        self.stride = stride
        self.added = width - inputs

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv1(torch.relu(self.bn1(x)))
        y = self.conv2(torch.relu(self.bn2(y)))
        shortcut = x[:, :, :: self.stride, :: self.stride]
        if self.added:
            before = self.added // 2
            shortcut = nn.functional.pad(shortcut, (0, 0, 0, 0, before, self.added - before))
        return y + shortcut


def _shift_only_norm(channels: int) -> nn.BatchNorm2d:
    """Return a batch norm with a shift and no scale."""
    norm = nn.BatchNorm2d(channels, eps=1e-3)
    del norm.weight
    # Constant ones: on a GPU, torch 2.11 has no gradient for a batch norm with a shift and no weight.
    norm.register_buffer("weight", torch.ones(channels), persistent=False)
    return norm


class PreactivatedResNet(nn.Module):
    """Pre-activation residual network with a 3x3 stem and three stages of `blocks` blocks.

    Activations are normalised before convolutions (He et al., "Identity Mappings in Deep Residual Networks", 2016). The
    details are those of `resnet20_v2` of tf_cnn_benchmarks (tensorflow/benchmarks, `models/resnet_model.py` and
    `convnet_builder.py`), the base of GRACE's benchmark, whose published results have its sizes: no norm begins with
    zero; norms at the beginning of a block and the last one only shift, with an epsilon of 0.001; new channels of a
    shortcut are half before and half behind; convolutions start with deviations of 1 / sqrt(fan-in). There it has 11
    outputs for 10 classes. Two details differ: there, a convolution with a stride of two adds all its zeros below and
    to the right, and the running statistics of shift-only norms move by a thousandth per step, not by a tenth.
    """

    def __init__(self, blocks: int, classes: int = 10) -> None:
        super().__init__()
        self.conv1 = _conv3(3, 16)
        self.bn1 = nn.BatchNorm2d(16)
        self.stages = _stages(PreactivatedBlock, (16, 32, 64), [blocks] * 3)
        self.bn2 = _shift_only_norm(64)
        self.fc = nn.Linear(64, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                _init_truncated_normal(module.weight, module.weight[0].numel() ** -0.5 / _TRUNCATED_DEVIATION)
        _init_truncated_normal(self.fc.weight, 64**-0.5)
        nn.init.zeros_(self.fc.bias)

    def forward(self, x: Tensor) -> Tensor:
        y = self.stages(torch.relu(self.bn1(self.conv1(x))))
        y = torch.relu(self.bn2(y)).mean(dim=(2, 3))
        return self.fc(y)


_TRUNCATED_DEVIATION = 0.87962566
"""Standard deviation of a standard normal distribution truncated at -2 and 2."""


def _init_truncated_normal(weight: Tensor, deviation: float) -> None:
    """Initialise with normal values of that deviation, truncated at two deviations."""
    nn.init.trunc_normal_(weight, std=deviation, a=-2 * deviation, b=2 * deviation)


# Models by name; parameters with the default number of classes, 1000 or 10.
resnet18 = partial(ResNet, BasicBlock, [2, 2, 2, 2])  # 11,689,512
resnet50 = partial(ResNet, Bottleneck, [3, 4, 6, 3])  # 25,557,032; 23,528,522 with 10 classes
resnet8 = partial(CifarResNet, 1)  # 75,290
resnet20 = partial(CifarResNet, 3)  # 269,722
resnet20_v2 = partial(PreactivatedResNet, 3)  # 269,402; 269,467 with 11 classes
resnet110 = partial(CifarResNet, 18)  # 1,727,962
