"""Image data sets that a capture trains on: CIFAR in two layouts and folders of pictures, decoded on demand.

Three layouts are recognised in the folder a user names, nothing is downloaded:

* Parquet as Hugging Face publishes `cifar10`, `cifar100` and most others: files `train-*.parquet` and
  `test-*.parquet` with a column `img` (or `image`) holding {bytes, path} of an encoded picture and a column
  `label` (or `fine_label`).
* The classic pickles: `data_batch_1` .. `data_batch_5` and `test_batch` (CIFAR-10) or `train` and `test`
  (CIFAR-100), each a dictionary with `data` uint8 [N, 3072] (channel planes) and `labels` or `fine_labels`.
* A folder of pictures with one folder per class, which may lie in `train` and `test` (or `val`); classes are
  numbered in alphabetical order. What has a picture's name and is no file, a pipe for one, is refused.

Which classes there are, and their numbers, the pictures in train decide; test may lack some, and has no others.

Pictures come out as uint8 [N, H, W, 3]. They stay encoded until asked for, so that a capture of a few
hundred steps does not pay for 50,000 decodes. This module needs numpy, pyarrow and pillow, not torch. Made-up
pictures, for measuring times only, come from `synthetic_images` and from nowhere else.
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

from gradwire.scenarios.arrow import numpy_of
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
"""What would have been test pictures, by the layout of those in train."""
MOST_CLASSES = 1_000_000
"""A label beyond is none: each class is a row of the model's last matrix."""
_SHOWN = 5  # names in a message
_ENDINGS = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".webp", ".ppm"})


class ImageDataset:
    """Pictures with integer labels; `name` and `layout` go into a trace's manifest.

    `picture(i)` gives number i as uint8 [H, W, 3]; `classes` defaults to the largest label plus one. `names` are
    those of the classes, where they have any.
    """

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
        """uint8 [len(indices), H, W, 3].

        If they are not all squares of one size, the largest square in the middle of each is scaled to `size`
        (bilinear, with antialiasing); TraceError if that is None.
        """
        pictures = [self._picture(i) for i in indices.tolist()]
        shapes = {picture.shape for picture in pictures}
        square = all(height == width for height, width, _ in shapes)
        if len(shapes) > 1 or not square:
            if size is None:
                raise TraceError(f"pictures of sizes {sorted(shapes)[:3]}", self.name, "squares of one size")
            pictures = [_square(picture, size) for picture in pictures]
        return np.stack(pictures)


def synthetic_images(classes: int, size: int, seed: int, count: int = 4096) -> ImageDataset:
    """Random pixels with random labels: gradients of no meaning, for measuring times without data."""
    labels = np.random.default_rng([seed, 0]).integers(0, classes, count)

    def picture(i: int) -> np.ndarray:
        return np.random.default_rng([seed, 1, i]).integers(0, 256, (size, size, 3), dtype=np.uint8)

    return ImageDataset("synthetic", "synthetic", labels, picture, classes)


def find_images(folder: str | Path) -> list[Path]:
    """The files of a data set, unread; none of pictures in folders by class. TraceError says what was looked for."""
    place = _folder(folder)
    train, test = (_parquet(place, split) or _pickles(place, split) for split in ("train", "test"))
    if not train and not any(each.is_dir() for each in place.iterdir()):
        raise TraceError("holds no train images", str(place), _LAYOUTS)
    return [*train, *test]


def load_images(folder: str | Path, split: str = "train") -> ImageDataset:
    """The `split` ("train" or "test") of the data set in `folder`; TraceError says what was looked for."""
    return _split(folder) if split == "train" else load_splits(folder)[1]


def load_splits(folder: str | Path) -> tuple[ImageDataset, ImageDataset]:
    """(train, test) of the data set in `folder`, with the classes of train in both.

    Raises
    ------
    TraceError
        One of them is not there, or test has labels or classes that train has not.
    """
    train = _split(folder)
    test = _split(folder, train)
    if bool(train.names) != bool(test.names):  # names of one, numbers of the other
        what = f"train is of layout {train.layout}, test of layout {test.layout}"
        raise TraceError(what, str(folder), _TESTS[train.layout])
    return train, test


def _folder(source: str | Path) -> Path:
    if not os.path.isdir(source):  # where a name is too long, Path's own raises
        raise TraceError("no such data folder", str(source), _LAYOUTS)
    return Path(source)


def _parquet(folder: Path, split: str) -> list[Path]:
    return sorted(folder.glob(f"{split}-*.parquet")) or sorted(folder.glob(f"{split}.parquet"))


def _pickles(folder: Path, split: str) -> list[Path]:
    names = ["test", "test_batch"] if split == "test" else ["train", *(f"data_batch_{i}" for i in range(1, 6))]
    return [folder / name for name in names if (folder / name).is_file()]


def _split(source: str | Path, train: ImageDataset | None = None) -> ImageDataset:
    """The pictures of train, or of test if given those of `train`, whose classes they have."""
    split, folder = "train" if train is None else "test", _folder(source)
    name, classes = folder.resolve().name, None if train is None else train.classes
    if parquet := _parquet(folder, split):
        return _from_parquet(name, parquet, classes)
    if pickles := _pickles(folder, split):
        return _from_pickles(name, pickles, classes)
    inner = [folder / name for name in ([split] if train is None else [split, "val"])]
    place = next((path for path in inner if path.is_dir()), folder)
    if train is None and place == folder:
        _no_test_beside(folder)
    if train is None or place != folder:
        pictures = _pictures_by_class(place)
        if pictures:
            return _from_folder(name, place, pictures, () if train is None else train.names)
    raise TraceError(f"holds no {split} images", str(folder), _LAYOUTS if train is None else _TESTS[train.layout])


def batches(
    dataset: ImageDataset, size: int, seed: int, side: int | None = None
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Endless (pictures uint8 [size, H, W, 3], labels int64 [size]): a fresh seeded shuffle per epoch, last
    part dropped. `side` is the `size` of `ImageDataset.pictures`.
    """
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
        if not (file.is_file() or file.is_dir()):  # reading a pipe would wait for ever
            raise TraceError("is no file", str(file), "Parquet")
        try:
            table = pq.read_table(file)
            columns = table.column_names  # a damaged one need not be text
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise TraceError(f"cannot be read as Parquet ({error})", str(file), _LAYOUTS) from error
        image = next((column for column in ("img", "image") if column in columns), None)
        label = next((column for column in ("label", "fine_label") if column in columns), None)
        if image is None or label is None or not _encoded(table.schema.field(image).type):
            raise TraceError(f"columns {columns}", str(file), "img {bytes, path} and label")
        encoded.append(table[image].combine_chunks().field("bytes"))
        labels.append(_labels(numpy_of(table[label]), file, classes))
    pictures = pa.concat_arrays(encoded)

    def picture(i: int) -> np.ndarray:
        data = pictures[i].as_py()
        if data is None:
            raise TraceError("holds no bytes", f"{name} image {i}", "a JPEG or PNG picture")
        return _decode(io.BytesIO(data), f"{name} image {i}")

    return ImageDataset(name, "parquet", _all(labels, files), picture, classes)


def _encoded(kind: pa.DataType) -> bool:
    """Whether a column of that type holds pictures as bytes."""
    return pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0


def _labels(values: np.ndarray, file: Path, classes: int | None) -> np.ndarray:
    """Labels as int64, if each is a whole number that a class can have: in test one of train's `classes`."""
    most = (classes or MOST_CLASSES) - 1
    expected = f"whole numbers from 0 to {most}" + (", the largest in train" if classes else "")
    if values.dtype.kind not in "biuf":
        raise TraceError(f"has labels of type {values.dtype}", str(file), expected)
    with np.errstate(invalid="ignore"):
        whole = values.astype(np.int64)
    wrong = values[(whole != values) | (whole < 0) | (whole > most)]  # what is missing is nan
    if len(wrong):
        raise TraceError(f"has the label {wrong[0]}", str(file), expected)
    return whole


def _all(labels: list[np.ndarray], files: list[Path]) -> np.ndarray:
    """Those of all files."""
    if not any(map(len, labels)):
        raise TraceError("holds no images", str(files[0]), "at least one picture with its label")
    return np.concatenate(labels)


def _pictures_by_class(folder: Path) -> dict[str, list[Path]]:
    """Pictures in each folder within `folder`, folders without any left out; both in alphabetical order."""
    found = {
        inner.name: sorted(path for path in inner.rglob("*") if path.suffix.lower() in _ENDINGS)
        for inner in sorted(folder.iterdir())
        if inner.is_dir()
    }
    for path in (path for paths in found.values() for path in paths):
        if not path.is_file():  # opening a pipe would wait for ever
            raise TraceError("has the name of a picture but is no file", str(path), "a JPEG or PNG picture")
    return {name: paths for name, paths in found.items() if paths}


def _no_test_beside(folder: Path) -> None:
    """Refuse classes beside a folder test: it would be one of them, and be learned from."""
    for split in ("test", "val"):
        if (folder / split).is_dir() and _pictures_by_class(folder / split):
            raise TraceError(f"has {split}/CLASS but no folder train", str(folder), _BY_CLASS)


def _from_folder(name: str, folder: Path, found: dict[str, list[Path]], known: tuple[str, ...]) -> ImageDataset:
    """`known`: the classes of train, where this is test."""
    names = known or tuple(found)
    unknown = [each for each in found if each not in names]
    if unknown:
        what = f"has pictures of {_listed(unknown)}, of which train has none"
        raise TraceError(what, str(folder), f"only {_listed(names)}")
    paths = [path for inside in found.values() for path in inside]
    numbers = np.array([names.index(each) for each in found], dtype=np.int64)
    labels = np.repeat(numbers, [len(inside) for inside in found.values()])
    return ImageDataset(name, "folder", labels, lambda i: _decode(paths[i], str(paths[i])), len(names), names)


def _listed(names: Sequence[str]) -> str:
    """The first of some names of classes."""
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
    except (OSError, ValueError, SyntaxError, image.DecompressionBombError) as error:  # SyntaxError: a chunk of PNG's
        raise TraceError(f"cannot be decoded ({error})", where, "a JPEG or PNG picture") from error


def _square(picture: np.ndarray, size: int) -> np.ndarray:
    """The largest square in the middle of `picture`, scaled to `size` pixels."""
    image = _pillow()
    height, width, _ = picture.shape
    side = min(height, width)
    left, top = (width - side) // 2, (height - side) // 2
    middle = picture[top : top + side, left : left + side]
    return np.asarray(image.fromarray(middle).resize((size, size), image.Resampling.BILINEAR))


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
            raise TraceError(f"is no CIFAR pickle ({error})", str(file), "data and labels") from error
        if data.ndim != 2 or data.shape[1] != 3072 or label.shape != data.shape[:1]:
            found = f"data {data.shape}, {len(label) if label.ndim == 1 else label.shape} labels"
            raise TraceError(found, str(file), "data [N, 3072] and N labels")
        pictures.append(data.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))
        labels.append(_labels(label, file, classes))
    raw = np.ascontiguousarray(np.concatenate(pictures))
    return ImageDataset(name, "pickle", _all(labels, files), raw.__getitem__, classes)
