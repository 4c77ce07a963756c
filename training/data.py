"""Data for training: whole data sets in memory, dealt to workers step by step from a seed of their own.

In every epoch the samples are shuffled and dealt: step k of an epoch is the k-th run of N x B of them, worker w has the
w-th slice of that. The order depends on the data seed alone, so that runs that differ in something else are paired
sample by sample. `gradwire.traces.datasets` reads the files.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import interpolate, pad

from gradwire.scenarios.asked import asked
from gradwire.scenarios.errors import TraceError
from gradwire.scenarios.given import unfit, whole_number
from gradwire.traces.datasets.images import ImageDataset, load_splits
from gradwire.traces.datasets.text import TextDataset, load_text, synthetic_text
from gradwire.training.asked import check_samples
from gradwire.training.devices import moved

SYNTHETIC = "synthetic"
"""The name of a data set that is made up: small, and yet something can be learned from it."""
LARGEST = 4096
"""Pixels of a side, at most."""


@dataclass
class Images:
    """Samples with a class each. From `images` they are pictures float32 [samples, 3, size, size], normalised by the
    training set's mean and deviation per channel.

    Data of one's own can be anything that has a class: `Images((x, y), (x_test, y_test), classes, augment=False)`.

    train, test : (x, y); x is any tensor whose first dimension is the samples, such as features float32 [samples, 20],
        and the model is called with some of them; y are their classes, int64 [samples], from 0 to `classes` - 1.
        Nothing is normalised.
    augment : draw a shift of up to an eighth of the size and a mirroring for each picture of each step (He et al.,
        2016); only for pictures [samples, channels, size, size].

    Raises
    ------
    TraceError
        Samples and labels are not as many, or labels are no numbers of classes; or what is no picture would be shifted.
    """

    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]
    classes: int
    augment: bool = True

    def __post_init__(self) -> None:
        whole_number(self.classes, "Images(classes)", 1, TraceError)
        for name in ("train", "test"):
            _check_split(getattr(self, name), f"Images({name})", self.classes)
        shape = tuple(self.train[0].shape)
        if self.augment and (len(shape) != 4 or shape[2] != shape[3]):
            expected = "pictures [samples, channels, size, size], or augment = False"
            raise TraceError(f"is True with samples {shape}", "Images(augment)", expected)

    def __len__(self) -> int:
        return len(self.train[1])

    def to(self, device: torch.device) -> Images:
        """The same on a device."""
        return replace(self, train=moved(self.train, device), test=moved(self.test, device))

    def batch(self, indices: np.ndarray, draws: np.random.Generator) -> tuple[tuple[Tensor, ...], Tensor]:
        """(inputs, targets) of these samples."""
        chosen = torch.from_numpy(indices).to(self.train[0].device)
        pictures, labels = self.train[0][chosen], self.train[1][chosen]
        if self.augment:
            pictures = _moved(pictures, draws)
        return (pictures,), labels


def _check_split(given: Any, where: str, classes: int) -> None:
    """Raise TraceError unless it is samples with a class each."""
    both = isinstance(given, tuple | list) and len(given) == 2
    if not both or not all(isinstance(each, Tensor) and each.dim() and _is_plain(each) for each in given):
        raise unfit(given, where, "(x, y), tensors of samples and of their classes", TraceError)
    samples, labels = given
    if len(samples) != len(labels):
        raise TraceError(f"{len(samples)} samples and {len(labels)} labels", where, "a label for each sample")
    if labels.dtype not in (torch.int64, torch.uint8):  # which is all that torch takes
        kind = str(labels.dtype).removeprefix("torch.")
        raise TraceError(f"has labels of {kind}", where, "numbers of classes, int64")
    if labels.numel():
        _check_range(labels, where, "label", classes, "Images")


def _is_plain(tensor: Tensor) -> bool:
    """Whether its values are there, one beside the other."""
    return tensor.layout == torch.strided and not tensor.is_meta


def _check_range(numbers: Tensor, where: str, name: str, classes: int, owner: str) -> None:
    """Raise TraceError unless all numbers are below `classes`, which `owner` has been given."""
    least, most = map(int, numbers.aminmax())
    if least < 0 or most >= classes:
        wrong = least if least < 0 else most
        raise TraceError(f"has a {name} {wrong}", where, f"classes 0 to {classes - 1}, of {owner}(classes)")


@dataclass
class Text:
    """A text as tokens, of which samples are spans: the k-th begins at k x length.

    train, test : tokens int64 [tokens], what is learned from and what is held out (of `text` a tenth), each longer than
        a span.
    classes : distinct tokens, which are numbered from 0.
    length : tokens of a span, each of which is predicted from those before it.

    Raises
    ------
    TraceError
        They are no such tokens, or too few.
    """

    train: Tensor
    test: Tensor
    classes: int
    length: int

    def __post_init__(self) -> None:
        for name in ("classes", "length"):
            whole_number(getattr(self, name), f"Text({name})", 1, TraceError)
        for name in ("train", "test"):
            tokens, where = getattr(self, name), f"Text({name})"
            if not isinstance(tokens, Tensor) or tokens.dim() != 1 or tokens.dtype != torch.int64:
                raise unfit(tokens, where, "a tensor of tokens, int64 [tokens]", TraceError)
            if len(tokens) <= self.length:
                raise TraceError(f"has {len(tokens)} tokens", where, f"more than a span, of {self.length}")
            _check_range(tokens, where, "token", self.classes, "Text")

    def __len__(self) -> int:
        return (len(self.train) - 1) // self.length

    def to(self, device: torch.device) -> Text:
        """The same on a device."""
        return replace(self, train=self.train.to(device), test=self.test.to(device))

    def batch(self, indices: np.ndarray, draws: np.random.Generator) -> tuple[tuple[Tensor, ...], Tensor]:
        """(inputs, targets) of these samples, int64 [samples, length] each, from places a little further on each
        time."""
        shift = int(draws.integers(0, self.length))
        starts = np.minimum(indices * self.length + shift, len(self.train) - self.length - 1)
        spans = self.train[torch.from_numpy(starts[:, None] + np.arange(self.length + 1)).to(self.train.device)]
        return (spans[:, :-1],), spans[:, 1:]

    def held_out(self) -> tuple[Tensor, Tensor]:
        """(inputs, targets) of the text that is not learned from."""
        count = (len(self.test) - 1) // self.length
        spans = self.test[: count * self.length + 1].unfold(0, self.length + 1, self.length)
        return spans[:, :-1], spans[:, 1:]


def images(source: str | Path, size: int, augment: bool = True, limit: int | None = None, seed: int = 0) -> Images:
    """CIFAR-10 or -100, or folders of pictures, at `size` x `size` pixels.

    limit : at most so many pictures of each split, the first ones.

    Raises
    ------
    TraceError
        There is no such data, size or limit; there is only one class to learn; or test has a class that train has not.
    """
    if whole_number(size, "images(size)", 1, TraceError) > LARGEST:
        raise TraceError(f"is {size}", "images(size)", f"at most {LARGEST} pixels of a side")
    if limit is not None:
        limit = whole_number(limit, "images(limit)", 1, TraceError)
    if str(source) == SYNTHETIC:
        return _patterns(size, limit or 4096, seed, augment)
    found = load_splits(source)
    taken = [_taken(each, limit) for each in found]
    classes = _classes([each.labels[those] for each, those in zip(found, taken, strict=True)], str(source), limit)
    splits = [_tensors(each, size, those) for each, those in zip(found, taken, strict=True)]
    mean = splits[0][0].mean(dim=(0, 2, 3), keepdim=True)
    deviation = splits[0][0].std(dim=(0, 2, 3), keepdim=True).clamp(min=1e-6)
    (train, labels), (test, answers) = [((pictures - mean) / deviation, given) for pictures, given in splits]
    return Images((train, labels), (test, answers), classes, augment)


def _classes(labels: list[np.ndarray], source: str, limit: int | None) -> int:
    """The classes of what is learned from, if there is something to tell apart, and test has no more of them."""
    learned, asked = map(np.unique, labels)
    those = "train" if limit is None else f"{limit} pictures of train"
    more = "" if limit is None else ", or more of them"
    if len(learned) < 2:
        raise TraceError(f"there is one class only in {those}", source, f"at least two classes of pictures{more}")
    if asked[-1] > learned[-1]:
        what = f"class {asked[-1]} is in test and not in {those}"
        raise TraceError(what, source, f"classes 0 to {learned[-1]}{more}")
    return int(learned[-1]) + 1


def text(source: str | Path, length: int, tokens: str = "char", vocabulary: int = 4096) -> Text:
    """A text file, or a folder of them, in spans of `length` tokens.

    Raises
    ------
    TraceError
        There is no such text, or it is shorter than ten spans.
    """
    found: TextDataset = (
        synthetic_text(64, 0, 200_000) if str(source) == SYNTHETIC else load_text(source, tokens, vocabulary)
    )
    ids = torch.from_numpy(found.ids.astype(np.int64))
    held = len(ids) // 10
    if held < length + 1:
        raise TraceError(f"{len(ids)} tokens", str(source), f"at least {10 * (length + 1)} for spans of {length}")
    return Text(ids[:-held], ids[-held:], found.distinct, length)


class Dealer:
    """Deals the samples of a data set to workers: step after step, epoch after epoch."""

    def __init__(
        self, data: Images | Text, workers: int, batch: int, seed: int, device: torch.device | None = None
    ) -> None:
        """`device`: where samples are handed out; where they are if absent."""
        check_samples(len(data), workers, batch)
        self.data, self.count, self.seed, self.device = data, workers * batch, seed, device
        self._epoch, self._order = -1, np.empty(0, np.int64)

    @property
    def steps_per_epoch(self) -> int:
        """Whole steps; what is left over is dropped."""
        return len(self.data) // self.count

    def step(self, number: int) -> tuple[tuple[Tensor, ...], Tensor]:
        """(inputs, targets) of all workers in a step, slice after slice; any step at any time."""
        epoch, within = divmod(number, self.steps_per_epoch)
        if epoch != self._epoch:
            self._epoch, self._order = epoch, np.random.default_rng([self.seed, 0, epoch]).permutation(len(self.data))
        indices = self._order[within * self.count : (within + 1) * self.count]
        with asked(self.data, "batch", "training.data", f"in step {number}"):  # anybody's
            dealt = self.data.batch(indices, np.random.default_rng([self.seed, 1, number]))
        return dealt if self.device is None else moved(dealt, self.device)


def _taken(dataset: ImageDataset, limit: int | None) -> np.ndarray:
    """Numbers of the pictures that are taken: the first ones, or where these would be of the first classes only, ones
    from all over the data."""
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
    """Ten patterns with noise: learned in a few hundred steps."""
    draws = np.random.default_rng([seed, 10])
    patterns = draws.normal(size=(10, 3, size, size))
    splits = []
    for number in (count, max(count // 4, 200)):
        labels = draws.integers(0, 10, number)
        pictures = patterns[labels] + draws.normal(scale=2.0, size=(number, 3, size, size))
        splits.append((torch.from_numpy(pictures).float(), torch.from_numpy(labels)))
    return Images(splits[0], splits[1], 10, augment)


def _moved(pictures: Tensor, draws: np.random.Generator) -> Tensor:
    """Each picture shifted and perhaps mirrored."""
    count, _, size, _ = pictures.shape
    reach, device = size // 8, pictures.device
    padded, along = pad(pictures, (reach,) * 4), torch.arange(size, device=device)
    rows = torch.from_numpy(draws.integers(0, 2 * reach + 1, count)).to(device)[:, None] + along
    columns = torch.from_numpy(draws.integers(0, 2 * reach + 1, count)).to(device)[:, None] + along
    mirrored = torch.from_numpy(draws.random(count) < 0.5).to(device)
    columns = torch.where(mirrored[:, None], columns.flip(1), columns)
    samples = torch.arange(count, device=device)
    return padded[samples[:, None, None], :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2).contiguous()
