"""Defines GoogLeNet and Inception-v3 in plain PyTorch, with and without their auxiliary classifiers.

Parameters with 1000 classes, checked in the tests, are those of torchvision: GoogLeNet 13,004,888 with both
auxiliary classifiers and 6,624,904 without; Inception-v3 27,161,264 and 23,834,568.

Sources: Szegedy et al., "Going Deeper with Convolutions" (2015), and "Rethinking the Inception Architecture
for Computer Vision" (2016). As in torchvision, GoogLeNet has batch norm after every convolution and 3x3
kernels where the paper has 5x5. The auxiliary classifiers count in the loss with `aux_weight`: 0.3 each in
GoogLeNet (paper), 0.4 in Inception-v3 (the authors' code [recalled]). Initialisation is He's normal with
fan-out: our choice.

They take images [N, 3, H, W] (at least 32 for GoogLeNet, 75 for Inception-v3). In training mode, with
auxiliary classifiers, they return a tuple of logits [N, classes], the main ones first; else the main logits.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, max_pool2d

from gradwire.traces.models.start import initialise


class Conv(nn.Module):
    """Convolution without bias, batch norm, ReLU."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: int | tuple[int, int],
        stride: int = 1,
        padding: int | tuple[int, int] = 0,
    ) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=padding, bias=False)
        self.bn = nn.BatchNorm2d(outputs, eps=1e-3)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.bn(self.conv(x)))


class Branches(nn.Module):
    """Branches that see the same input; their outputs are concatenated over the channels."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([branch(x) for branch in self.branches], dim=1)


# GoogLeNet --------------------------------------------------------------------------------------------------


def _inception(inputs: int, c1: int, r3: int, c3: int, r5: int, c5: int, pool: int) -> Branches:
    """Return a GoogLeNet block with branch outputs `c1`, `c3`, `c5`, `pool` and reductions `r3`, `r5`."""
    return Branches(
        Conv(inputs, c1, 1),
        nn.Sequential(Conv(inputs, r3, 1), Conv(r3, c3, 3, padding=1)),
        nn.Sequential(Conv(inputs, r5, 1), Conv(r5, c5, 3, padding=1)),
        nn.Sequential(nn.MaxPool2d(3, stride=1, padding=1), Conv(inputs, pool, 1)),
    )


class GoogLeNetAux(nn.Module):
    """Auxiliary classifier of GoogLeNet."""

    def __init__(self, inputs: int, classes: int) -> None:
        super().__init__()
        self.pool = nn.AdaptiveAvgPool2d(4)
        self.conv = Conv(inputs, 128, 1)
        self.head = nn.Sequential(nn.Linear(2048, 1024), nn.ReLU(), nn.Dropout(0.7), nn.Linear(1024, classes))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.conv(self.pool(x)).flatten(1))


class GoogLeNet(nn.Module):
    """Nine inception blocks, with auxiliary classifiers after the third and the sixth."""

    aux_weight = 0.3

    def __init__(self, classes: int = 1000, aux: bool = True) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            Conv(3, 64, 7, stride=2, padding=3),
            nn.MaxPool2d(3, 2, ceil_mode=True),
            Conv(64, 64, 1),
            Conv(64, 192, 3, padding=1),
            nn.MaxPool2d(3, 2, ceil_mode=True),
        )
        self.stage3 = nn.Sequential(
            _inception(192, 64, 96, 128, 16, 32, 32),
            _inception(256, 128, 128, 192, 32, 96, 64),
            nn.MaxPool2d(3, 2, ceil_mode=True),
        )
        self.stage4a = _inception(480, 192, 96, 208, 16, 48, 64)
        self.stage4b = nn.Sequential(
            _inception(512, 160, 112, 224, 24, 64, 64),
            _inception(512, 128, 128, 256, 24, 64, 64),
            _inception(512, 112, 144, 288, 32, 64, 64),
        )
        self.stage4c = nn.Sequential(_inception(528, 256, 160, 320, 32, 128, 128), nn.MaxPool2d(2, 2, ceil_mode=True))
        self.stage5 = nn.Sequential(
            _inception(832, 256, 160, 320, 32, 128, 128), _inception(832, 384, 192, 384, 48, 128, 128)
        )
        self.dropout = nn.Dropout(0.2)
        self.fc = nn.Linear(1024, classes)
        self.aux1 = GoogLeNetAux(512, classes) if aux else None
        self.aux2 = GoogLeNetAux(528, classes) if aux else None
        initialise(self)

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, ...]:
        y1 = self.stage4a(self.stage3(self.stem(x)))
        y2 = self.stage4b(y1)
        y = self.stage5(self.stage4c(y2))
        logits = self.fc(self.dropout(y.mean(dim=(2, 3))))
        if self.training and self.aux1 is not None and self.aux2 is not None:
            return logits, self.aux1(y1), self.aux2(y2)
        return logits


# Inception-v3 -----------------------------------------------------------------------------------------------


def _pool_branch(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.AvgPool2d(3, stride=1, padding=1), Conv(inputs, outputs, 1))


def _block_a(inputs: int, pool: int) -> Branches:
    """35x35 (at 299 pixels): 1x1, 5x5, two 3x3."""
    return Branches(
        Conv(inputs, 64, 1),
        nn.Sequential(Conv(inputs, 48, 1), Conv(48, 64, 5, padding=2)),
        nn.Sequential(Conv(inputs, 64, 1), Conv(64, 96, 3, padding=1), Conv(96, 96, 3, padding=1)),
        _pool_branch(inputs, pool),
    )


def _block_b(inputs: int) -> Branches:
    """35x35 to 17x17."""
    return Branches(
        Conv(inputs, 384, 3, stride=2),
        nn.Sequential(Conv(inputs, 64, 1), Conv(64, 96, 3, padding=1), Conv(96, 96, 3, stride=2)),
        nn.MaxPool2d(3, stride=2),
    )


def _conv1x7(inputs: int, outputs: int) -> Conv:
    return Conv(inputs, outputs, (1, 7), padding=(0, 3))


def _conv7x1(inputs: int, outputs: int) -> Conv:
    return Conv(inputs, outputs, (7, 1), padding=(3, 0))


def _block_c(inputs: int, width: int) -> Branches:
    """17x17: 7x7 convolutions as 1x7 and 7x1."""
    return Branches(
        Conv(inputs, 192, 1),
        nn.Sequential(Conv(inputs, width, 1), _conv1x7(width, width), _conv7x1(width, 192)),
        nn.Sequential(
            Conv(inputs, width, 1),
            *(_conv7x1(width, width), _conv1x7(width, width), _conv7x1(width, width), _conv1x7(width, 192)),
        ),
        _pool_branch(inputs, 192),
    )


def _block_d(inputs: int) -> Branches:
    """17x17 to 8x8."""
    return Branches(
        nn.Sequential(Conv(inputs, 192, 1), Conv(192, 320, 3, stride=2)),
        nn.Sequential(Conv(inputs, 192, 1), _conv1x7(192, 192), _conv7x1(192, 192), Conv(192, 192, 3, stride=2)),
        nn.MaxPool2d(3, stride=2),
    )


def _block_e(inputs: int) -> Branches:
    """8x8: 3x3 convolutions split into 1x3 beside 3x1."""

    def split(channels: int) -> Branches:
        return Branches(Conv(channels, 384, (1, 3), padding=(0, 1)), Conv(channels, 384, (3, 1), padding=(1, 0)))

    return Branches(
        Conv(inputs, 320, 1),
        nn.Sequential(Conv(inputs, 384, 1), split(384)),
        nn.Sequential(Conv(inputs, 448, 1), Conv(448, 384, 3, padding=1), split(384)),
        _pool_branch(inputs, 192),
    )


class InceptionAux(nn.Module):
    """Auxiliary classifier of Inception-v3, on its 17x17 maps. Small pictures have smaller maps (3x3 at 75 pixels), too
    small for the paper's pooling and 5x5 convolution: they are enlarged to 17x17 (our choice)."""

    def __init__(self, inputs: int, classes: int) -> None:
        super().__init__()
        self.conv1 = Conv(inputs, 128, 1)
        self.conv2 = Conv(128, 768, 5)
        self.fc = nn.Linear(768, classes)

    def forward(self, x: Tensor) -> Tensor:
        if min(x.shape[2:]) < 17:
            x = nn.functional.interpolate(x, size=(17, 17))
        y = self.conv2(self.conv1(avg_pool2d(x, 5, stride=3)))
        return self.fc(y.mean(dim=(2, 3)))


class InceptionV3(nn.Module):
    """Eleven inception blocks, with an auxiliary classifier after the eighth."""

    aux_weight = 0.4

    def __init__(self, classes: int = 1000, aux: bool = True) -> None:
        super().__init__()
        self.stem1 = nn.Sequential(Conv(3, 32, 3, stride=2), Conv(32, 32, 3), Conv(32, 64, 3, padding=1))
        self.stem2 = nn.Sequential(Conv(64, 80, 1), Conv(80, 192, 3))
        self.blocks1 = nn.Sequential(
            _block_a(192, 32),
            _block_a(256, 64),
            _block_a(288, 64),
            _block_b(288),
            _block_c(768, 128),
            _block_c(768, 160),
            _block_c(768, 160),
            _block_c(768, 192),
        )
        self.blocks2 = nn.Sequential(_block_d(768), _block_e(1280), _block_e(2048))
        self.dropout = nn.Dropout(0.5)
        self.fc = nn.Linear(2048, classes)
        self.aux = InceptionAux(768, classes) if aux else None
        initialise(self)

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, ...]:
        y = max_pool2d(self.stem1(x), 3, stride=2)
        y = max_pool2d(self.stem2(y), 3, stride=2)
        middle = self.blocks1(y)
        logits = self.fc(self.dropout(self.blocks2(middle).mean(dim=(2, 3))))
        if self.training and self.aux is not None:
            return logits, self.aux(middle)
        return logits


# Models by name; parameters with 1000 classes.
googlenet = GoogLeNet  # 13,004,888, as trained
googlenet_plain = partial(GoogLeNet, aux=False)  # 6,624,904
inception_v3 = InceptionV3  # 27,161,264, as trained
inception_v3_plain = partial(InceptionV3, aux=False)  # 23,834,568
