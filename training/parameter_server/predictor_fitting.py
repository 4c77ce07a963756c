"""Fits parameter predictors, epoch by epoch, to parameters sampled from ordinary training runs.

The loss is L1, the optimiser Adam; the weights with the least error on an unseen run win.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gradwire.training.parameter_server import predictor
from gradwire.training.parameter_server.block_fitting import block_errors, train_epoch
from gradwire.training.parameter_server.predictor import KINDS
from gradwire.training.parameter_server.weight_nowcaster import HISTORY, WeightNowcaster, normalise
from gradwire.training.trainer import Trainer

RATE, BATCH = 2e-3, 256
Samples = dict[str, Tensor]
Progress = Callable[[float, str], None]


def sample_scalars(trainer: Trainer, seed: int, on_progress: Progress | None = None, most: int = 3000) -> Samples:
    """Return single parameters at the ends of epochs, up to `most` of each type and span; S in all.

    history : HISTORY values, (S, HISTORY). target : the value HISTORY epochs later [poster], (S,). kind : index into
        KINDS, (S,).
    """
    draws = np.random.default_rng([seed, 4])
    kinds, steps = predictor.kinds_of(trainer.model), trainer.recipe.steps
    seen: list[dict[str, Tensor]] = []
    for number in range(steps):
        trainer.step()
        if (number + 1) % trainer.dealer.steps_per_epoch == 0:
            now = list(trainer.model.parameters())
            of_kind = {kind: [now[at] for at, other in enumerate(kinds) if other == kind] for kind in KINDS[:3]}
            seen.append(
                {kind: torch.cat([p.detach().reshape(-1) for p in row]) for kind, row in of_kind.items() if row}
            )
        if on_progress is not None:
            on_progress((number + 1) / steps, f"step {number + 1} of {steps}")
    history, target, which = [], [], []
    for first in range(len(seen) - 2 * HISTORY + 1):
        for kind in seen[0]:
            rows = torch.stack([seen[first + epoch][kind] for epoch in range(HISTORY)], dim=1)
            rows_used = torch.from_numpy(draws.permutation(len(rows))[:most].copy())
            history.append(rows[rows_used])
            target.append(seen[first + 2 * HISTORY - 1][kind][rows_used])
            which.append(torch.full((len(rows_used),), KINDS.index(kind)))
    return {"history": torch.cat(history), "target": torch.cat(target), "kind": torch.cat(which)}


@dataclass
class Fitting:
    """The state of a predictor's fitting, epoch by epoch.

    kind : "mp2" or "wnn".
    learned, unseen : training samples, and those of a held-out training run.
    epochs : of the whole fitting, which the rate needs to know: it falls to zero along a cosine.
    error : of the best epoch, relative L1 distance on `unseen`; `best` its weights.
    """

    kind: str
    learned: Samples
    unseen: Samples
    epochs: int
    seed: int = 0
    done: int = 0
    error: float = math.inf
    best: dict[str, Tensor] = field(default_factory=dict)
    net: nn.Module = field(init=False)

    def __post_init__(self) -> None:
        torch.manual_seed(self.seed)
        self.net = predictor.NETS[self.kind]()
        self.adam = torch.optim.Adam(self.net.parameters(), RATE)
        blocks = self.kind == "mp2"
        self.epoch, self.judge = (train_epoch, block_errors) if blocks else (_epoch_scalars, errors_scalars)

    def step(self) -> float:
        """Run one epoch and return its error on the held-out samples."""
        for group in self.adam.param_groups:
            group["lr"] = RATE * (1 + math.cos(math.pi * self.done / self.epochs)) / 2
        self.net.train()
        self.epoch(self.net, self.adam, self.learned, torch.Generator().manual_seed(1000 * self.seed + self.done))
        self.done += 1
        error = self.judge(self.net.eval(), self.unseen)["predicted"]
        if error < self.error:
            self.error = error
            self.best = {name: value.clone() for name, value in self.net.state_dict().items()}
        return error

    def finished(self) -> tuple[nn.Module, dict[str, float]]:
        """Return (the best net, its errors on the held-out samples by method)."""
        self.net.load_state_dict(self.best)
        return self.net, self.judge(self.net.eval(), self.unseen)

    def state_dict(self) -> dict[str, Any]:
        """Return everything but the samples, for a checkpoint."""
        state = {"done": self.done, "error": self.error, "best": self.best}
        return {**state, "net": self.net.state_dict(), "adam": self.adam.state_dict()}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        self.done, self.error, self.best = saved["done"], saved["error"], saved["best"]
        self.net.load_state_dict(saved["net"])
        self.adam.load_state_dict(saved["adam"])


def _epoch_scalars(net: nn.Module, adam: Any, samples: Samples, draws: torch.Generator) -> None:
    assert isinstance(net, WeightNowcaster)
    for number, kind in enumerate(KINDS[:3]):
        rows = (samples["kind"] == number).nonzero().view(-1)
        for batch in rows[torch.randperm(len(rows), generator=draws)].split(4 * BATCH):
            values, target, _ = _targets(samples, batch)
            _descend(adam, (net.of(kind)(values) - target.clamp(-1, 1)).abs().mean() + net.of(kind).penalty())


@torch.no_grad()
def errors_scalars(net: nn.Module, samples: Samples) -> dict[str, float]:
    """Return the relative L1 distance of movements in HISTORY epochs, of all and by type: predicted, and extrapolated
    linearly. No movement would be 1."""
    assert isinstance(net, WeightNowcaster)
    totals: dict[str, dict[str, float]] = {}
    for number, kind in enumerate(KINDS[:3]):
        rows = samples["kind"] == number
        if rows.any():
            values, target, unit = _targets(samples, rows)
            linear = extrapolated(values) - values[:, -1]
            moves = {"predicted": net.of(kind)(values), "linear": linear, "none": torch.zeros_like(target)}
            totals[kind] = {name: float(((move - target) * unit).abs().sum()) for name, move in moves.items()}
    totals = {"": {name: sum(total[name] for total in totals.values()) for name in ("predicted", "linear", "none")}} | {
        f"_{kind}": total for kind, total in totals.items()
    }
    return {
        f"{name}{kind}": total[name] / max(total["none"], 1e-30)
        for kind, total in totals.items()
        for name in ("predicted", "linear")
    }


def extrapolated(values: Tensor) -> Tensor:
    """Return the values HISTORY epochs later on a least-squares line, (n, HISTORY) to (n,)."""
    epochs = torch.arange(HISTORY, dtype=values.dtype) - (HISTORY - 1) / 2
    slope = (values @ epochs) / (epochs @ epochs)
    return values.mean(dim=1) + slope * (epochs[-1] + HISTORY)


def _targets(samples: Samples, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return (normalised values, normalised movement, its unit) of some samples."""
    history = samples["history"][rows].T
    values, spread = normalise(history)
    return values, (samples["target"][rows] - history[-1]) / (2 * spread), 2 * spread


def _descend(adam: Any, loss: Tensor) -> None:
    adam.zero_grad()
    loss.backward()
    adam.step()
