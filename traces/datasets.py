"""Image data sets that a capture trains on: CIFAR in two layouts, decoded on demand.

Two layouts are recognised in the folder a user names, nothing is downloaded:

* Parquet as Hugging Face publishes `cifar10`: files `train-*.parquet` and `test-*.parquet` with a column
  `img` (or `image`) holding {bytes, path} of an encoded picture and a column `label` (or `fine_label`).
* The classic pickles: `data_batch_1` .. `data_batch_5` and `test_batch` (CIFAR-10) or `train` and `test`
  (CIFAR-100), each a dictionary with `data` uint8 [N, 3072] (channel planes) and `labels` or `fine_labels`.

Pictures come out as uint8 [N, H, W, 3]. They stay encoded until asked for, so that a capture of a few
hundred steps does not pay for 50,000 decodes. This module needs numpy, pyarrow and pillow, not torch.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from scenarios.errors import MissingExtraError, TraceError

_LAYOUTS = "a folder with train-*.parquet (Hugging Face layout) or CIFAR pickles (data_batch_1 ... or train)"


class ImageDataset:
    """Pictures of one size with integer labels; `name` and `layout` go into a trace's manifest."""

    def __init__(
        self,
        name: str,
        layout: str,
        labels: np.ndarray,
        *,
        encoded: pa.Array | None = None,
        raw: np.ndarray | None = None,
    ) -> None:
        if (encoded is None) == (raw is None):
            raise ValueError("give either encoded or raw pictures")
        self.name = name
        self.layout = layout
        self.labels = labels
        self._encoded = encoded
        self._raw = raw

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def classes(self) -> int:
        """Number of classes, taken as the largest label plus one."""
        return int(self.labels.max()) + 1

    def pictures(self, indices: np.ndarray) -> np.ndarray:
        """uint8 [len(indices), H, W, 3]."""
        if self._raw is not None:
            return self._raw[indices]
        assert self._encoded is not None
        return np.stack(
            [_decode(self._encoded[i].as_py(), f"{self.name} image {i}") for i in indices.tolist()]
        )


def load_images(folder: str | Path, split: str = "train") -> ImageDataset:
    """The `split` ("train" or "test") of the data set in `folder`; TraceError says what was looked for."""
    folder = Path(folder)
    if not folder.is_dir():
        raise TraceError("no such data folder", str(folder), _LAYOUTS)
    parquet = sorted(folder.glob(f"{split}-*.parquet")) or sorted(folder.glob(f"{split}.parquet"))
    if parquet:
        return _from_parquet(folder.name, parquet)
    names = ["train"] if split == "train" else ["test", "test_batch"]
    if split == "train":
        names += [f"data_batch_{i}" for i in range(1, 6)]
    pickles = [folder / name for name in names if (folder / name).is_file()]
    if pickles:
        return _from_pickles(folder.name, pickles)
    raise TraceError(f"holds no {split} images", str(folder), _LAYOUTS)


def batches(dataset: ImageDataset, size: int, seed: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Endless (pictures uint8 [size, H, W, 3], labels int64 [size]): a fresh seeded shuffle per epoch, last
    part dropped.
    """
    if size < 1 or size > len(dataset):
        raise TraceError(f"batch {size}", dataset.name, f"1 to {len(dataset)}, the number of images")
    generator = np.random.default_rng(seed)
    while True:
        order = generator.permutation(len(dataset))
        for start in range(0, len(order) - size + 1, size):
            indices = order[start : start + size]
            yield dataset.pictures(indices), dataset.labels[indices]


def _from_parquet(name: str, files: list[Path]) -> ImageDataset:
    encoded: list[pa.Array] = []
    labels: list[np.ndarray] = []
    for file in files:
        try:
            table = pq.read_table(file)
        except (pa.ArrowException, OSError) as error:
            raise TraceError(f"cannot be read as Parquet ({error})", str(file), _LAYOUTS) from error
        image = next((column for column in ("img", "image") if column in table.column_names), None)
        label = next((column for column in ("label", "fine_label") if column in table.column_names), None)
        if image is None or label is None or not pa.types.is_struct(table.schema.field(image).type):
            raise TraceError(f"columns {table.column_names}", str(file), "img {bytes, path} and label")
        encoded.append(table[image].combine_chunks().field("bytes"))
        labels.append(table[label].to_numpy().astype(np.int64))
    return ImageDataset(name, "parquet", np.concatenate(labels), encoded=pa.concat_arrays(encoded))


def _decode(data: bytes, where: str) -> np.ndarray:
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingExtraError("pillow", "capture") from error
    try:
        with Image.open(io.BytesIO(data)) as picture:
            return np.asarray(picture.convert("RGB"))
    except OSError as error:
        raise TraceError(f"cannot be decoded ({error})", where, "a JPEG or PNG picture") from error


class _ArraysOnly(pickle.Unpickler):
    """Unpickles numpy arrays and plain containers and nothing else: a data file must not run code."""

    _ALLOWED = frozenset(
        (module, name)
        for module in ("numpy.core.multiarray", "numpy._core.multiarray", "numpy")
        for name in ("_reconstruct", "ndarray", "dtype", "scalar")
    ) | {("_codecs", "encode")}

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in self._ALLOWED:
            return super().find_class(module.replace("numpy.core", "numpy._core"), name)
        raise pickle.UnpicklingError(f"refers to {module}.{name}")


def _from_pickles(name: str, files: list[Path]) -> ImageDataset:
    pictures: list[np.ndarray] = []
    labels: list[np.ndarray] = []
    for file in files:
        try:
            with file.open("rb") as stream:
                content = _ArraysOnly(stream, encoding="latin1").load()
            data = np.asarray(content["data"], dtype=np.uint8)
            key = "fine_labels" if "fine_labels" in content else "labels"
            label = np.asarray(content[key], dtype=np.int64)
        except Exception as error:  # a damaged pickle can raise nearly anything
            raise TraceError(f"is no CIFAR pickle ({error})", str(file), "data and labels") from error
        if data.ndim != 2 or data.shape[1] != 3072 or len(data) != len(label):
            found = f"data {data.shape}, {len(label)} labels"
            raise TraceError(found, str(file), "data [N, 3072] and N labels")
        pictures.append(data.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))
        labels.append(label)
    raw = np.ascontiguousarray(np.concatenate(pictures))
    return ImageDataset(name, "pickle", np.concatenate(labels), raw=raw)
