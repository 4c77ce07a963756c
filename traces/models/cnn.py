"""Defines plain convolutional networks, AlexNet and VGG for ImageNet, VGG and a narrow VGG-11 for CIFAR.

Parameters, checked in the tests: AlexNet 61,100,840, VGG-16 138,357,544 and VGG-19 143,667,240 with 1000 classes, as in
torchvision; with the CIFAR head 14,728,266 and 20,040,522 with 10 classes. VGG-11 with a quarter of the channels of
configuration A (our choice: small enough for many training runs) has 579,786.

Sources: Krizhevsky, "One weird trick for parallelizing convolutional neural networks" (2014), the AlexNet of one tower
that frameworks mean by that name; Simonyan and Zisserman, "Very Deep Convolutional Networks" (2015), configurations A,
D and E. The CIFAR variant, batch norm after each convolution and one linear layer, is not in the paper but usual (Liu
and Deng, "Very deep convolutional neural network based image classification using small training sample size", 2015
[recalled], has batch norm and a smaller head). Initialisation is He's normal for convolutions, with fan-in where there
is no batch norm, else with fan-out: our choice.

All take images [N, 3, H, W] (H and W at least 63 for AlexNet, 32 for VGG; the pooling before the head adapts) and
return logits [N, classes].
"""

from __future__ import annotations

from functools import partial

from torch import Tensor, nn

from gradwire.traces.models.start import initialise


class AlexNet(nn.Module):
    """Five convolutions and three linear layers; the first two linear ones hold 89 % of the parameters."""

    def __init__(self, classes: int = 1000, dropout: float = 0.5) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 64, 11, stride=4, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(3, stride=2),
            nn.Conv2d(64, 192, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(3, stride=2),
            nn.Conv2d(192, 384, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(384, 256, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(256, 256, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(3, stride=2),
        )
        self.pool = nn.AdaptiveAvgPool2d(6)
        self.head = nn.Sequential(
            nn.Dropout(dropout),
            nn.Linear(256 * 6 * 6, 4096),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(4096, 4096),
            nn.ReLU(),
            nn.Linear(4096, classes),
        )
        initialise(self, "fan_in")

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.pool(self.features(x)).flatten(1))


# Channels of each convolution; 0 is a 2x2 max pooling.
PLAN_11_QUARTER = (16, 0, 32, 0, 64, 64, 0, 128, 128, 0, 128, 128, 0)
PLAN_16 = (64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512, 0)
PLAN_19 = (64, 64, 0, 128, 128, 0, *(256,) * 4, 0, *(512,) * 4, 0, *(512,) * 4, 0)


def _features(plan: tuple[int, ...], batch_norm: bool) -> nn.Sequential:
    layers: list[nn.Module] = []
    inputs = 3
    for width in plan:
        if width == 0:
            layers.append(nn.MaxPool2d(2))
        else:
            norm = [nn.BatchNorm2d(width)] if batch_norm else []
            layers += [nn.Conv2d(inputs, width, 3, padding=1), *norm, nn.ReLU()]
            inputs = width
    return nn.Sequential(*layers)


class VGG(nn.Module):
    """VGG without batch norm; the head is the large one of the paper."""

    def __init__(self, plan: tuple[int, ...], classes: int = 1000, hidden: int = 4096, dropout: float = 0.5) -> None:
        super().__init__()
        self.features = _features(plan, batch_norm=False)
        self.pool = nn.AdaptiveAvgPool2d(7)
        self.head = nn.Sequential(
            nn.Linear(512 * 7 * 7, hidden),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(hidden, classes),
        )
        initialise(self, "fan_in")

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.pool(self.features(x)).flatten(1))


class CifarVGG(nn.Module):
    """VGG with batch norm and one linear layer after the mean over the last feature map (1x1 for 32x32)."""

    def __init__(self, plan: tuple[int, ...], classes: int = 10) -> None:
        super().__init__()
        self.features = _features(plan, batch_norm=True)
        self.head = nn.Linear(max(plan), classes)
        initialise(self)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x).mean(dim=(2, 3)))


# Models by name; parameters with the default number of classes, 1000 or 10.
alexnet = AlexNet  # 61,100,840
vgg16 = partial(VGG, PLAN_16)  # configuration D: 138,357,544, three quarters of them in one layer
vgg19 = partial(VGG, PLAN_19)  # configuration E: 143,667,240
vgg11_quarter = partial(CifarVGG, PLAN_11_QUARTER)  # 579,786
vgg16_cifar = partial(CifarVGG, PLAN_16)  # 14,728,266
vgg19_cifar = partial(CifarVGG, PLAN_19)  # 20,040,522
