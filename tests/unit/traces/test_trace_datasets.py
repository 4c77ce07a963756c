"""Image data sets in every layout, made up here: what is read, what is refused."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from struct import pack
from typing import Any
from zlib import crc32

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gradwire.scenarios.errors import TraceError
from gradwire.traces.datasets.images import batches, load_images, synthetic_images
from tests.support.picture_cases import write_parquet, write_pickle, write_picture


def test_cifar10_pickles_are_read_in_order(tmp_path: Path) -> None:
    first = write_pickle(tmp_path / "data_batch_1", 5, seed=1)
    second = write_pickle(tmp_path / "data_batch_2", 4, seed=2)
    write_pickle(tmp_path / "test_batch", 3, seed=3)
    dataset = load_images(tmp_path)
    assert (len(dataset), dataset.classes, dataset.layout) == (9, 5, "pickle")
    np.testing.assert_array_equal(dataset.pictures(np.array([0, 8])), np.stack([first[0], second[3]]))
    assert dataset.labels.tolist() == [0, 1, 2, 3, 4, 0, 1, 2, 3]
    assert len(load_images(tmp_path, "test")) == 3


def test_cifar100_pickle_uses_fine_labels(tmp_path: Path) -> None:
    write_pickle(tmp_path / "train", 7, key="fine_labels")
    assert load_images(tmp_path).classes == 7


@pytest.mark.parametrize("column", ["img", "image"])
def test_parquet_shards_are_read_in_order(tmp_path: Path, column: str) -> None:
    pictures = np.random.default_rng(0).integers(0, 256, (6, 32, 32, 3), dtype=np.uint8)
    write_parquet(tmp_path / "train-00000-of-00002.parquet", pictures[:4], [0, 1, 2, 3], column)
    write_parquet(tmp_path / "train-00001-of-00002.parquet", pictures[4:], [4, 5], column)
    dataset = load_images(tmp_path)
    assert (len(dataset), dataset.classes, dataset.layout) == (6, 6, "parquet")
    np.testing.assert_array_equal(dataset.pictures(np.array([5, 0])), pictures[[5, 0]])


def test_pickle_that_refers_to_code_is_refused(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.system, (f"touch {tmp_path}/ran",)

    (tmp_path / "data_batch_1").write_bytes(pickle.dumps(Evil()))
    with pytest.raises(TraceError, match=r"data_batch_1: not a CIFAR pickle \(refers to .*system"):
        load_images(tmp_path)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("content", [b"", b"\x80\x04", pickle.dumps([1, 2]), pickle.dumps({"data": 1})])
def test_damaged_pickle_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "data_batch_1").write_bytes(content)
    with pytest.raises(TraceError, match="data_batch_1"):
        load_images(tmp_path)


def test_damaged_parquet_is_refused(tmp_path: Path) -> None:
    (tmp_path / "train-0.parquet").write_bytes(b"PAR1 and nothing else")
    with pytest.raises(TraceError, match="cannot be read as Parquet"):
        load_images(tmp_path)
    pq.write_table(pa.table({"text": ["a"]}), tmp_path / "train-0.parquet")
    with pytest.raises(TraceError, match="columns"):
        load_images(tmp_path)


def test_damaged_picture_in_parquet_is_refused_when_decoded(tmp_path: Path) -> None:
    write_parquet(tmp_path / "train-0.parquet", np.zeros((2, 32, 32, 3), dtype=np.uint8), [0, 1])
    table = pq.read_table(tmp_path / "train-0.parquet")
    rows = table.to_pylist()
    rows[1]["img"]["bytes"] = b"no picture"
    pq.write_table(pa.Table.from_pylist(rows, table.schema), tmp_path / "train-0.parquet")
    dataset = load_images(tmp_path)
    dataset.pictures(np.array([0]))
    with pytest.raises(TraceError, match="image 1: cannot be decoded"):
        dataset.pictures(np.array([1]))


@pytest.mark.parametrize("inside", ["", "train"])
def test_image_folders_are_classes_in_name_order(tmp_path: Path, inside: str) -> None:
    """Classes follow the names of their folders, and pictures the names within. Other files are ignored."""
    root = tmp_path / inside
    write_picture(root / "dog" / "2.png", (1, 0, 0))
    write_picture(root / "cat" / "b.JPEG", (0, 200, 0))
    write_picture(root / "cat" / "deeper" / "a.png", (0, 0, 3))
    (root / "cat" / "notes.txt").write_text("no picture")
    (root / "empty").mkdir()
    dataset = load_images(tmp_path)
    assert (len(dataset), dataset.classes, dataset.layout) == (3, 2, "folder")
    assert dataset.labels.tolist() == [0, 0, 1]
    red, _, blue = dataset.pictures(np.array([2, 0, 1]))[:, 4, 4].tolist()
    assert red == [1, 0, 0]
    assert blue == [0, 0, 3] or blue[1] > 150


def test_test_split_of_an_image_folder_is_read_from_val(tmp_path: Path) -> None:
    write_picture(tmp_path / "train" / "a" / "1.png", (1, 1, 1))
    with pytest.raises(TraceError, match=r"holds no test images; expected pictures in train/CLASS and in test/CLASS"):
        load_images(tmp_path, "test")
    write_picture(tmp_path / "val" / "a" / "1.png", (1, 1, 1))
    write_picture(tmp_path / "val" / "a" / "2.png", (1, 1, 1))
    assert len(load_images(tmp_path, "test")) == 2


def test_pictures_of_several_sizes_are_cropped_to_squares(tmp_path: Path) -> None:
    """The wide picture is green in its middle square and red on both sides; the other one is small."""
    image = pytest.importorskip("PIL.Image", reason="pictures are encoded with pillow")
    wide = np.zeros((20, 60, 3), dtype=np.uint8)
    wide[:, :20, 0] = wide[:, 40:, 0] = 255
    wide[:, 20:40, 1] = 255
    (tmp_path / "a").mkdir()
    image.fromarray(wide).save(tmp_path / "a" / "wide.png")
    write_picture(tmp_path / "b" / "small.png", (9, 9, 9), (4, 4))
    dataset = load_images(tmp_path)
    both = dataset.pictures(np.array([0, 1]), 10)
    assert both.shape == (2, 10, 10, 3)
    assert (both[0] == [0, 255, 0]).all()
    assert (both[1] == 9).all()
    assert dataset.pictures(np.array([1, 1]), 10).shape == (2, 4, 4, 3)  # squares of one size stay
    assert dataset.pictures(np.array([0]), 10).shape == (1, 10, 10, 3)
    with pytest.raises(TraceError, match=r"pictures of sizes .*expected squares of one size"):
        dataset.pictures(np.array([0, 1]))


def test_damaged_picture_in_a_folder_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("PIL", reason="pictures are decoded with pillow")
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "1.jpg").write_bytes(b"no picture")
    with pytest.raises(TraceError, match=r"1\.jpg: cannot be decoded"):
        load_images(tmp_path).pictures(np.array([0]))


def test_png_with_a_damaged_chunk_is_refused(tmp_path: Path) -> None:
    """A chunk without a name follows half of the pixels; Pillow raises SyntaxError for it."""
    write_picture(tmp_path / "a" / "1.png", (1, 1, 1))
    path = tmp_path / "a" / "1.png"
    head, pixels = path.read_bytes().split(b"IDAT")
    half = b"IDAT" + pixels[:8]
    path.write_bytes(head[:-4] + pack(">I", 8) + half + pack(">II", crc32(half), 4) + b"\xb4\x00\xbcZ" + bytes(8))
    with pytest.raises(TraceError, match=r"1\.png: cannot be decoded \(broken PNG file"):
        load_images(tmp_path).pictures(np.array([0]))


def test_picture_without_bytes_is_refused(tmp_path: Path) -> None:
    write_parquet(tmp_path / "train-0.parquet", np.zeros((1, 8, 8, 3), dtype=np.uint8), [0])
    table = pq.read_table(tmp_path / "train-0.parquet")
    rows = [{"img": {"bytes": None, "path": "elsewhere.png"}, "label": 0}]
    pq.write_table(pa.Table.from_pylist(rows, table.schema), tmp_path / "train-0.parquet")
    with pytest.raises(TraceError, match="image 0: holds no bytes"):
        load_images(tmp_path).pictures(np.array([0]))


def test_synthetic_pictures_are_seeded() -> None:
    one, two, other = (synthetic_images(10, 8, seed) for seed in (1, 1, 2))
    which = np.array([3, 3, 4])
    assert one.pictures(which).shape == (3, 8, 8, 3)
    np.testing.assert_array_equal(one.pictures(which), two.pictures(which))
    assert (one.pictures(which)[1] != one.pictures(which)[2]).any()
    assert (one.pictures(which) != other.pictures(which)).any()
    assert (one.classes, set(one.labels.tolist())) == (10, set(range(10)))


def test_folder_without_images_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="holds no train images; expected a folder with"):
        load_images(tmp_path)
    with pytest.raises(TraceError, match="no such data folder"):
        load_images(tmp_path / "nowhere")


def test_batches_are_seeded_and_repeat_no_picture_within_an_epoch(tmp_path: Path) -> None:
    write_pickle(tmp_path / "train", 10)
    dataset = load_images(tmp_path)

    def take(seed: int, count: int) -> list[list[int]]:
        source = batches(dataset, 3, seed)
        return [dataset_order(next(source)[0]) for _ in range(count)]

    whole = {picture.tobytes(): n for n, picture in enumerate(dataset.pictures(np.arange(10)))}

    def dataset_order(pictures: np.ndarray) -> list[int]:
        return [whole[picture.tobytes()] for picture in pictures]

    epoch = take(4, 3)
    assert len({n for batch in epoch for n in batch}) == 9  # no picture twice within an epoch
    assert take(4, 6)[:3] == epoch
    assert take(4, 6)[3:] != epoch
    assert take(5, 3) != epoch
    with pytest.raises(TraceError, match="batch 11"):
        next(batches(dataset, 11, 0))
