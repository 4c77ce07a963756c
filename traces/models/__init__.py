"""Built-in models of `gradwire capture` and their training settings.

One line in `MODELS` registers a model: the module and function that build it, its task, input size and optimizer.
Importing this package does not import torch; `ModelKind.build` does.

Tasks (see `gradwire.traces.capture.tasks`): "images" - pictures to classes; "next" - each token of a text from those
before it; "masked" - hidden tokens of a text from those around them; "pairs" - a span of text from the span before.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from gradwire.scenarios.advice import nearest
from gradwire.scenarios.errors import TraceError
from gradwire.scenarios.lazily import torch

if TYPE_CHECKING:
    from torch import nn

Task = Literal["images", "next", "masked", "pairs"]


@dataclass(frozen=True)
class ModelKind:
    """Builder, task and training settings of one built-in model.

    `builder` is "module:name" within this package; called with the number of classes (images) or the size of
    the vocabulary (text), whose published value is `outputs`. `parameters` is the count with that value. `batch` and
    `size` (pixels of a side, or tokens) are defaults of a capture; `sizes` is the smallest and the largest intended
    size. `optimizer`, `learning_rate` and `warmup` (steps in which the rate rises linearly from zero) are our choice:
    plain settings with which the loss falls within a few hundred steps of small batches.
    """

    builder: str
    task: Task
    outputs: int
    parameters: int
    batch: int
    size: int
    sizes: tuple[int, int]
    optimizer: Literal["sgd", "adamw"] = "sgd"
    learning_rate: float = 0.01
    warmup: int = 0

    def build(self, outputs: int | None = None) -> nn.Module:
        """Build a model with `outputs` classes or tokens (default: the published number), with torch's default device
        and random numbers."""
        module, function = self.builder.split(":")
        return getattr(importlib.import_module(f"gradwire.traces.models.{module}"), function)(outputs or self.outputs)

    def accepts_size(self, size: int) -> bool:
        """Return True if the model can be trained on samples of that size. Many image sizes below `sizes` work too.
        They are tried on torch's "meta" device, which computes and draws nothing."""
        if self.task != "images" or size >= self.sizes[0]:
            return self.sizes[0] <= size <= self.sizes[1]
        try:
            with torch.device("meta"), torch.no_grad():
                self.build().train()(torch.empty(2, 3, size, size))
        except RuntimeError:  # an empty convolution or pooling
            return False
        return True


MAX_SIZE = 4096  # pixels of a side, or tokens: our limit where the architecture has none

MODELS: dict[str, ModelKind] = {
    "alexnet": ModelKind("cnn:alexnet", "images", 1000, 61_100_840, 32, 64, (63, MAX_SIZE)),
    "vgg16": ModelKind("cnn:vgg16", "images", 1000, 138_357_544, 32, 64, (32, MAX_SIZE)),
    "vgg19": ModelKind("cnn:vgg19", "images", 1000, 143_667_240, 32, 64, (32, MAX_SIZE)),
    "vgg11-quarter": ModelKind(
        "cnn:vgg11_quarter", "images", 10, 579_786, 128, 32, (32, MAX_SIZE), learning_rate=0.05, warmup=20
    ),
    "vgg16-cifar": ModelKind("cnn:vgg16_cifar", "images", 10, 14_728_266, 32, 32, (32, MAX_SIZE)),
    "vgg19-cifar": ModelKind("cnn:vgg19_cifar", "images", 10, 20_040_522, 32, 32, (32, MAX_SIZE)),
    "resnet18": ModelKind("resnet:resnet18", "images", 1000, 11_689_512, 32, 64, (32, MAX_SIZE)),
    "resnet50": ModelKind("resnet:resnet50", "images", 1000, 25_557_032, 32, 64, (32, MAX_SIZE)),
    "resnet8": ModelKind("resnet:resnet8", "images", 10, 75_290, 128, 32, (8, MAX_SIZE), learning_rate=0.1, warmup=20),
    "resnet20": ModelKind(
        "resnet:resnet20", "images", 10, 269_722, 128, 32, (8, MAX_SIZE), learning_rate=0.1, warmup=20
    ),
    "resnet20-v2": ModelKind(
        "resnet:resnet20_v2", "images", 10, 269_402, 128, 32, (8, MAX_SIZE), learning_rate=0.1, warmup=20
    ),
    "resnet110": ModelKind(
        "resnet:resnet110", "images", 10, 1_727_962, 128, 32, (8, MAX_SIZE), learning_rate=0.1, warmup=400
    ),
    "googlenet": ModelKind("inception:googlenet", "images", 1000, 13_004_888, 32, 64, (32, MAX_SIZE)),
    "googlenet-plain": ModelKind("inception:googlenet_plain", "images", 1000, 6_624_904, 32, 64, (32, MAX_SIZE)),
    "inception-v3": ModelKind("inception:inception_v3", "images", 1000, 27_161_264, 16, 96, (75, MAX_SIZE)),
    "inception-v3-plain": ModelKind("inception:inception_v3_plain", "images", 1000, 23_834_568, 16, 96, (75, MAX_SIZE)),
    "char-lstm": ModelKind(
        "recurrent:char_lstm", "next", 128, 345_728, 20, 64, (1, MAX_SIZE), "adamw", learning_rate=2e-3
    ),
    "char-gpt": ModelKind("gpt2:char_gpt", "next", 128, 445_952, 20, 64, (1, 256), "adamw", learning_rate=1e-3),
    "lstm": ModelKind("recurrent:lstm", "next", 10_000, 19_780_400, 20, 35, (1, MAX_SIZE), "adamw", learning_rate=1e-3),
    "lstm-large": ModelKind(
        "recurrent:lstm_large", "next", 10_000, 66_034_000, 20, 35, (1, MAX_SIZE), "adamw", learning_rate=1e-3
    ),
    "transformer-base": ModelKind(
        "transformer:transformer_base", "pairs", 37_000, 63_082_496, 8, 64, (1, MAX_SIZE), "adamw", 5e-4, 100
    ),
    "bert-base": ModelKind("bert:bert_base", "masked", 30_522, 109_514_298, 4, 128, (1, 512), "adamw", 1e-4, 100),
    "gpt2-small": ModelKind("gpt2:gpt2_small", "next", 50_257, 124_439_808, 4, 128, (1, 1024), "adamw", 3e-4, 50),
}


def find_model(name: str) -> ModelKind:
    """Return the model of that name; TraceError with the closest names, or all names."""
    if name in MODELS:
        return MODELS[name]
    expected = "one of " + ", ".join(MODELS) + nearest(name.replace("_", "-"), MODELS)
    raise TraceError(f"model {name!r}", "capture", expected)
