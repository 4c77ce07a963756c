"""Loads data sets into memory, and deals their samples to workers step by step from a separate seed.

Samples are shuffled in every epoch. Step k of an epoch takes the k-th run of N x B samples, and worker w the w-th slice
of it. The order depends on the data seed alone, so that runs that differ in something else are paired sample by sample.
`gradwire.traces.datasets` reads the files.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import interpolate, pad

from gradwire.scenarios.errors import TraceError
from gradwire.scenarios.loading.user_code_errors import asked
from gradwire.scenarios.validation.argument_checks import require_integer, wrong_type_error
from gradwire.traces.datasets.images import ImageDataset, load_splits
from gradwire.traces.datasets.text import TextDataset, load_text, synthetic_text
from gradwire.training.devices import to_device
from gradwire.training.recipe import check_samples

SYNTHETIC = "synthetic"
"""Name of the synthetic data set, which is small and yet learnable."""
MAX_SIDE = 4096
"""Largest width and height, in pixels."""


@dataclass
class Images:
    """Samples with a class each. `images` returns pictures, float32 [samples, 3, size, size], normalised by the
    training set's mean and deviation per channel. User-defined data can be anything that has classes: `Images((x, y),
    (x_test, y_test), classes, augment=False)`.

    train, test : (x, y); x is any tensor whose first dimension is the samples, such as features float32 [samples, 20];
        the model is called with batches of it. y are their classes, int64 [samples], from 0 to `classes` - 1. Nothing
        is normalised.
    augment : draw a shift of up to an eighth of the size and a mirroring for each picture of each step (He et al.,
        2016); only for pictures [samples, channels, size, size].

    Raises TraceError if the numbers of samples and labels differ, labels are not class numbers, or `augment` is set for
    samples that are not pictures.
    """

    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]
    classes: int
    augment: bool = True

    def __post_init__(self) -> None:
        require_integer(self.classes, "Images(classes)", 1, TraceError)
        for name in ("train", "test"):
            _check_split(getattr(self, name), f"Images({name})", self.classes)
        shape = tuple(self.train[0].shape)
        if self.augment and (len(shape) != 4 or shape[2] != shape[3]):
            expected = "pictures [samples, channels, size, size], or augment = False"
            raise TraceError(f"is True with samples {shape}", "Images(augment)", expected)

    def __len__(self) -> int:
        return len(self.train[1])

    def to(self, device: torch.device) -> Images:
        """Return a copy on a device."""
        return replace(self, train=to_device(self.train, device), test=to_device(self.test, device))

    def batch(self, indices: np.ndarray, draws: np.random.Generator) -> tuple[tuple[Tensor, ...], Tensor]:
        """Return (inputs, targets) of these samples."""
        chosen = torch.from_numpy(indices).to(self.train[0].device)
        pictures, labels = self.train[0][chosen], self.train[1][chosen]
        if self.augment:
            pictures = _augmented(pictures, draws)
        return (pictures,), labels


def _check_split(split: Any, where: str, classes: int) -> None:
    is_pair = isinstance(split, tuple | list) and len(split) == 2
    if not is_pair or not all(isinstance(tensor, Tensor) and tensor.dim() and _is_plain(tensor) for tensor in split):
        raise wrong_type_error(split, where, "(x, y), tensors of samples and of their classes", TraceError)
    samples, labels = split
    if len(samples) != len(labels):
        raise TraceError(f"{len(samples)} samples and {len(labels)} labels", where, "a label for each sample")
    if labels.dtype not in (torch.int64, torch.uint8):  # torch takes no others
        kind = str(labels.dtype).removeprefix("torch.")
        raise TraceError(f"has labels of {kind}", where, "numbers of classes, int64")
    if labels.numel():
        _check_range(labels, where, "label", classes, "Images")


def _is_plain(tensor: Tensor) -> bool:
    return tensor.layout == torch.strided and not tensor.is_meta


def _check_range(numbers: Tensor, where: str, name: str, classes: int, owner: str) -> None:
    """Raise TraceError unless all numbers are below `classes`, an argument of `owner`."""
    lowest, highest = map(int, numbers.aminmax())
    if lowest < 0 or highest >= classes:
        wrong = lowest if lowest < 0 else highest
        raise TraceError(f"has a {name} {wrong}", where, f"classes 0 to {classes - 1}, of {owner}(classes)")


@dataclass
class Text:
    """A text as tokens whose samples are spans: the k-th begins at k x length.

    train, test : tokens int64 [tokens], for training and held out (`text` holds out a tenth), each longer than a span.
    classes : distinct tokens, which are numbered from 0.
    length : tokens of a span, each of which is predicted from those before it.

    Raises TraceError if the tokens are invalid or too few.
    """

    train: Tensor
    test: Tensor
    classes: int
    length: int

    def __post_init__(self) -> None:
        for name in ("classes", "length"):
            require_integer(getattr(self, name), f"Text({name})", 1, TraceError)
        for name in ("train", "test"):
            tokens, where = getattr(self, name), f"Text({name})"
            if not isinstance(tokens, Tensor) or tokens.dim() != 1 or tokens.dtype != torch.int64:
                raise wrong_type_error(tokens, where, "a tensor of tokens, int64 [tokens]", TraceError)
            if len(tokens) <= self.length:
                raise TraceError(f"has {len(tokens)} tokens", where, f"more than a span, of {self.length}")
            _check_range(tokens, where, "token", self.classes, "Text")

    def __len__(self) -> int:
        return (len(self.train) - 1) // self.length

    def to(self, device: torch.device) -> Text:
        """Return a copy on a device."""
        return replace(self, train=self.train.to(device), test=self.test.to(device))

    def batch(self, indices: np.ndarray, draws: np.random.Generator) -> tuple[tuple[Tensor, ...], Tensor]:
        """Return (inputs, targets) of these samples, int64 [samples, length] each, at a random offset below
        `length`."""
        shift = int(draws.integers(0, self.length))
        starts = np.minimum(indices * self.length + shift, len(self.train) - self.length - 1)
        spans = self.train[torch.from_numpy(starts[:, None] + np.arange(self.length + 1)).to(self.train.device)]
        return (spans[:, :-1],), spans[:, 1:]

    def validation_batches(self) -> tuple[Tensor, Tensor]:
        """Return (inputs, targets) of the held-out text."""
        count = (len(self.test) - 1) // self.length
        spans = self.test[: count * self.length + 1].unfold(0, self.length + 1, self.length)
        return spans[:, :-1], spans[:, 1:]


def images(source: str | Path, size: int, augment: bool = True, limit: int | None = None, seed: int = 0) -> Images:
    """Return CIFAR-10 or -100, or folders of pictures, at `size` x `size` pixels.

    limit : use the first `limit` pictures of each split.

    Raises TraceError if data, size or limit are invalid; there is only one class; or test has a class that train
    has not.
    """
    if require_integer(size, "images(size)", 1, TraceError) > MAX_SIDE:
        raise TraceError(f"is {size}", "images(size)", f"at most {MAX_SIDE} pixels of a side")
    if limit is not None:
        limit = require_integer(limit, "images(limit)", 1, TraceError)
    if str(source) == SYNTHETIC:
        return _patterns(size, limit or 4096, seed, augment)
    selections = [(dataset, _selected_indices(dataset, limit)) for dataset in load_splits(source)]
    classes = _classes([dataset.labels[indices] for dataset, indices in selections], str(source), limit)
    splits = [_tensors(dataset, size, indices) for dataset, indices in selections]
    mean = splits[0][0].mean(dim=(0, 2, 3), keepdim=True)
    deviation = splits[0][0].std(dim=(0, 2, 3), keepdim=True).clamp(min=1e-6)
    (train, labels), (test, answers) = [((pictures - mean) / deviation, targets) for pictures, targets in splits]
    return Images((train, labels), (test, answers), classes, augment)


def _classes(labels: list[np.ndarray], source: str, limit: int | None) -> int:
    """Return the number of classes in train; raise TraceError if it is one, or if test has more."""
    train, test = map(np.unique, labels)
    subject = "train" if limit is None else f"{limit} pictures of train"
    more = "" if limit is None else ", or more of them"
    if len(train) < 2:
        raise TraceError(f"there is only one class in {subject}", source, f"at least two classes of pictures{more}")
    if test[-1] > train[-1]:
        what = f"class {test[-1]} is in test and not in {subject}"
        raise TraceError(what, source, f"classes 0 to {train[-1]}{more}")
    return int(train[-1]) + 1


def text(source: str | Path, length: int, tokens: str = "char", vocabulary: int = 4096) -> Text:
    """Return a text file, or a folder of them, in spans of `length` tokens. Raises TraceError if the text is missing,
    or it is shorter than ten spans."""
    is_synthetic = str(source) == SYNTHETIC
    dataset: TextDataset = synthetic_text(64, 0, 200_000) if is_synthetic else load_text(source, tokens, vocabulary)
    ids = torch.from_numpy(dataset.ids.astype(np.int64))
    held_out = len(ids) // 10
    if held_out < length + 1:
        raise TraceError(f"{len(ids)} tokens", str(source), f"at least {10 * (length + 1)} for spans of {length}")
    return Text(ids[:-held_out], ids[-held_out:], dataset.distinct, length)


class Dealer:
    """Deals the samples of a data set to workers, step after step and epoch after epoch."""

    def __init__(
        self, data: Images | Text, workers: int, batch: int, seed: int, device: torch.device | None = None
    ) -> None:
        """Validate the sizes; `device` receives the samples, by default the device that holds them."""
        check_samples(len(data), workers, batch)
        self.data, self.count, self.seed, self.device = data, workers * batch, seed, device
        self._epoch, self._order = -1, np.empty(0, np.int64)

    @property
    def steps_per_epoch(self) -> int:
        """Whole steps of an epoch; leftover samples are dropped."""
        return len(self.data) // self.count

    def step(self, number: int) -> tuple[tuple[Tensor, ...], Tensor]:
        """Return (inputs, targets) of all workers in a step, slice after slice; steps may be taken in any order."""
        epoch, within = divmod(number, self.steps_per_epoch)
        if epoch != self._epoch:
            self._epoch, self._order = epoch, np.random.default_rng([self.seed, 0, epoch]).permutation(len(self.data))
        indices = self._order[within * self.count : (within + 1) * self.count]
        with asked(self.data, "batch", "training.data", f"in step {number}"):  # may be user-defined
            batch = self.data.batch(indices, np.random.default_rng([self.seed, 1, number]))
        return batch if self.device is None else to_device(batch, self.device)


def _selected_indices(dataset: ImageDataset, limit: int | None) -> np.ndarray:
    """Return the indices of the pictures to use: the first ones, or evenly spaced ones if the data is sorted by
    class."""
    count = min(limit or len(dataset), len(dataset))
    return np.arange(count) * len(dataset) // count if dataset.names else np.arange(count)


def _tensors(dataset: ImageDataset, size: int, chosen: np.ndarray) -> tuple[Tensor, Tensor]:
    parts = []
    for first in range(0, len(chosen), 1000):
        pictures = torch.from_numpy(dataset.pictures(chosen[first : first + 1000], size))
        scaled = pictures.permute(0, 3, 1, 2).float() / 255
        if scaled.shape[-1] != size:
            scaled = interpolate(scaled, (size, size), mode="bilinear", antialias=True, align_corners=False)
        parts.append(scaled)
    return torch.cat(parts), torch.from_numpy(dataset.labels[chosen].astype(np.int64))


def _patterns(size: int, count: int, seed: int, augment: bool) -> Images:
    """Return ten patterns with noise, which are learned in a few hundred steps."""
    draws = np.random.default_rng([seed, 10])
    patterns = draws.normal(size=(10, 3, size, size))
    splits = []
    for number in (count, max(count // 4, 200)):
        labels = draws.integers(0, 10, number)
        pictures = patterns[labels] + draws.normal(scale=2.0, size=(number, 3, size, size))
        splits.append((torch.from_numpy(pictures).float(), torch.from_numpy(labels)))
    return Images(splits[0], splits[1], 10, augment)


def _augmented(pictures: Tensor, draws: np.random.Generator) -> Tensor:
    """Return each picture shifted and perhaps mirrored."""
    count, _, size, _ = pictures.shape
    reach, device = size // 8, pictures.device
    padded, along = pad(pictures, (reach,) * 4), torch.arange(size, device=device)
    rows = torch.from_numpy(draws.integers(0, 2 * reach + 1, count)).to(device)[:, None] + along
    columns = torch.from_numpy(draws.integers(0, 2 * reach + 1, count)).to(device)[:, None] + along
    mirrored = torch.from_numpy(draws.random(count) < 0.5).to(device)
    columns = torch.where(mirrored[:, None], columns.flip(1), columns)
    samples = torch.arange(count, device=device)
    return padded[samples[:, None, None], :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2).contiguous()
