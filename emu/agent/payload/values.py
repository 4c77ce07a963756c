"""Stores and reads the values that a training run's workers send; `values_of` opens these or drawn ones (`magnitudes`).

A training run provides the bytes that its workers send in a step. They are written beforehand, as drawn ones are, and
agents map them into memory.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradwire.emu.agent.payload.magnitudes import Magnitudes

ABOUT, GIVEN = "about.json", "values.npy"
WORD = 4
"""Bytes of a value; message sizes are multiples of it."""


def write_values(folder: Path, contents: Sequence[Sequence[bytes]], numbers: bool) -> str:
    """Write the workers' values, by worker and tensor, to a new folder; return its name.

    contents : whole words of 4 bytes, equally many of a tensor for every worker.
    numbers : True for float32 values, which can be added; otherwise sums of words are meaningless stand-ins of the same
        size for what servers make of encodings.

    Raises ValueError: the contents have other sizes.
    """
    sizes = [len(each) for each in contents[0]]
    if any([len(each) for each in row] != sizes for row in contents) or any(size % WORD for size in sizes):
        raise ValueError("workers send different numbers of 4-byte words for the same tensor")
    folder.mkdir(parents=True)
    np.save(folder / GIVEN, np.stack([np.frombuffer(b"".join(row), dtype=np.uint32) for row in contents]))
    about = {"given": "float32" if numbers else "uint32", "numel": [size // WORD for size in sizes]}
    (folder / ABOUT).write_text(json.dumps(about))
    return str(folder)


class GivenValues:
    """The values that `write_values` has written, with the methods of `Magnitudes`."""

    def __init__(self, folder: str | Path) -> None:
        about = json.loads((Path(folder) / ABOUT).read_text())
        self.numel: list[int] = about["numel"]
        self._type = np.dtype(about["given"])
        self._words = np.load(Path(folder) / GIVEN, mmap_mode="r")
        self._begins = np.cumsum([0, *self.numel]).tolist()

    def widest(self, tensors: Sequence[int]) -> np.dtype[Any]:
        return self._type

    def gradient(
        self, seed: int, job: str, worker: int, captured: int, tensor: int, first: int, count: int
    ) -> NDArray[Any]:
        begin = self._begins[tensor] + first
        return np.array(self._words[worker, begin : begin + count]).view(self._type)


ValueSource = GivenValues | Magnitudes


def values_of(folder: str | Path) -> ValueSource:
    return GivenValues(folder) if (Path(folder) / GIVEN).exists() else Magnitudes(folder)
