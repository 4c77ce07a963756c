"""Record a trace with a built-in model and a data set: what `gradwire capture` does.

Needs the extra `capture` (torch, pillow).
"""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from scenarios.errors import MissingExtraError, TraceError

try:
    import torch
    from torch import nn
except ImportError as error:
    raise MissingExtraError("torch", "capture") from error

from traces.capture import capture
from traces.datasets import batches, load_images
from traces.models.cnn import MODELS

Progress = Callable[[int, int, float], None]  # step, steps in all, loss

LOSS_WINDOW = 50  # steps averaged into one figure of the loss history


def pick_device(name: str) -> torch.device:
    """The device of that name; "auto" is CUDA if torch has one, else the CPU. TraceError if unusable."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise TraceError(
            f"device {name!r} cannot be used ({reason})", "capture", "auto, cpu or cuda"
        ) from None
    return device


@dataclass(frozen=True)
class BuiltinRun:
    """The settings of a capture with a built-in model, named like the options of `gradwire capture`.

    `iterations` consecutive steps are recorded from step `early` and again from step `late` on, then
    `overhead_pairs` pairs of steps measure what the hooks cost. `threads` None leaves torch's own choice.
    """

    data: str | Path
    model: str = "resnet50"
    batch: int = 32
    image_size: int = 64
    iterations: int = 6
    early: int = 20
    late: int = 600
    device: str = "auto"
    threads: int | None = None
    seed: int = 1
    learning_rate: float = 0.01
    overhead_pairs: int = 12

    def __post_init__(self) -> None:
        if self.model not in MODELS:
            raise TraceError(f"model {self.model!r}", "capture", "one of " + ", ".join(MODELS))
        if self.image_size < 32:
            raise TraceError(f"image size {self.image_size}", "capture", "at least 32")
        for name, least in (("iterations", 1), ("early", 0), ("overhead_pairs", 0), ("seed", 0)):
            if getattr(self, name) < least:
                raise TraceError(f"{name} {getattr(self, name)}", "capture", f"at least {least}")
        if self.threads is not None and self.threads < 1:
            raise TraceError(f"threads {self.threads}", "capture", "at least 1")
        if self.late < self.early + self.iterations:
            found = f"late {self.late}, early {self.early}, {self.iterations} iterations"
            raise TraceError(found, "capture", "late steps that follow the early ones")

    @property
    def phases(self) -> dict[str, range]:
        """Step numbers per phase."""
        return {
            "early": range(self.early, self.early + self.iterations),
            "late": range(self.late, self.late + self.iterations),
        }

    @property
    def steps(self) -> int:
        """Training steps in all."""
        return self.late + self.iterations + 2 * self.overhead_pairs

    def command(self, out: Path) -> str:
        """The command line that repeats this capture, with folders reduced to their last part."""
        options = {
            "--model": self.model,
            "--data": Path(self.data).name,
            "--batch": self.batch,
            "--image-size": self.image_size,
            "--iterations": self.iterations,
            "--early": self.early,
            "--late": self.late,
            "--device": self.device,
            "--threads": self.threads,
            "--seed": self.seed,
            "--out": out.name,
        }
        words = [str(word) for option in options.items() if option[1] is not None for word in option]
        return shlex.join(["gradwire", "capture", *words])

    def train(self, out: Path, name: str | None = None, progress: Progress | None = None) -> Path:
        """Train, record, and write the trace to `out`."""
        device = pick_device(self.device)
        dataset = load_images(self.data)
        with _threads(self.threads):
            torch.manual_seed(self.seed)
            model = MODELS[self.model](dataset.classes).to(device).train()
            sgd = {"lr": self.learning_rate, "momentum": 0.9, "weight_decay": 1e-4}
            optimizer = torch.optim.SGD(model.parameters(), **sgd)
            manifest: dict[str, Any] = {
                "model": self.model,
                "classes": dataset.classes,
                "dataset": dataset.name,
                "dataset_layout": dataset.layout,
                "images": len(dataset),
                "image_size": self.image_size,
                "batch": self.batch,
                "seed": self.seed,
                "optimizer": {"kind": "sgd", **sgd},
                "command": self.command(out),
            }
            with capture(
                model,
                optimizer,
                out=out,
                phases=self.phases,
                name=name,
                overhead_pairs=self.overhead_pairs,
                manifest=manifest,
            ) as recorder:
                losses: list[float] = []
                for pictures, labels in batches(dataset, self.batch, self.seed):
                    images, targets = _to_tensors(pictures, labels, self.image_size, device)
                    optimizer.zero_grad(set_to_none=True)
                    loss = nn.functional.cross_entropy(model(images), targets)
                    loss.backward()
                    optimizer.step()
                    losses.append(float(loss.detach()))
                    manifest["loss_history"] = _loss_history(losses)  # part of the trace after Ctrl-C as well
                    recorder.step(losses[-1])
                    if progress is not None:
                        progress(recorder.step_index, self.steps, losses[-1])
                    if recorder.done:
                        break
        return out


def capture_builtin(
    run: BuiltinRun, out: str | Path, *, name: str | None = None, progress: Progress | None = None
) -> Path:
    """Train a built-in model on images, record it and return the trace's directory `out`, which must be new.

    Training is momentum SGD (0.9, weight decay 1e-4) on cross entropy, without augmentation. Pictures are
    scaled to [-2, 2] and enlarged bilinearly to `run.image_size`; loading them is outside the timed part of
    an iteration, as with a loader that runs ahead. `progress(step, steps, loss)` is called after every step.
    """
    return run.train(Path(out), name, progress)


def _loss_history(losses: list[float]) -> dict[str, Any]:
    whole = len(losses) // LOSS_WINDOW * LOSS_WINDOW
    means = np.array(losses[:whole]).reshape(-1, LOSS_WINDOW).mean(axis=1)
    return {"steps_per_mean": LOSS_WINDOW, "means": [round(float(mean), 4) for mean in means]}


@contextlib.contextmanager
def _threads(count: int | None) -> Iterator[None]:
    before = torch.get_num_threads()
    if count is not None:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _to_tensors(
    pictures: np.ndarray, labels: np.ndarray, size: int, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    images = torch.from_numpy(pictures).to(device).permute(0, 3, 1, 2).float().div(255).sub(0.5).div(0.25)
    if images.shape[-1] != size:
        images = nn.functional.interpolate(images, size=(size, size), mode="bilinear", align_corners=False)
    return images.contiguous(), torch.from_numpy(labels).to(device)
