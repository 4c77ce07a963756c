"""What the built-in models are asked: inputs, targets and losses of every task."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="tasks are PyTorch tensors (extra: capture)")
from torch import Tensor, nn  # noqa: E402

from gradwire.scenarios.errors import TraceError  # noqa: E402
from gradwire.traces.capture.tasks import Task, make_task  # noqa: E402
from gradwire.traces.datasets.text import TextDataset  # noqa: E402
from gradwire.traces.models import MODELS, ModelKind  # noqa: E402

CPU = torch.device("cpu")


def task(name: str, source: Path | str, size: int = 40, outputs: int = 300) -> Task:
    kind: ModelKind = dataclasses.replace(MODELS[name], outputs=outputs)
    return make_task(kind, source, size, "byte", 1)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """Bytes that tell their own place."""
    path = tmp_path / "count.txt"
    path.write_bytes(bytes(range(200)))
    return path


def test_next_token_targets_are_inputs_shifted_by_one(text: Path) -> None:
    (tokens,), targets = next(task("gpt2-small", text).batches(3, 1, CPU))
    assert tokens.shape == targets.shape == (3, 40)
    assert (targets == tokens + 1).all()


def test_decoder_inputs_of_pairs_are_targets_shifted_by_one(text: Path) -> None:
    (source, target), wanted = next(task("transformer-base", text).batches(3, 1, CPU))
    assert (wanted == source + 40).all()
    assert (target[:, 0] == 299).all()
    assert (target[:, 1:] == wanted[:, :-1]).all()


def test_masked_task_hides_or_replaces_15_percent_of_tokens(text: Path) -> None:
    """Of the chosen 15 % of tokens, 80 % are hidden, 10 % replaced and 10 % unchanged."""
    source = task("bert-base", text, size=100).batches(2000, 1, CPU)
    (tokens, chosen), targets = next(source)
    truth = tokens[:, :1] * 0 + tokens[:, :].clone()
    assert (chosen.sum(1) == 15).all()
    # Beyond the chosen places each row counts upwards, which gives the row's start and so its true tokens.
    place = torch.arange(100)
    untouched = (tokens - place).masked_fill(chosen, -1)
    start = untouched.amax(1, keepdim=True)
    truth = start + place
    assert (tokens[~chosen] == truth.expand_as(tokens)[~chosen]).all()
    assert (targets == truth.expand_as(tokens)[chosen]).all()
    found = tokens[chosen]
    hidden, kept = (found == 299).float().mean(), (found == targets).float().mean()
    assert abs(hidden - 0.8) < 0.01
    assert abs(kept - 0.1) < 0.01  # a replacement is the same token by chance once in 256
    assert found[found != 299].max() < 256
    (again, _), _ = next(source)
    assert (again != tokens).any()


def test_masked_task_chooses_at_least_one_token(text: Path) -> None:
    (_, chosen), targets = next(task("bert-base", text, size=1).batches(2, 1, CPU))
    assert chosen.all()
    assert targets.shape == (2,)


@pytest.mark.parametrize(("name", "distinct"), [("gpt2-small", 300), ("bert-base", 299), ("transformer-base", 299)])
def test_text_tokens_leave_the_last_id_to_masked_and_pairs_tasks(tmp_path: Path, name: str, distinct: int) -> None:
    """The text has more words than ids; the mask or start token takes the last id."""
    path = tmp_path / "words.txt"
    path.write_text(" ".join(f"word{n}" for n in range(400)))
    kind = dataclasses.replace(MODELS[name], outputs=300)
    for source in (make_task(kind, path, 20, "word", 1), make_task(kind, "synthetic", 20, "word", 1)):
        assert isinstance(source.dataset, TextDataset)
        assert source.dataset.ids.max() == distinct - 1
        assert source.dataset.distinct == distinct


class Fixed(nn.Module):
    aux_weight = 0.3

    def __init__(self, *outputs: Tensor) -> None:
        super().__init__()
        self.outputs = outputs

    def forward(self, *_: Tensor) -> Tensor | tuple[Tensor, ...]:
        return self.outputs if len(self.outputs) > 1 else self.outputs[0]


def test_task_losses_equal_hand_computed_values() -> None:
    images = Task("images", None, 3, 8)  # type: ignore[arg-type]
    sure = torch.tensor([[9.0, 0.0, 0.0], [0.0, 9.0, 0.0]])
    unsure = torch.zeros(2, 3)
    labels = torch.tensor([0, 1])
    low, high = float(-torch.log_softmax(sure[0], 0)[0]), float(np.log(3))
    assert images.loss(Fixed(sure), (), labels).item() == pytest.approx(low)
    both = images.loss(Fixed(sure, unsure, unsure), (), labels).item()
    assert both == pytest.approx(low + 0.3 * 2 * high)
    words = torch.stack([sure, sure])  # [2 samples, 2 places, 3 tokens]
    places = torch.tensor([[0, 1], [0, 1]])
    assert Task("next", None, 3, 2).loss(Fixed(words), (), places).item() == pytest.approx(low)  # type: ignore[arg-type]
    assert Task("masked", None, 3, 2).loss(Fixed(sure), (), labels).item() == pytest.approx(low)  # type: ignore[arg-type]
    # smoothing 0.1 over three tokens: 0.9 + 0.1 / 3 on the right one, 0.1 / 3 on each other
    wrong = low + 9
    smoothed = (0.9 + 0.1 / 3) * low + 2 * (0.1 / 3) * wrong
    assert Task("pairs", None, 3, 2).loss(Fixed(words), (), places).item() == pytest.approx(smoothed)  # type: ignore[arg-type]


def test_images_are_scaled_and_enlarged() -> None:
    source = task("resnet18", "synthetic", size=32, outputs=5)
    (images,), labels = next(source.batches(4, 1, CPU))
    assert images.shape == (4, 3, 32, 32)
    assert -2 <= images.min() < -1.9 < 1.9 < images.max() <= 2
    assert labels.max() < 5
    enlarged = dataclasses.replace(source, size=48)
    (images,), _ = next(enlarged.batches(4, 1, CPU))
    assert images.shape == (4, 3, 48, 48)


@pytest.mark.parametrize("name", ["resnet18", "gpt2-small", "bert-base", "transformer-base"])
def test_manifest_marks_synthetic_data(name: str) -> None:
    made = task(name, "synthetic", size=32)
    assert made.manifest["dataset_layout"] == "synthetic"
    assert "made up" in made.manifest["synthetic"]
    inputs, _ = next(made.batches(2, 1, CPU))
    assert len(inputs) in (1, 2)


def test_folder_named_synthetic_is_read_as_real_text(tmp_path: Path) -> None:
    (tmp_path / "synthetic").mkdir()
    (tmp_path / "synthetic" / "a.txt").write_bytes(bytes(range(200)))
    real = task("gpt2-small", "./synthetic", size=8)
    assert "synthetic" not in real.manifest
    assert (real.manifest["dataset"], real.manifest["dataset_layout"]) == ("synthetic", "text")
    assert real.manifest["text_tokens"] == 200


def test_manifest_describes_text_dataset(text: Path) -> None:
    wanted = {"dataset": "count", "sequence": 40, "vocabulary": 300, "tokens": "byte", "distinct_tokens": 256}
    assert wanted.items() <= task("gpt2-small", text).manifest.items()


def test_image_folder_with_one_class_is_rejected(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image", reason="pictures are encoded with pillow")
    (tmp_path / "only").mkdir()
    image.new("RGB", (8, 8)).save(tmp_path / "only" / "1.png")
    with pytest.raises(TraceError, match="1 class; expected at least two"):
        task("resnet18", tmp_path)
