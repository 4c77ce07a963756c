"""`Task` provides the batches and the loss to train a built-in model, on pictures or spans of text.

    images   pictures scaled to [-2, 2], enlarged or reduced bilinearly to squares; cross entropy with their
             labels, plus the auxiliary classifiers' at the weight the model names
    next     spans of a text; cross entropy of each token given those before it
    masked   spans of a text in which 15 % of the tokens are predicted: of these 80 % are hidden, 10 % are
             replaced at random and 10 % stay (Devlin et al., 2019)
    pairs    a span of text as the source and the span after it as the target, with label smoothing 0.1 as in
             Vaswani et al. (2017); translating spans into their continuation is our choice, for want of a
             parallel text

The last number of a vocabulary is never a token of the text in "masked", where it hides one, and in "pairs", where it
begins the target. Needs torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, interpolate

from gradwire.scenarios.errors import TraceError
from gradwire.scenarios.json_data import Json
from gradwire.traces.datasets.images import ImageDataset, batches, load_images, synthetic_images
from gradwire.traces.datasets.text import TextDataset, load_text, synthetic_text
from gradwire.traces.models import ModelKind

SYNTHETIC = "synthetic"  # value of --data for random data
MASKED_SHARE, HIDDEN, REPLACED = 0.15, 0.8, 0.1

Batch = tuple[tuple[Tensor, ...], Tensor]  # inputs and targets of the model


@dataclass(frozen=True)
class Task:
    """Data set bound to a model's shape: `outputs` classes or tokens, `size` pixels or tokens. `manifest` describes the
    origin of the data in a trace."""

    kind: str
    dataset: ImageDataset | TextDataset
    outputs: int
    size: int
    manifest: Json = field(default_factory=dict)

    def batches(self, batch: int, seed: int, device: torch.device) -> Iterator[Batch]:
        """Yield endless batches on `device`, the same for the same seed."""
        if isinstance(self.dataset, ImageDataset):
            for pictures, labels in batches(self.dataset, batch, seed, self.size):
                yield (_images(pictures, self.size, device),), torch.from_numpy(labels).to(device)
            return
        length = {"next": self.size + 1, "masked": self.size, "pairs": 2 * self.size}[self.kind]
        chance = np.random.default_rng([seed, 1])
        for spans in self.dataset.batches(batch, length, seed):
            inputs, targets = self._from_text(spans, chance)
            yield tuple(_to(part, device) for part in inputs), _to(targets, device)

    def loss(self, model: nn.Module, inputs: tuple[Tensor, ...], targets: Tensor) -> Tensor:
        """Return the loss of one batch, with the only call of `model` in a step."""
        outputs = model(*inputs)
        if isinstance(outputs, tuple):
            main, *auxiliary = outputs
            extra = sum(cross_entropy(logits, targets) for logits in auxiliary)
            return cross_entropy(main, targets) + model.aux_weight * extra
        smoothing = 0.1 if self.kind == "pairs" else 0.0
        return cross_entropy(outputs.flatten(0, -2), targets.flatten(), label_smoothing=smoothing)

    def _from_text(self, spans: np.ndarray, chance: np.random.Generator) -> tuple[tuple[np.ndarray, ...], np.ndarray]:
        if self.kind == "next":
            return (spans[:, :-1],), spans[:, 1:]
        special = self.outputs - 1
        if self.kind == "pairs":
            source, target = spans[:, : self.size], spans[:, self.size :]
            begin = np.full((len(spans), 1), special)
            return (source, np.concatenate([begin, target[:, :-1]], axis=1)), target
        chosen = np.zeros(spans.shape, dtype=bool)
        count = max(1, round(MASKED_SHARE * self.size))
        for row in chosen:
            row[chance.choice(self.size, count, replace=False)] = True
        draw = chance.random(spans.shape)
        replacement = chance.integers(0, self.dataset.distinct, spans.shape)  # type: ignore[union-attr]
        tokens = np.where(chosen & (draw < HIDDEN), special, spans)
        replaced = chosen & (draw >= HIDDEN) & (draw < HIDDEN + REPLACED)
        tokens = np.where(replaced, replacement, tokens)
        return (tokens, chosen), spans[chosen]


def make_task(kind: ModelKind, data: str | Path, size: int, tokens: str, seed: int) -> Task:
    """Return the task of a model on `data`: a folder or file, or the word "synthetic" for random data. (A folder of
    that name is `./synthetic`.) TraceError if the data cannot be read or do not fit the model."""
    is_synthetic = str(data) == SYNTHETIC
    if kind.task == "images":
        images = synthetic_images(kind.outputs, size, seed) if is_synthetic else load_images(data)
        if images.classes < 2:
            raise TraceError(f"{images.classes} class", images.name, "at least two classes of pictures")
        description: Json = {"classes": images.classes, "images": len(images), "image_size": size}
        return Task(kind.task, images, images.classes, size, {**_origin(images, images.layout), **description})
    vocabulary = kind.outputs - (kind.task != "next")
    text = synthetic_text(vocabulary, seed) if is_synthetic else load_text(data, tokens, vocabulary)
    description = {
        "sequence": size,
        "vocabulary": kind.outputs,
        "tokens": text.tokens,
        "distinct_tokens": text.distinct,
        "text_tokens": len(text),
        "unknown_share": round(text.unknown, 6),
    }
    return Task(kind.task, text, kind.outputs, size, {**_origin(text, "text"), **description})


def _origin(dataset: ImageDataset | TextDataset, layout: str) -> Json:
    origin: Json = {"dataset": dataset.name, "dataset_layout": layout}
    if dataset.name == SYNTHETIC and SYNTHETIC in (layout, getattr(dataset, "tokens", layout)):
        origin["dataset_layout"] = SYNTHETIC
        origin["synthetic"] = "data made up at random: the gradients mean nothing, only the times are real"
    return origin


def _to(values: np.ndarray, device: torch.device) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(values)).to(device)


def _images(pictures: np.ndarray, size: int, device: torch.device) -> Tensor:
    images = torch.from_numpy(pictures).to(device).permute(0, 3, 1, 2).float().div(255).sub(0.5).div(0.25)
    if images.shape[-1] != size:
        images = interpolate(images, size=(size, size), mode="bilinear", align_corners=False)
    return images.contiguous()
