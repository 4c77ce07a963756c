"""Loads image data sets for captures, from Parquet files, CIFAR pickles or folders of pictures, decoded on demand.

Three layouts are recognised in the given folder; nothing is downloaded:

* Parquet as Hugging Face publishes `cifar10`, `cifar100` and most others: files `train-*.parquet` and `test-*.parquet`
  with a column `img` (or `image`) holding {bytes, path} of an encoded picture and a column `label` (or `fine_label`).
* The classic pickles: `data_batch_1` .. `data_batch_5` and `test_batch` (CIFAR-10) or `train` and `test` (CIFAR-100),
  each a dictionary with `data` uint8 [N, 3072] (channel planes) and `labels` or `fine_labels`.
* A folder of pictures with one folder per class, which may lie in `train` and `test` (or `val`); classes are numbered
  in alphabetical order. A pipe or device with a picture's name is refused.

Train defines the classes and their numbers; test may lack some, but has no others.

Pictures are uint8 [N, H, W, 3] and stay encoded until needed, so that a capture of a few hundred steps does not decode
50,000. This module needs numpy, pyarrow and pillow, not torch. Random pictures, only for measuring times, come from
`synthetic_images`.
"""

from __future__ import annotations

import io
import os
import pickle
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gradwire.result_store.arrow import to_numpy
from gradwire.scenarios.errors import MissingExtraError, TraceError

_LAYOUTS = (
    "a folder with train-*.parquet (Hugging Face layout), CIFAR pickles (data_batch_1 ... or train), "
    "or a folder of pictures per class"
)
_BY_CLASS = "pictures in train/CLASS and in test/CLASS (or val/CLASS)"
_TESTS = {
    "parquet": "test-*.parquet beside those of train",
    "pickle": "test or test_batch beside the pickles of train",
    "folder": _BY_CLASS,
}
"""Expected test pictures, by the layout of train."""
MAX_CLASSES = 1_000_000
"""Limit of labels: each class is a row of the model's last matrix."""
_SHOWN = 5  # names in a message
_ENDINGS = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".webp", ".ppm"})


class ImageDataset:
    """Pictures with integer labels; `name` and `layout` go into a trace's manifest. `picture(i)` returns number i as
    uint8 [H, W, 3]; `classes` defaults to the largest label plus one; `names` are the class names, if known."""

    def __init__(
        self,
        name: str,
        layout: str,
        labels: np.ndarray,
        picture: Callable[[int], np.ndarray],
        classes: int | None = None,
        names: tuple[str, ...] = (),
    ) -> None:
        self.name = name
        self.layout = layout
        self.labels = labels
        self.classes = int(labels.max()) + 1 if classes is None else classes
        self.names = names
        self._picture = picture

    def __len__(self) -> int:
        return len(self.labels)

    def pictures(self, indices: np.ndarray, size: int | None = None) -> np.ndarray:
        """Return pictures as uint8 [len(indices), H, W, 3]. Unless all are squares of one size, the largest central
        square of each is scaled to `size` (bilinear, with antialiasing); TraceError if that is None."""
        pictures = [self._picture(i) for i in indices.tolist()]
        shapes = {picture.shape for picture in pictures}
        square = all(height == width for height, width, _ in shapes)
        if len(shapes) > 1 or not square:
            if size is None:
                raise TraceError(f"pictures of sizes {sorted(shapes)[:3]}", self.name, "squares of one size")
            pictures = [_square(picture, size) for picture in pictures]
        return np.stack(pictures)


def synthetic_images(classes: int, size: int, seed: int, count: int = 4096) -> ImageDataset:
    """Return random pixels with random labels, for measuring times without data: the gradients are meaningless."""
    labels = np.random.default_rng([seed, 0]).integers(0, classes, count)

    def picture(i: int) -> np.ndarray:
        return np.random.default_rng([seed, 1, i]).integers(0, 256, (size, size, 3), dtype=np.uint8)

    return ImageDataset("synthetic", "synthetic", labels, picture, classes)


def image_files(folder: str | Path) -> list[Path]:
    """Return the files of a data set, unread, or none for folders by class; TraceError names the expected layouts."""
    path = _folder(folder)
    train, test = (_parquet(path, split) or _pickles(path, split) for split in ("train", "test"))
    if not train and not any(child.is_dir() for child in path.iterdir()):
        raise TraceError("holds no train images", str(path), _LAYOUTS)
    return [*train, *test]


def load_images(folder: str | Path, split: str = "train") -> ImageDataset:
    """Load the `split` ("train" or "test") of the data set in `folder`; TraceError names the expected layouts."""
    return _split(folder) if split == "train" else load_splits(folder)[1]


def load_splits(folder: str | Path) -> tuple[ImageDataset, ImageDataset]:
    """Load (train, test) of the data set in `folder`, with the classes of train in both. TraceError if one is missing,
    or test has labels or classes that train lacks."""
    train = _split(folder)
    test = _split(folder, train)
    if bool(train.names) != bool(test.names):  # class names in one, numbers in the other
        what = f"train is of layout {train.layout}, test of layout {test.layout}"
        raise TraceError(what, str(folder), _TESTS[train.layout])
    return train, test


def _folder(source: str | Path) -> Path:
    if not os.path.isdir(source):  # unlike Path.is_dir, no error for too long names
        raise TraceError("no such data folder", str(source), _LAYOUTS)
    return Path(source)


def _parquet(folder: Path, split: str) -> list[Path]:
    return sorted(folder.glob(f"{split}-*.parquet")) or sorted(folder.glob(f"{split}.parquet"))


def _pickles(folder: Path, split: str) -> list[Path]:
    names = ["test", "test_batch"] if split == "test" else ["train", *(f"data_batch_{i}" for i in range(1, 6))]
    return [folder / name for name in names if (folder / name).is_file()]


def _split(source: str | Path, train: ImageDataset | None = None) -> ImageDataset:
    """Load train, or test if `train` is given, with the classes of `train`."""
    split, folder = "train" if train is None else "test", _folder(source)
    name, classes = folder.resolve().name, None if train is None else train.classes
    if parquet := _parquet(folder, split):
        return _from_parquet(name, parquet, classes)
    if pickles := _pickles(folder, split):
        return _from_pickles(name, pickles, classes)
    inner = [folder / name for name in ([split] if train is None else [split, "val"])]
    data_folder = next((path for path in inner if path.is_dir()), folder)
    if train is None and data_folder == folder:
        _no_test_beside(folder)
    if train is None or data_folder != folder:
        pictures = _pictures_by_class(data_folder)
        if pictures:
            return _from_folder(name, data_folder, pictures, () if train is None else train.names)
    raise TraceError(f"holds no {split} images", str(folder), _LAYOUTS if train is None else _TESTS[train.layout])


def batches(
    dataset: ImageDataset, size: int, seed: int, side: int | None = None
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield endless (pictures uint8 [size, H, W, 3], labels int64 [size]): a new seeded shuffle per epoch, without the
    last partial batch. `side` is the `size` of `ImageDataset.pictures`."""
    if size < 1 or size > len(dataset):
        raise TraceError(f"batch {size}", dataset.name, f"1 to {len(dataset)}, the number of images")
    generator = np.random.default_rng(seed)
    while True:
        order = generator.permutation(len(dataset))
        for start in range(0, len(order) - size + 1, size):
            indices = order[start : start + size]
            yield dataset.pictures(indices, side), dataset.labels[indices]


def _from_parquet(name: str, files: list[Path], classes: int | None) -> ImageDataset:
    encoded: list[pa.Array] = []
    labels: list[np.ndarray] = []
    for file in files:
        if not (file.is_file() or file.is_dir()):  # a pipe would block
            raise TraceError("not a regular file", str(file), "Parquet")
        try:
            table = pq.read_table(file)
            columns = table.column_names  # fails if damaged names are not text
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise TraceError(f"cannot be read as Parquet ({error})", str(file), _LAYOUTS) from error
        image = next((column for column in ("img", "image") if column in columns), None)
        label = next((column for column in ("label", "fine_label") if column in columns), None)
        kind = pa.null() if image is None else table.schema.field(image).type
        if label is None or not pa.types.is_struct(kind) or kind.get_field_index("bytes") < 0:
            raise TraceError(f"columns {columns}", str(file), "img {bytes, path} and label")
        encoded.append(table[image].combine_chunks().field("bytes"))
        labels.append(_labels(to_numpy(table[label]), file, classes))
    pictures = pa.concat_arrays(encoded)

    def picture(i: int) -> np.ndarray:
        data = pictures[i].as_py()
        if data is None:
            raise TraceError("holds no bytes", f"{name} image {i}", "a JPEG or PNG picture")
        return _decode(io.BytesIO(data), f"{name} image {i}")

    return ImageDataset(name, "parquet", _all(labels, files), picture, classes)


def _labels(values: np.ndarray, file: Path, classes: int | None) -> np.ndarray:
    """Return labels as int64; TraceError unless all are whole numbers below `classes` (of train, for test)."""
    most = (classes or MAX_CLASSES) - 1
    expected = f"whole numbers from 0 to {most}" + (", the largest in train" if classes else "")
    if values.dtype.kind not in "biuf":
        raise TraceError(f"has labels of type {values.dtype}", str(file), expected)
    with np.errstate(invalid="ignore"):
        whole = values.astype(np.int64)
    wrong = values[(whole != values) | (whole < 0) | (whole > most)]  # missing labels are nan
    if len(wrong):
        raise TraceError(f"has the label {wrong[0]}", str(file), expected)
    return whole


def _all(labels: list[np.ndarray], files: list[Path]) -> np.ndarray:
    """Return the labels of all files."""
    if not any(map(len, labels)):
        raise TraceError("holds no images", str(files[0]), "at least one picture with its label")
    return np.concatenate(labels)


def _pictures_by_class(folder: Path) -> dict[str, list[Path]]:
    """Return the pictures in each nonempty folder within `folder`; both in alphabetical order."""
    by_class = {
        inner.name: sorted(path for path in inner.rglob("*") if path.suffix.lower() in _ENDINGS)
        for inner in sorted(folder.iterdir())
        if inner.is_dir()
    }
    for path in (path for paths in by_class.values() for path in paths):
        if not path.is_file():  # a pipe would block
            raise TraceError("has the name of a picture but is not a regular file", str(path), "a JPEG or PNG picture")
    return {name: paths for name, paths in by_class.items() if paths}


def _no_test_beside(folder: Path) -> None:
    """Raise TraceError for classes beside a test folder, which would count as a class of train."""
    for split in ("test", "val"):
        if (folder / split).is_dir() and _pictures_by_class(folder / split):
            raise TraceError(f"has {split}/CLASS but no folder train", str(folder), _BY_CLASS)


def _from_folder(name: str, folder: Path, by_class: dict[str, list[Path]], known: tuple[str, ...]) -> ImageDataset:
    """Return the pictures of a folder by class; `known` are the classes of train, for test."""
    names = known or tuple(by_class)
    unknown = [name for name in by_class if name not in names]
    if unknown:
        what = f"has pictures of {_listed(unknown)}, of which train has none"
        raise TraceError(what, str(folder), f"only {_listed(names)}")
    paths = [path for inside in by_class.values() for path in inside]
    numbers = np.array([names.index(name) for name in by_class], dtype=np.int64)
    labels = np.repeat(numbers, [len(inside) for inside in by_class.values()])
    return ImageDataset(name, "folder", labels, lambda i: _decode(paths[i], str(paths[i])), len(names), names)


def _listed(names: Sequence[str]) -> str:
    """Return the first of several class names as text."""
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingExtraError("pillow", "capture") from error
    return Image


def _decode(source: io.BytesIO | Path, where: str) -> np.ndarray:
    image = _pillow()
    try:
        with image.open(source) as picture:
            return np.asarray(picture.convert("RGB"))
    except (OSError, ValueError, SyntaxError, image.DecompressionBombError) as error:  # SyntaxError: PNG chunks
        raise TraceError(f"cannot be decoded ({error})", where, "a JPEG or PNG picture") from error


def _square(picture: np.ndarray, size: int) -> np.ndarray:
    """Return the largest central square of `picture`, scaled to `size` pixels."""
    image = _pillow()
    height, width, _ = picture.shape
    side = min(height, width)
    left, top = (width - side) // 2, (height - side) // 2
    middle = picture[top : top + side, left : left + side]
    return np.asarray(image.fromarray(middle).resize((size, size), image.Resampling.BILINEAR))


class _ArraysOnly(pickle.Unpickler):
    """Unpickler of numpy arrays and plain containers only: a data file must not run code."""

    _ALLOWED = frozenset(
        (module, name)
        for module in ("numpy.core.multiarray", "numpy._core.multiarray", "numpy")
        for name in ("_reconstruct", "ndarray", "dtype", "scalar")
    ) | {("_codecs", "encode")}

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in self._ALLOWED:
            return super().find_class(module.replace("numpy.core", "numpy._core"), name)
        raise pickle.UnpicklingError(f"refers to {module}.{name}")


def _from_pickles(name: str, files: list[Path], classes: int | None) -> ImageDataset:
    pictures: list[np.ndarray] = []
    labels: list[np.ndarray] = []
    for file in files:
        try:
            with file.open("rb") as stream:
                content = _ArraysOnly(stream, encoding="latin1").load()
            data = np.asarray(content["data"], dtype=np.uint8)
            key = "fine_labels" if "fine_labels" in content else "labels"
            label = np.asarray(content[key])
        except Exception as error:  # a damaged pickle can raise nearly anything
            raise TraceError(f"not a CIFAR pickle ({error})", str(file), "data and labels") from error
        if data.ndim != 2 or data.shape[1] != 3072 or label.shape != data.shape[:1]:
            shapes = f"data {data.shape}, {len(label) if label.ndim == 1 else label.shape} labels"
            raise TraceError(shapes, str(file), "data [N, 3072] and N labels")
        pictures.append(data.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))
        labels.append(_labels(label, file, classes))
    raw = np.ascontiguousarray(np.concatenate(pictures))
    return ImageDataset(name, "pickle", _all(labels, files), raw.__getitem__, classes)
