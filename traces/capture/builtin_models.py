"""`BuiltinRun` trains a built-in model on a data set and captures a trace of it, for `gradwire capture`.

Needs the extra `capture` (torch, pillow).
"""

from __future__ import annotations

import contextlib
import dataclasses
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gradwire.scenarios.errors import MissingExtraError, TraceError
from gradwire.scenarios.json_data import Json

try:
    import torch
    from torch import nn
except ImportError as error:
    raise MissingExtraError("torch", "capture") from error

from gradwire.traces.capture.session import capture
from gradwire.traces.capture.tasks import make_task
from gradwire.traces.devices import pick_device
from gradwire.traces.models import ModelKind, find_model

Progress = Callable[[int, int, float], None]  # step, total steps, loss

LOSS_WINDOW = 50  # steps averaged into one figure of the loss history
_SGD = {"momentum": 0.9, "weight_decay": 1e-4}
_ADAMW = {"betas": [0.9, 0.98], "weight_decay": 0.01}  # the second beta as for the Transformer: our choice


@dataclass(frozen=True)
class BuiltinRun:
    """Settings of a capture with a built-in model, named like the options of `gradwire capture`.

    `iterations` consecutive steps are recorded from step `early` and again from step `late` on, then `overhead_pairs`
    pairs of steps measure the cost of the hooks. Every `every`-th recorded step has its own statistics. `batch`,
    `image_size` (pictures), `sequence` (tokens of one sample) and `learning_rate` default to the model's; `tokens` is
    for text (`gradwire.traces.datasets.text`). `threads` None leaves torch's choice; `note` goes into the manifest.
    TraceError for invalid values.
    """

    data: str | Path
    model: str = "resnet50"
    batch: int | None = None
    image_size: int | None = None
    sequence: int | None = None
    tokens: str | None = None
    iterations: int = 6
    every: int = 1
    early: int = 20
    late: int = 600
    device: str = "auto"
    threads: int | None = None
    seed: int = 1
    learning_rate: float | None = None
    overhead_pairs: int = 12
    note: str | None = None

    def __post_init__(self) -> None:
        kind = find_model(self.model)
        unused = ("sequence", "tokens") if kind.task == "images" else ("image_size",)
        for name in unused:
            if getattr(self, name) is not None:
                material = "pictures" if kind.task == "images" else "text"
                what = f"{_words(name)} for {self.model}"
                raise TraceError(what, "capture", f"none: the model learns from {material}")
        smallest, largest = kind.sizes
        if not smallest <= self.size <= largest:
            name = "image size" if kind.task == "images" else "sequence"
            raise TraceError(f"{name} {self.size}", "capture", f"{smallest} to {largest} for {self.model}")
        least = {"iterations": 1, "every": 1, "early": 0, "overhead_pairs": 0, "seed": 0, "threads": 1, "batch": 1}
        for name, bound in least.items():
            value = getattr(self, name)
            if value is not None and value < bound:
                raise TraceError(f"{_words(name)} {value}", "capture", f"at least {bound}")
        if self.learning_rate is not None and not 0 < self.learning_rate < float("inf"):
            raise TraceError(f"learning rate {self.learning_rate}", "capture", "above 0")
        if self.late < self.early + self.iterations:
            settings = f"late {self.late}, early {self.early}, {self.iterations} iterations"
            raise TraceError(settings, "capture", "a late phase that begins after the early one")

    @property
    def kind(self) -> ModelKind:
        """The model."""
        return find_model(self.model)

    @property
    def size(self) -> int:
        """Pixels of a picture's side, or tokens of a sample."""
        return next((size for size in (self.image_size, self.sequence) if size is not None), self.kind.size)

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
        """Return the command line that repeats this capture, with folders reduced to their last part."""
        words = ["gradwire", "capture", "--model", self.model, "--data", Path(self.data).name]
        always = {"batch": self.batch or self.kind.batch}
        always["image_size" if self.kind.task == "images" else "sequence"] = self.size
        defaults = {field.name: field.default for field in dataclasses.fields(self)}
        for name in defaults:
            if name in ("data", "model", "note"):
                continue
            value = always.get(name, getattr(self, name))
            is_explicit = name in ("iterations", "early", "late", "device", "seed", *always)
            if value is not None and (is_explicit or value != defaults[name]):
                words += ["--" + name.replace("_", "-"), str(value)]
        return shlex.join([*words, "--out", out.name])

    def train(self, out: str | Path, name: str | None = None, progress: Progress | None = None) -> Path:
        """Train the model on its task, record it and return the trace's directory `out`, which must be new.

        `gradwire.traces.capture.tasks` defines the task, `gradwire.traces.models` the optimizer (SGD: momentum 0.9,
        weight decay 1e-4; AdamW: betas 0.9 and 0.98, weight decay 0.01). There is no augmentation, and loading data is
        outside the timed part of an iteration, as with a loader that prefetches. `progress(step, steps, loss)` is
        called after every step.
        """
        out = Path(out)
        device = pick_device(self.device)
        batch = self.batch or self.kind.batch
        task = make_task(self.kind, self.data, self.size, self.tokens or "byte", self.seed)
        source = task.batches(batch, self.seed, device)
        with _threads(self.threads):
            torch.manual_seed(self.seed)
            model = self.kind.build(task.outputs).to(device).train()
            optimizer, description = self._optimizer(model)
            manifest: Json = {
                "model": self.model,
                **task.manifest,
                "batch": batch,
                "seed": self.seed,
                "optimizer": description,
                "command": self.command(out),
                **({"note": self.note} if self.note else {}),
            }
            with capture(
                model,
                optimizer,
                out=out,
                phases=self.phases,
                every=self.every,
                name=name,
                overhead_pairs=self.overhead_pairs,
                manifest=manifest,
            ) as recorder:
                losses: list[float] = []
                for inputs, targets in source:
                    self._warm_up(optimizer, len(losses))
                    optimizer.zero_grad(set_to_none=True)
                    loss = task.loss(model, inputs, targets)
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

    def _optimizer(self, model: nn.Module) -> tuple[torch.optim.Optimizer, Json]:
        """Return the optimizer and its description for the manifest."""
        kind = self.kind
        rate = self.learning_rate or kind.learning_rate
        warmup = {"warmup_steps": kind.warmup} if kind.warmup else {}
        if kind.optimizer == "sgd":
            sgd = torch.optim.SGD(model.parameters(), lr=rate, **_SGD)
            return sgd, {"kind": "sgd", "learning_rate": rate, **_SGD, **warmup}
        adamw = torch.optim.AdamW(model.parameters(), lr=rate, **_ADAMW)
        return adamw, {"kind": "adamw", "learning_rate": rate, **_ADAMW, **warmup}

    def _warm_up(self, optimizer: torch.optim.Optimizer, step: int) -> None:
        """Set the learning rate of `step`: a linear rise over the model's `warmup` steps, then constant."""
        if step < self.kind.warmup:
            rate = self.learning_rate or self.kind.learning_rate
            for group in optimizer.param_groups:
                group["lr"] = rate * (step + 1) / self.kind.warmup


def _words(name: str) -> str:
    return name.replace("_", " ")


def _loss_history(losses: list[float]) -> Json:
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
