"""Data for training: pictures of one's own, sizes that a model takes, and samples that are no pictures."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from gradwire import cli  # noqa: E402
from gradwire.scenarios.errors import ScenarioError, TraceError  # noqa: E402
from gradwire.scenarios.loading.load import load_scenario  # noqa: E402
from gradwire.traces.models import MODELS  # noqa: E402
from gradwire.training.build import data_of  # noqa: E402
from gradwire.training.data import Images, images  # noqa: E402
from gradwire.training.networks.builtin_networks import Random  # noqa: E402
from gradwire.training.trainer import Recipe, Score, Trainer  # noqa: E402
from tests.support.picture_cases import write_parquet, write_picture  # noqa: E402


def table(**keys: Any) -> Any:
    return load_scenario(
        "train-tiny", set=[f"training.{key}={value}" for key, value in keys.items()], policy="dctcp"
    ).training


def folders(root: Path, **inside: str) -> None:
    """Folders train and test with ten pictures in each of some classes, all of a colour."""
    for split, names in inside.items():
        for name in names:
            for number in range(10):
                write_picture(root / split / name / f"{number}.png", (50 * "abcd".index(name), 0, 0))


def test_held_out_images_use_label_numbers_of_train(tmp_path: Path) -> None:
    """All pictures of test are of class "c", which is 1 in train."""
    folders(tmp_path, train="bc", test="c")
    data = images(tmp_path, 8)
    assert data.classes == 2 and data.test[1].tolist() == [1] * 10
    assert torch.equal(data.test[0], data.train[0][data.train[1] == 1])
    folders(tmp_path, test="a")
    with pytest.raises(TraceError, match="has pictures of a, of which train has none"):
        images(tmp_path, 8)


def test_data_with_one_class_is_rejected(tmp_path: Path) -> None:
    folders(tmp_path, train="b", test="b")
    with pytest.raises(
        TraceError, match=r"there is only one class in train; expected at least two classes of pictures$"
    ):
        images(tmp_path, 8)
    folders(tmp_path, train="c")
    assert images(tmp_path, 8).classes == 2
    with pytest.raises(
        TraceError, match=r"only one class in 1 pictures of train; expected .* pictures, or more of them"
    ):
        images(tmp_path, 8, limit=1)


def test_limit_covers_all_classes_and_rejects_classes_only_in_test(tmp_path: Path) -> None:
    folders(tmp_path, train="abc", test="abc")
    taken = images(tmp_path, 8, limit=6)
    assert taken.classes == 3 and taken.train[1].tolist() == taken.test[1].tolist() == [0, 0, 1, 1, 2, 2], (
        "of all classes"
    )
    for name in "ab":
        for path in (tmp_path / "test" / name).iterdir():
            path.unlink()
    with pytest.raises(
        TraceError, match="class 2 is in test and not in 2 pictures of train; expected classes 0 to 1, or more"
    ):
        images(tmp_path, 8, limit=2)


def test_class_numbers_may_have_gaps(tmp_path: Path) -> None:
    """A subset of ImageNet's classes, for example, has such numbers."""
    pictures = np.zeros((4, 8, 8, 3), dtype=np.uint8)
    write_parquet(tmp_path / "train-0.parquet", pictures, [0, 3, 3, 7])
    write_parquet(tmp_path / "test-0.parquet", pictures, [0, 3, 5, 7])
    assert images(tmp_path, 8).classes == 8


@pytest.mark.parametrize("limit", [-5, 0, 2.5, True])
@pytest.mark.parametrize("source", ["synthetic", "."])
def test_invalid_image_limit_is_rejected(limit: Any, source: str) -> None:
    with pytest.raises(TraceError, match=rf"images\(limit\): is {limit}.*expected a whole number from 1"):
        images(source, 8, limit=limit)


@pytest.mark.parametrize(
    ("model", "size", "words"),
    [
        ("alexnet", 16, "training.size: 16 pixels of a side are too few for alexnet; expected at least 63"),
        ("inception-v3", 16, "training.size: 16 pixels of a side are too few for inception-v3; expected at least 75"),
        ("googlenet", 8, "training.size: 8 pixels of a side are too few for googlenet; expected at least 32"),
        ("vgg11-quarter", 4, "training.size: 4 pixels of a side are too few for vgg11-quarter; expected at least 32"),
        ("char-gpt", 4096, "training.size: 4096 tokens are too many for char-gpt; expected at most 256"),
    ],
)
def test_sizes_outside_model_range_are_rejected(model: str, size: int, words: str, tmp_path: Path) -> None:
    """The error comes before data is read, and no file is left."""
    with pytest.raises(ScenarioError, match=f"^{re.escape(words)}$"):
        data_of(table(model=model, size=size, data='"nowhere"'))
    settings = [word for each in (f"model={model}", f"size={size}") for word in ("--set", f"training.{each}")]
    done = CliRunner().invoke(
        cli.app, ["train", "train-tiny", "--policy", "dctcp", *settings, "--out", str(tmp_path / "out")]
    )
    assert done.exit_code == 2 and words in done.stderr and "Traceback" not in done.output + done.stderr


def test_size_check_consumes_no_random_numbers() -> None:
    """Sizes below a model's usual input are accepted where they pass through it."""
    before = torch.get_rng_state()
    for model, size in (("resnet8", 4), ("googlenet", 16), ("alexnet", 63), ("char-gpt", 256), ("char-lstm", 4096)):
        assert MODELS[model].accepts_size(size), (model, size)
    assert torch.equal(before, torch.get_rng_state())
    assert not any(kind.accepts_size(kind.sizes[1] + 1) for kind in MODELS.values() if kind.task != "images")


def test_feature_vectors_can_be_learned() -> None:
    """Samples are vectors of 12 numbers; the largest of the first three is the class."""
    draws = torch.Generator().manual_seed(3)
    x = torch.randn(1200, 12, generator=draws)
    y = x[:, :3].argmax(dim=1)
    data = Images((x[:1000], y[:1000]), (x[1000:], y[1000:]), 3, augment=False)
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, data.classes))
    trainer = Trainer(model, data, Recipe(workers=4, batch=10, steps=75, rate=0.1), network=Random(0.05))
    *_, last = trainer.run()
    assert isinstance(last, Score) and last.accuracy > 0.9


X, Y = torch.randn(20, 5), torch.arange(20) % 2


@pytest.mark.parametrize(("given", "words"), [
    (((X, Y[:10]), (X, Y), 2), r"Images\(train\): 20 samples and 10 labels; expected a label for each sample"),
    (((X, Y), (X[:9], Y), 2), r"Images\(test\): 9 samples and 20 labels"),
    (((X, Y + 5), (X, Y), 2), r"Images\(train\): has a label 6; expected classes 0 to 1, of Images\(classes\)"),
    (((X, Y), (X, Y - 1), 2), r"Images\(test\): has a label -1"),
    (((X, Y.float()), (X, Y), 2), r"Images\(train\): has labels of float32; expected numbers of classes, int64"),
    (((X, Y.int()), (X, Y), 2), r"Images\(train\): has labels of int32"),
    (((X, Y > 0), (X, Y), 2), r"Images\(train\): has labels of bool"),
    (((X.numpy(), Y.numpy()), (X, Y), 2), r"Images\(train\): is .* of type tuple; expected \(x, y\), tensors"),
    ((X, (X, Y), 2), r"Images\(train\): is Tensor of float32, \(20, 5\); expected"), (((X, Y), None, 2), r"Images\(test\): is None"),
    (((X, Y), (X, torch.tensor(1)), 2), r"Images\(test\)"), (((X, Y), (X, Y), 2.0), r"Images\(classes\)"),
])  # fmt: skip
def test_inconsistent_data_is_rejected_at_construction(given: tuple[Any, ...], words: str) -> None:
    """Otherwise torch would fail in a later step, or never."""
    with pytest.raises(TraceError, match=f"^{words}"):
        Images(*given, augment=False)


@pytest.mark.parametrize("shape", [(20, 5), (20, 8, 8), (20, 3, 8, 6)])
def test_augmentation_rejects_samples_that_are_not_square_images(shape: tuple[int, ...]) -> None:
    one = (torch.zeros(shape), Y)
    with pytest.raises(
        TraceError, match=r"Images\(augment\): is True with samples \(\d.*\); expected pictures .*, or augment = False"
    ):
        Images(one, one, 2)
    assert len(Images(one, one, 2, augment=False)) == 20


def test_images_accept_empty_test_sets_and_byte_or_sequence_labels() -> None:
    """Held-out samples may be empty, labels may be bytes, and each place of a sequence may have a class."""
    Images((X, Y), (X[:0], Y[:0]), 2, augment=False)
    Images((X, Y.byte()), (X, Y), 2, augment=False)
    Images((X, Y[:, None].expand(20, 3)), (X, Y), 2, augment=False)
