"""Train and test of image data sets: the classes of train in both; labels and files that are none."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gradwire.scenarios.errors import TraceError
from gradwire.traces.datasets.images import load_images, load_splits
from tests.support.picture_cases import write_parquet, write_pickle, write_picture

PICTURES = np.zeros((3, 8, 8, 3), dtype=np.uint8)


def classes(root: Path, **inside: str) -> None:
    """Folders train, test or val with one picture in each of some classes, whose names are letters."""
    for split, names in inside.items():
        for name in names:
            write_picture(root / split / name / "1.png", (ord(name), 0, 0))


def test_test_split_uses_the_class_numbers_of_train(tmp_path: Path) -> None:
    """The test split lacks the first class; "c" has the same number in both splits."""
    classes(tmp_path, train="bc", test="c")
    train, test = load_splits(tmp_path)
    assert (train.labels.tolist(), test.labels.tolist()) == ([0, 1], [1])
    assert train.names == test.names == ("b", "c") and train.classes == test.classes == 2
    assert train.pictures(np.array([1])).tolist() == test.pictures(np.array([0])).tolist()
    assert load_images(tmp_path).labels.tolist() == [0, 1]  # what a capture learns from
    assert load_images(tmp_path, "test").labels.tolist() == [1]


def test_test_class_missing_from_train_is_refused(tmp_path: Path) -> None:
    classes(tmp_path, train="bc", test="abcd")
    with pytest.raises(TraceError, match=r"test: has pictures of a, d, of which train has none; expected only b, c$"):
        load_splits(tmp_path)
    (tmp_path / "train" / "a").mkdir()  # without a picture
    with pytest.raises(TraceError, match="has pictures of a, d"):
        load_splits(tmp_path)


def test_error_lists_at_most_five_unknown_classes(tmp_path: Path) -> None:
    classes(tmp_path, train="xy", test="abcdefgh")
    with pytest.raises(TraceError, match="of a, b, c, d, e and 3 more, of which"):
        load_splits(tmp_path)


def test_test_folder_without_a_train_folder_is_refused(tmp_path: Path) -> None:
    """Without a train folder, a capture would learn from the test pictures."""
    classes(tmp_path, test="ab")
    write_picture(tmp_path / "a" / "1.png", (1, 1, 1))
    for read in (load_images, load_splits):
        with pytest.raises(TraceError, match="has test/CLASS but no folder train; expected pictures in train/CLASS"):
            read(tmp_path)


def test_class_named_test_is_accepted(tmp_path: Path) -> None:
    write_picture(tmp_path / "test" / "1.png", (1, 1, 1))
    write_picture(tmp_path / "best" / "1.png", (1, 1, 1))
    assert load_images(tmp_path).names == ("best", "test")


def test_missing_test_split_error_names_the_layout_of_train(tmp_path: Path) -> None:
    for name, write, words in (
        (
            "folder",
            lambda at: classes(at, train="ab"),
            r"expected pictures in train/CLASS and in test/CLASS \(or val/CLASS\)",
        ),
        (
            "parquet",
            lambda at: write_parquet(at / "train-0.parquet", PICTURES, [0, 1, 2]),
            r"expected test-\*\.parquet",
        ),
        ("pickle", lambda at: write_pickle(at / "data_batch_1", 5), "expected test or test_batch"),
    ):
        (tmp_path / name).mkdir()
        write(tmp_path / name)
        with pytest.raises(TraceError, match=f"holds no test images; {words}"):
            load_splits(tmp_path / name)


def test_train_and_test_of_different_layouts_are_refused(tmp_path: Path) -> None:
    write_parquet(tmp_path / "train-0.parquet", PICTURES, [0, 1, 2])
    classes(tmp_path, test="ab")
    with pytest.raises(TraceError, match="train is of layout parquet, test of layout folder"):
        load_splits(tmp_path)


@pytest.mark.parametrize("split", ["train", "test"])
@pytest.mark.parametrize(
    ("labels", "words"),
    [([0, -1, 1], "label -1;"), ([0, 1, 1_000_000], "label 1000000;"), ([0, 1, None], "label nan;"), ([0, 1, 1.5], r"label 1\.5;")],
)  # fmt: skip
def test_invalid_labels_are_refused(tmp_path: Path, split: str, labels: list[Any], words: str) -> None:
    write_parquet(tmp_path / "train-0.parquet", PICTURES, [0, 1, 2])
    write_parquet(tmp_path / f"{split}-1.parquet", PICTURES, labels)
    most = {"train": 999_999, "test": "2, the largest in train"}[split]
    with pytest.raises(
        TraceError, match=rf"{split}-1\.parquet: has the {words} expected whole numbers from 0 to {most}"
    ):
        load_splits(tmp_path)


def test_test_labels_beyond_the_train_classes_are_refused(tmp_path: Path) -> None:
    write_parquet(tmp_path / "train-0.parquet", PICTURES, [0, 1, 1])
    write_parquet(tmp_path / "test-0.parquet", PICTURES, [0, 1, 2])
    with pytest.raises(TraceError, match=r"test-0\.parquet: has the label 2; expected whole numbers from 0 to 1"):
        load_splits(tmp_path)
    write_pickle(tmp_path / "data_batch_1", 5)
    (tmp_path / "train-0.parquet").unlink()
    (tmp_path / "test-0.parquet").unlink()
    write_pickle(tmp_path / "test_batch", 6)
    with pytest.raises(TraceError, match="test_batch: has the label 5; expected whole numbers from 0 to 4"):
        load_splits(tmp_path)


def test_integral_float_labels_are_accepted_and_text_labels_refused(tmp_path: Path) -> None:
    write_parquet(tmp_path / "train-0.parquet", PICTURES, [0.0, 1.0, 2.0])  # type: ignore[list-item]
    assert load_images(tmp_path).labels.tolist() == [0, 1, 2]
    write_parquet(tmp_path / "train-0.parquet", PICTURES, ["cat", "dog", "cat"])  # type: ignore[list-item]
    with pytest.raises(TraceError, match="has labels of type object; expected whole numbers"):
        load_images(tmp_path)


def test_parquet_without_rows_or_image_bytes_is_refused(tmp_path: Path) -> None:
    write_parquet(tmp_path / "train-0.parquet", PICTURES, [0, 1, 2])
    table = pq.read_table(tmp_path / "train-0.parquet")
    pq.write_table(table.slice(0, 0), tmp_path / "train-0.parquet")
    with pytest.raises(TraceError, match=r"train-0\.parquet: holds no images"):
        load_images(tmp_path)
    kind = pa.struct([("path", pa.string())])
    pq.write_table(pa.table({"img": pa.array([{"path": "a"}], kind), "label": [0]}), tmp_path / "train-0.parquet")
    with pytest.raises(TraceError, match=r"expected img \{bytes, path\} and label"):
        load_images(tmp_path)


@pytest.mark.parametrize("kind", ["pipe", "socket", "folder", "link", "device"])
def test_picture_path_that_is_not_a_regular_file_is_refused(tmp_path: Path, kind: str) -> None:
    classes(tmp_path, train="ab")
    odd = tmp_path / "train" / "b" / "99.png"
    if kind == "pipe":
        os.mkfifo(odd)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as made:
            here = os.open(odd.parent, os.O_RDONLY)
            made.bind(f"/proc/self/fd/{here}/{odd.name}")  # names of sockets are short
            os.close(here)
    elif kind == "folder":
        odd.mkdir()
    else:
        odd.symlink_to("/dev/zero" if kind == "device" else "nowhere.png")
    with pytest.raises(
        TraceError, match=r"99\.png: has the name of a picture but is not a regular file; expected a JPEG or PNG"
    ):
        load_images(tmp_path)


def test_parquet_path_that_is_a_pipe_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "train-0.parquet")
    with pytest.raises(TraceError, match=r"train-0\.parquet: not a regular file"):
        load_images(tmp_path)


def test_symlinked_pictures_are_read(tmp_path: Path) -> None:
    classes(tmp_path, train="ab")
    (tmp_path / "train" / "a" / "2.png").symlink_to(tmp_path / "train" / "b" / "1.png")
    assert load_images(tmp_path).labels.tolist() == [0, 0, 1]
