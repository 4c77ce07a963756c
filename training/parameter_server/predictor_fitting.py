"""Fitting of predictors to samples of training runs: L1 loss, Adam; the weights with the least error on an unseen run
win."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from gradwire.training.parameter_server.mp2_trainer import positions_at
from gradwire.training.parameter_server.parameter_samples import LENGTH, Samples
from gradwire.training.parameter_server.predictor import (
    KINDS,
    LAST_MOVEMENT,
    NETS,
    PERIOD,
    WeightNowcaster,
    features,
    normalise,
)

RATE, BATCH = 2e-3, 256


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
        self.net = NETS[self.kind]()
        self.adam = torch.optim.Adam(self.net.parameters(), RATE)
        blocks = self.kind == "mp2"
        self.epoch, self.judge = (_epoch_blocks, errors_blocks) if blocks else (_epoch_scalars, errors_scalars)

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
        return {
            "done": self.done,
            "error": self.error,
            "best": self.best,
            "net": self.net.state_dict(),
            "adam": self.adam.state_dict(),
        }

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        self.done, self.error, self.best = saved["done"], saved["error"], saved["best"]
        self.net.load_state_dict(saved["net"])
        self.adam.load_state_dict(saved["adam"])


def features_at(samples: Samples, number: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return (features, targets, mask of the positions to predict) in MP2's step `number`."""
    age = torch.full((samples["values"].shape[1],), LENGTH)
    for back in reversed(range(LENGTH)):
        age[positions_at(number - back, seed)] = back
    moved = samples["moved"]
    last = moved.gather(1, (LENGTH - age).view(1, 1, -1).expand(len(moved), 1, -1)).squeeze(1)
    now = age == 0
    x = features(last * now, age, samples["values"], last, samples["scale"], samples["spread"], samples["conv"])
    return x, moved[:, -1] / samples["scale"][:, None], ~now


def _epoch_blocks(net: nn.Module, adam: Any, samples: Samples, draws: torch.Generator) -> None:
    order = torch.randperm(len(samples["values"]), generator=draws)
    for rows in order.split(BATCH):
        number = 2 * PERIOD + int(torch.randint(10**6, (), generator=draws))
        x, target, unknown = features_at({name: values[rows] for name, values in samples.items()}, number, 0)
        _descend(adam, (net(x) - target)[:, unknown].abs().mean())


@torch.no_grad()
def errors_blocks(net: nn.Module, samples: Samples) -> dict[str, float]:
    """Return the relative L1 distance of movements that are not pushed: predicted, and held as they were last.
    Predicting no movement would be 1. Mean of eight steps."""
    total = {"predicted": 0.0, "hold": 0.0}
    for number in range(2 * PERIOD, 3 * PERIOD):
        x, target, unknown = features_at(samples, number, 1)
        size = target[:, unknown].abs().sum()
        total["predicted"] += float((net(x) - target)[:, unknown].abs().sum() / size) / PERIOD
        total["hold"] += float((x[:, LAST_MOVEMENT] - target)[:, unknown].abs().sum() / size) / PERIOD
    return total


def _epoch_scalars(net: nn.Module, adam: Any, samples: Samples, draws: torch.Generator) -> None:
    assert isinstance(net, WeightNowcaster)
    for number, kind in enumerate(KINDS[:3]):
        rows = (samples["kind"] == number).nonzero().view(-1)
        for batch in rows[torch.randperm(len(rows), generator=draws)].split(4 * BATCH):
            values, target = _targets(samples["history"][batch], samples["target"][batch])
            _descend(adam, (net.of(kind)(values) - target).abs().mean())


@torch.no_grad()
def errors_scalars(net: nn.Module, samples: Samples) -> dict[str, float]:
    """Return the relative L1 distance of movements: predicted, and the last five periods' repeated. No movement would
    be 1."""
    assert isinstance(net, WeightNowcaster)
    off, repeated, size = 0.0, 0.0, 0.0
    for number, kind in enumerate(KINDS[:3]):
        rows = samples["kind"] == number
        if rows.any():
            values, target = _targets(samples["history"][rows], samples["target"][rows])
            off += float((net.of(kind)(values) - target).abs().sum())
            repeated += float((values[:, -1] - values[:, 0] - target).abs().sum())
            size += float(target.abs().sum())
    return {"predicted": off / max(size, 1e-30), "again": repeated / max(size, 1e-30)}


def _targets(history: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Return (normalised values, desired output)."""
    values, spread = normalise(history.T)
    return values, ((target - history[:, -1]) / (2 * spread).clamp(min=1e-12)).clamp(-1, 1)


def _descend(adam: Any, loss: Tensor) -> None:
    adam.zero_grad()
    loss.backward()
    adam.step()
