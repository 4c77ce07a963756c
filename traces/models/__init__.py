"""The models that `gradwire capture` knows by name, and how each is trained there.

One line in `MODELS` registers a model: the module and function that build it, the task it learns, the shape
of its input and its optimiser. Importing this package does not import torch; `ModelKind.build` does.

Tasks (see `gradwire.traces.capture.tasks`): "images" - pictures to classes; "next" - each token of a text from those
before it; "masked" - hidden tokens of a text from those around them; "pairs" - a span of text from the span before.
"""

from __future__ import annotations

import difflib
import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from gradwire.scenarios.errors import TraceError

if TYPE_CHECKING:
    from torch import nn

Task = Literal["images", "next", "masked", "pairs"]


@dataclass(frozen=True)
class ModelKind:
    """One built-in model.

    `builder` is "module:function" within this package; the function takes the number of classes (images) or
    the size of the vocabulary (text), whose published value is `outputs`. `parameters` is the count with
    that. `batch` and `size` (pixels of a side, or tokens) are what a capture uses unless told otherwise;
    `sizes` is the smallest and the largest size the model can take. `optimizer`, `learning_rate` and
    `warmup` (steps in which the rate rises linearly from zero) are our choice: plain settings with which the
    loss falls within a few hundred steps of small batches.
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
        """A new model with `outputs` classes or tokens (default: the published number), on torch's default
        device, from torch's random numbers.
        """
        module, function = self.builder.split(":")
        return getattr(importlib.import_module(f"gradwire.traces.models.{module}"), function)(outputs or self.outputs)

    def takes(self, size: int) -> bool:
        """Whether samples of that size go through it in training. Many go that are smaller than `sizes`, which is what
        the model is meant for, so one without pictures of the model without numbers, torch's "meta", is tried: it
        computes nothing and draws nothing.
        """
        if self.task != "images" or size >= self.sizes[0]:
            return self.sizes[0] <= size <= self.sizes[1]
        import torch

        try:
            with torch.device("meta"), torch.no_grad():
                self.build().train()(torch.empty(2, 3, size, size))
        except RuntimeError:  # a convolution or a pooling of nothing
            return False
        return True


MANY = 4096  # no limit of the architecture: the side of a picture, or tokens at once, that we call enough

MODELS: dict[str, ModelKind] = {
    "alexnet": ModelKind("cnn:alexnet", "images", 1000, 61_100_840, 32, 64, (63, MANY)),
    "vgg16": ModelKind("cnn:vgg16", "images", 1000, 138_357_544, 32, 64, (32, MANY)),
    "vgg19": ModelKind("cnn:vgg19", "images", 1000, 143_667_240, 32, 64, (32, MANY)),
    "vgg11-quarter": ModelKind(
        "cnn:vgg11_quarter", "images", 10, 579_786, 128, 32, (32, MANY), learning_rate=0.05, warmup=20
    ),
    "vgg16-cifar": ModelKind("cnn:vgg16_cifar", "images", 10, 14_728_266, 32, 32, (32, MANY)),
    "vgg19-cifar": ModelKind("cnn:vgg19_cifar", "images", 10, 20_040_522, 32, 32, (32, MANY)),
    "resnet18": ModelKind("resnet:resnet18", "images", 1000, 11_689_512, 32, 64, (32, MANY)),
    "resnet50": ModelKind("resnet:resnet50", "images", 1000, 25_557_032, 32, 64, (32, MANY)),
    "resnet8": ModelKind("resnet:resnet8", "images", 10, 75_290, 128, 32, (8, MANY), learning_rate=0.1, warmup=20),
    "resnet20": ModelKind(
        "resnet:resnet20", "images", 10, 269_722, 128, 32, (8, MANY), learning_rate=0.1, warmup=20
    ),
    "resnet20-v2": ModelKind(
        "resnet:resnet20_v2", "images", 10, 269_402, 128, 32, (8, MANY), learning_rate=0.1, warmup=20
    ),
    "resnet110": ModelKind(
        "resnet:resnet110", "images", 10, 1_727_962, 128, 32, (8, MANY), learning_rate=0.1, warmup=400
    ),
    "googlenet": ModelKind("inception:googlenet", "images", 1000, 13_004_888, 32, 64, (32, MANY)),
    "googlenet-plain": ModelKind("inception:googlenet_plain", "images", 1000, 6_624_904, 32, 64, (32, MANY)),
    "inception-v3": ModelKind("inception:inception_v3", "images", 1000, 27_161_264, 16, 96, (75, MANY)),
    "inception-v3-plain": ModelKind(
        "inception:inception_v3_plain", "images", 1000, 23_834_568, 16, 96, (75, MANY)
    ),
    "char-lstm": ModelKind(
        "recurrent:char_lstm", "next", 128, 345_728, 20, 64, (1, MANY), "adamw", learning_rate=2e-3
    ),
    "char-gpt": ModelKind("gpt2:char_gpt", "next", 128, 445_952, 20, 64, (1, 256), "adamw", learning_rate=1e-3),
    "lstm": ModelKind(
        "recurrent:lstm", "next", 10_000, 19_780_400, 20, 35, (1, MANY), "adamw", learning_rate=1e-3
    ),
    "lstm-large": ModelKind(
        "recurrent:lstm_large", "next", 10_000, 66_034_000, 20, 35, (1, MANY), "adamw", learning_rate=1e-3
    ),
    "transformer-base": ModelKind(
        "transformer:transformer_base", "pairs", 37_000, 63_082_496, 8, 64, (1, MANY), "adamw", 5e-4, 100
    ),
    "bert-base": ModelKind(
        "bert:bert_base", "masked", 30_522, 109_514_298, 4, 128, (1, 512), "adamw", 1e-4, 100
    ),
    "gpt2-small": ModelKind(
        "gpt2:gpt2_small", "next", 50_257, 124_439_808, 4, 128, (1, 1024), "adamw", 3e-4, 50
    ),
}


def find_model(name: str) -> ModelKind:
    """The model of that name; TraceError with the names that come close, or all of them."""
    if name in MODELS:
        return MODELS[name]
    near = difflib.get_close_matches(name.replace("_", "-"), MODELS, n=3)
    hint = f"; did you mean {' or '.join(near)}?" if near else ""
    raise TraceError(f"model {name!r}", "capture", "one of " + ", ".join(MODELS) + hint)
