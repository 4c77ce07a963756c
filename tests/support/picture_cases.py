"""Data sets of pictures, made up: CIFAR's pickles, Parquet, and files of one colour."""

from __future__ import annotations

import io
import pickle
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest


def write_pickle(path: Path, count: int, key: str = "labels", seed: int = 0) -> np.ndarray:
    """A CIFAR batch; returns its pictures [N, 32, 32, 3]."""
    data = np.random.default_rng(seed).integers(0, 256, (count, 3, 32, 32), dtype=np.uint8)
    with path.open("wb") as stream:
        pickle.dump({"data": data.reshape(count, 3072), key: [n % 7 for n in range(count)]}, stream)
    return data.transpose(0, 2, 3, 1)


def write_parquet(path: Path, pictures: np.ndarray, labels: list[int], column: str = "img") -> None:
    image = pytest.importorskip("PIL.Image", reason="pictures are encoded with pillow")
    encoded = []
    for picture in pictures:
        stream = io.BytesIO()
        image.fromarray(picture).save(stream, format="PNG")
        encoded.append({"bytes": stream.getvalue(), "path": None})
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    pq.write_table(pa.table({column: pa.array(encoded, kind), "label": labels}), path)


def write_picture(path: Path, colour: tuple[int, int, int], size: tuple[int, int] = (8, 8)) -> None:
    image = pytest.importorskip("PIL.Image", reason="pictures are encoded with pillow")
    path.parent.mkdir(parents=True, exist_ok=True)
    image.new("RGB", size, colour).save(path)
