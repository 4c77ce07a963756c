"""The values that hosts send: drawn to the magnitudes of a trace (`magnitudes`), or given, number by number.

A training hands over the very bytes that its workers send in a step. They are written beforehand, as drawn ones are,
and agents map them into memory.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from gradwire.emu.agent.magnitudes import Magnitudes

ABOUT, GIVEN = "about.json", "values.npy"
WORD = 4
"""Bytes of a value: messages are whole numbers of them."""


class Values(Protocol):
    """Where the gradients of a trace come from.

    Attributes
    ----------
    numel : elements of every tensor.
    """

    numel: list[int]

    def widest(self, tensors: Sequence[int]) -> np.dtype[Any]:
        """The type as which these tensors travel together."""

    def gradient(
        self, seed: int, job: str, worker: int, captured: int, tensor: int, first: int, count: int
    ) -> NDArray[Any]:
        """Elements `first` to `first + count` of a gradient."""


def give(folder: Path, contents: Sequence[Sequence[bytes]], numbers: bool) -> str:
    """Write what workers send of each tensor, by worker and tensor, to a new folder, and return its name.

    contents : whole words of 4 bytes; of a tensor as many for every worker.
    numbers : whether they are float32 values, which can be added up; else sums of words stand for what servers make of
        encodings, as long and of no meaning.

    Raises
    ------
    ValueError
        Contents are not so.
    """
    sizes = [len(each) for each in contents[0]]
    if any([len(each) for each in row] != sizes for row in contents) or any(size % WORD for size in sizes):
        raise ValueError("what workers send of a tensor is not equally many words of 4 bytes")
    folder.mkdir(parents=True)
    np.save(folder / GIVEN, np.stack([np.frombuffer(b"".join(row), dtype=np.uint32) for row in contents]))
    about = {"given": "float32" if numbers else "uint32", "numel": [size // WORD for size in sizes]}
    (folder / ABOUT).write_text(json.dumps(about))
    return str(folder)


class Given:
    """What `give` has written."""

    def __init__(self, folder: str | Path) -> None:
        about = json.loads((Path(folder) / ABOUT).read_text())
        self.numel: list[int] = about["numel"]
        self._type = np.dtype(about["given"])
        self._words = np.load(Path(folder) / GIVEN, mmap_mode="r")
        self._begins = np.cumsum([0, *self.numel]).tolist()

    def widest(self, tensors: Sequence[int]) -> np.dtype[Any]:
        """The type as which these tensors travel together: all have the same."""
        return self._type

    def gradient(
        self, seed: int, job: str, worker: int, captured: int, tensor: int, first: int, count: int
    ) -> NDArray[Any]:
        """Elements `first` to `first + count` of what a worker sends of a tensor."""
        begin = self._begins[tensor] + first
        return np.array(self._words[worker, begin : begin + count]).view(self._type)


def values_of(folder: str | Path) -> Values:
    """What is written in a folder, of either kind."""
    return Given(folder) if (Path(folder) / GIVEN).exists() else Magnitudes(folder)
