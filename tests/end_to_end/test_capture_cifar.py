"""Capture end to end on real data, CIFAR-10 and a text, where the checkout has them beside it (../shared/data)."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from warm import Warm

torch = pytest.importorskip("torch", reason="capture records PyTorch training (extra: capture)")
pytest.importorskip("PIL", reason="pictures are decoded with pillow (extra: capture)")
from torch import nn  # noqa: E402

from gradwire.traces import models  # noqa: E402
from gradwire.traces.capture.builtin_models import BuiltinRun  # noqa: E402
from gradwire.traces.capture.session import capture  # noqa: E402
from gradwire.traces.datasets.images import batches, load_images  # noqa: E402
from gradwire.traces.trace import load_trace  # noqa: E402

DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data"
CIFAR, TEXT = DATA / "cifar10", DATA / "text" / "tinyshakespeare.txt"
pytestmark = pytest.mark.skipif(not (CIFAR.is_dir() and TEXT.is_file()), reason="no cifar10 or text in ../shared/data")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Several threads on a busy machine wait for each other far longer than they work."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def small_cnn() -> nn.Module:
    def block(inputs: int, outputs: int) -> list[nn.Module]:
        return [nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(), nn.MaxPool2d(2)]

    return nn.Sequential(*block(3, 16), *block(16, 32), *block(32, 32), nn.Flatten(), nn.Linear(512, 10))


def test_captured_trace_of_small_cnn_contains_its_gradients(tmp_path: Path) -> None:
    torch.manual_seed(1)
    model = small_cnn()
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    source = batches(load_images(CIFAR), 32, seed=1)
    raw: dict[int, list[np.ndarray]] = {}
    phases = {"early": range(2, 5), "late": range(120, 123)}
    with capture(model, optimizer, out=tmp_path / "cnn", phases=phases, manifest={"batch": 32}) as recorder:
        while not recorder.done:
            pictures, labels = next(source)
            images = torch.from_numpy(pictures).permute(0, 3, 1, 2).float() / 128 - 1
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images), torch.from_numpy(labels))
            loss.backward()
            raw[recorder.step_index] = [p.grad.numpy().copy() for p in model.parameters()]
            optimizer.step()
            recorder.step(loss)

    trace = load_trace(tmp_path / "cnn")
    assert trace.phases == {"early": [0, 1, 2], "late": [3, 4, 5]}
    losses = [iteration.loss for iteration in trace.iterations]
    assert np.mean(losses[3:]) < np.mean(losses[:3])
    for iteration in trace.iterations:
        for number, gradient in enumerate(raw[iteration.step]):
            mean, largest = trace.magnitudes(iteration.index, number)
            values = np.abs(gradient).reshape(-1).astype(np.float64)
            sizes = np.diff([*range(0, len(values), 256), len(values)])
            assert (mean * sizes).sum() == pytest.approx(values.sum(), rel=2**-11)
            assert largest.max() == pytest.approx(values.max(), rel=2**-11)


def test_builtin_capture_records_requested_steps(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []

    def progress(step: int, steps: int, loss: float) -> None:
        seen.append((step, steps))

    run = BuiltinRun(
        data=str(CIFAR), model="resnet18", batch=4, image_size=32, iterations=2, early=1, late=3, threads=1,
        device="cpu", overhead_pairs=1,
    )  # fmt: skip
    before = torch.get_num_threads()
    out = run.train(tmp_path / "trace", progress=progress)
    assert torch.get_num_threads() == before
    assert seen == [(step, 7) for step in range(1, 8)]
    trace = load_trace(out)
    assert [iteration.step for iteration in trace.iterations] == [1, 2, 3, 4]
    manifest: dict[str, Any] = trace.manifest
    assert (manifest["model"], manifest["dataset"], manifest["image_size"]) == ("resnet18", "cifar10", 32)
    assert manifest["images"] == 50_000
    assert manifest["threads"] == 1
    assert manifest["command"].startswith("gradwire capture --model resnet18 --data cifar10 --batch 4")
    assert str(tmp_path) not in manifest["command"]


def test_equal_seeds_give_equal_gradients(tmp_path: Path) -> None:
    run = BuiltinRun(
        data=str(CIFAR), model="resnet18", batch=2, image_size=32, iterations=1, early=1, late=2, threads=1,
        device="cpu", overhead_pairs=0,
    )  # fmt: skip
    one = load_trace(run.train(tmp_path / "one"))
    two = load_trace(run.train(tmp_path / "two"))
    assert [i.loss for i in one.iterations] == [i.loss for i in two.iterations]
    for tensor in range(len(one.tensors)):
        np.testing.assert_array_equal(one.chunk_mean(1, tensor), two.chunk_mean(1, tensor))


def test_capture_of_lstm_on_text_shows_learning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The LSTM for a small vocabulary starts from a uniform guess and improves soon. The gradient of its embedding is
    as uneven as the word frequencies of the text."""
    small = dataclasses.replace(models.MODELS["lstm"], outputs=400, learning_rate=3e-3)
    monkeypatch.setitem(models.MODELS, "small", small)
    run = BuiltinRun(
        data=TEXT, model="small", tokens="word", batch=4, sequence=12, iterations=3, early=0, late=30, threads=1,
        device="cpu", overhead_pairs=0,
    )  # fmt: skip
    trace = load_trace(run.train(tmp_path / "out"))
    losses = [iteration.loss for iteration in trace.iterations]
    assert losses[0] == pytest.approx(np.log(400), abs=0.1)
    assert np.mean(losses[3:]) < losses[0] - 1
    assert (trace.manifest["dataset"], trace.manifest["tokens"]) == ("tinyshakespeare", "word")
    assert trace.manifest["unknown_share"] > 0.1
    embedding = np.sort(trace.magnitudes(4, 0)[0])
    assert embedding[-len(embedding) // 4 :].sum() > 0.8 * embedding.sum()


def test_capture_command_writes_a_readable_trace(tmp_path: Path) -> None:
    """`gradwire capture` prints progress on stderr and one line on stdout, and writes a readable trace."""
    words = (
        f"capture --model resnet20 --data {CIFAR} --batch 4 --iterations 2 --early 1 --late 4 --every 2 "
        f"--overhead-pairs 1 --device cpu --threads 1 --out {tmp_path / 'out'}"
    )
    run = Warm.with_torch().run
    done = run(*words.split())
    assert (done.returncode, done.stdout) == (0, f"trace written to {tmp_path / 'out'}\n"), done.stderr
    assert "100% step 8 loss" in done.stderr
    told = run("trace", "info", str(tmp_path / "out"), "--json")
    assert json.loads(told.stdout)["name"] == "out"
    again = run(*words.split())
    assert again.returncode == 2
    assert "exists already" in again.stderr
    assert "Traceback" not in again.stderr
