"""Convolutional networks in plain PyTorch: ResNet-18, ResNet-50 and VGG-16.

Why they are written out here: a trace is only worth as much as the knowledge of what was trained, and
torchvision is a large dependency for three well-known architectures. The parameter counts with the
1000-class head are checked in the tests against the usual published figures: ResNet-18 11,689,512, ResNet-50
25,557,032, VGG-16 138,357,544.

Sources: He et al., "Deep Residual Learning for Image Recognition" (2016), with the stride of a bottleneck on
its 3x3 convolution as most frameworks have it ("v1.5"); Simonyan and Zisserman, "Very Deep Convolutional
Networks" (2015), configuration D. Initialisation is He's normal with fan-out for convolutions in all three:
our choice for VGG-16. The last batch norm of a residual block starts with weight zero, as in Goyal et al.,
"Accurate, Large Minibatch SGD" (2017) [recalled].

All of them take images [N, 3, H, W] of any H and W of at least 32 (the pooling before the head adapts) and
return logits [N, classes].
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn


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
    """The identity where shapes agree, else a strided 1x1 projection with batch norm."""
    if stride == 1 and inputs == outputs:
        return nn.Identity()
    return nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False), nn.BatchNorm2d(outputs))


class ResNet(nn.Module):
    """A residual network with the ImageNet stem (7x7 stride 2, 3x3 max pool stride 2) and four stages."""

    def __init__(self, block: type[BasicBlock] | type[Bottleneck], blocks: list[int], classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        stages: list[nn.Module] = []
        inputs = 64
        for stage, count in enumerate(blocks):
            width = 64 << stage
            layers: list[nn.Module] = []
            for index in range(count):
                stride = 2 if stage > 0 and index == 0 else 1
                layers.append(block(inputs, width, stride))
                inputs = width * block.expansion
            stages.append(nn.Sequential(*layers))
        self.stages = nn.Sequential(*stages)
        self.fc = nn.Linear(inputs, classes)
        _initialise(self)
        for module in self.modules():
            # Each block starts as its shortcut. Without this, momentum SGD at batch 32 overshoots in its
            # first steps (loss 2.3 -> 11 by step 13 with ResNet-50, learning rate 0.01, seen on CIFAR-10).
            if isinstance(module, BasicBlock):
                nn.init.zeros_(module.bn2.weight)
            elif isinstance(module, Bottleneck):
                nn.init.zeros_(module.bn3.weight)

    def forward(self, x: Tensor) -> Tensor:
        y = self.maxpool(torch.relu(self.bn1(self.conv1(x))))
        y = self.stages(y).mean(dim=(2, 3))
        return self.fc(y)


class VGG(nn.Module):
    """VGG configuration D (16 weight layers) without batch norm; the head is the large one of the paper."""

    PLAN = (64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512, 0)

    def __init__(self, classes: int, dropout: float = 0.5) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        inputs = 3
        for width in self.PLAN:
            if width == 0:
                layers.append(nn.MaxPool2d(2))
            else:
                layers += [nn.Conv2d(inputs, width, 3, padding=1), nn.ReLU()]
                inputs = width
        self.features = nn.Sequential(*layers)
        self.pool = nn.AdaptiveAvgPool2d(7)
        self.head = nn.Sequential(
            nn.Linear(512 * 7 * 7, 4096), nn.ReLU(), nn.Dropout(dropout),
            nn.Linear(4096, 4096), nn.ReLU(), nn.Dropout(dropout),
            nn.Linear(4096, classes),
        )  # fmt: skip
        _initialise(self)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.pool(self.features(x)).flatten(1))


def _initialise(model: nn.Module) -> None:
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=0.01)
            nn.init.zeros_(module.bias)


def resnet18(classes: int = 1000) -> nn.Module:
    """ResNet-18: 11,689,512 parameters with 1000 classes."""
    return ResNet(BasicBlock, [2, 2, 2, 2], classes)


def resnet50(classes: int = 1000) -> nn.Module:
    """ResNet-50: 25,557,032 parameters with 1000 classes, 23,528,522 with 10."""
    return ResNet(Bottleneck, [3, 4, 6, 3], classes)


def vgg16(classes: int = 1000) -> nn.Module:
    """VGG-16 (configuration D): 138,357,544 parameters with 1000 classes, three quarters of them in one
    layer.
    """
    return VGG(classes)


MODELS: dict[str, Callable[[int], nn.Module]] = {"resnet18": resnet18, "resnet50": resnet50, "vgg16": vgg16}
