"""Data for training: pictures of one's own, sizes that a model takes, and samples that are no pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from gradwire.scenarios.errors import TraceError  # noqa: E402
from gradwire.training.data import images  # noqa: E402
from tests.support.picture_cases import write_parquet, write_picture  # noqa: E402


def folders(root: Path, **inside: str) -> None:
    """Folders train and test with ten pictures in each of some classes, all of a colour."""
    for split, names in inside.items():
        for name in names:
            for number in range(10):
                write_picture(root / split / name / f"{number}.png", (50 * "abcd".index(name), 0, 0))


def test_test_has_the_labels_of_train(tmp_path: Path) -> None:
    """All of test are "c", which is 1 in train, and looks like it."""
    folders(tmp_path, train="bc", test="c")
    data = images(tmp_path, 8)
    assert data.classes == 2 and data.test[1].tolist() == [1] * 10
    assert torch.equal(data.test[0], data.train[0][data.train[1] == 1])
    folders(tmp_path, test="a")
    with pytest.raises(TraceError, match="has pictures of a, of which train has none"):
        images(tmp_path, 8)


def test_one_class_cannot_be_learned(tmp_path: Path) -> None:
    folders(tmp_path, train="b", test="b")
    with pytest.raises(TraceError, match=r"there is one class only in train; expected at least two classes of pictures$"):
        images(tmp_path, 8)
    folders(tmp_path, train="c")
    assert images(tmp_path, 8).classes == 2
    with pytest.raises(TraceError, match=r"one class only in the first 10 pictures of train; expected .* pictures, or more of them"):
        images(tmp_path, 8, limit=10)


def test_a_limit_that_leaves_test_a_class_more(tmp_path: Path) -> None:
    folders(tmp_path, train="abc", test="abc")
    assert images(tmp_path, 8, limit=21).classes == 3
    for name in "ab":
        for path in (tmp_path / "test" / name).iterdir():
            path.unlink()
    with pytest.raises(TraceError, match="class 2 is in test and not in the first 20 pictures of train; expected classes 0 to 1, or more"):
        images(tmp_path, 8, limit=20)


def test_classes_that_train_skips(tmp_path: Path) -> None:
    """Numbers may have gaps: of ImageNet's, say, some."""
    pictures = np.zeros((4, 8, 8, 3), dtype=np.uint8)
    write_parquet(tmp_path / "train-0.parquet", pictures, [0, 3, 3, 7])
    write_parquet(tmp_path / "test-0.parquet", pictures, [0, 3, 5, 7])
    assert images(tmp_path, 8).classes == 8


@pytest.mark.parametrize("limit", [-5, 0, 2.5, True])
@pytest.mark.parametrize("source", ["synthetic", "."])
def test_limits(limit: Any, source: str) -> None:
    with pytest.raises(TraceError, match=rf"images\(limit\): is {limit}.*expected a whole number from 1"):
        images(source, 8, limit=limit)
