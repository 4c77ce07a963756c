"""Fitting predictors to samples of normal trainings: L1, Adam; what predicts an unseen training best is kept."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from gradwire.training.served.mp2 import places_at
from gradwire.training.served.predictor import (
    KINDS,
    LAST,
    NETS,
    PERIOD,
    WeightNowcaster,
    features,
    normalised,
)
from gradwire.training.served.samples import LENGTH, Samples

RATE, BATCH = 2e-3, 256


@dataclass
class Fitting:
    """A predictor that is being fitted, epoch by epoch.

    kind : "mp2" or "wnn".
    learned, unseen : samples that are learned from, and of a training that is not.
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
        """One epoch, and a look at what is not learned from: its error."""
        for group in self.adam.param_groups:
            group["lr"] = RATE * (1 + math.cos(math.pi * self.done / self.epochs)) / 2
        self.net.train()
        self.epoch(self.net, self.adam, self.learned, torch.Generator().manual_seed(1000 * self.seed + self.done))
        self.done += 1
        found = self.judge(self.net.eval(), self.unseen)["predicted"]
        if found < self.error:
            self.error = found
            self.best = {name: value.clone() for name, value in self.net.state_dict().items()}
        return found

    def finished(self) -> tuple[nn.Module, dict[str, float]]:
        """(the best net, errors on what is not learned from, by how it is guessed)."""
        self.net.load_state_dict(self.best)
        return self.net, self.judge(self.net.eval(), self.unseen)

    def state_dict(self) -> dict[str, Any]:
        """Everything but samples, for a checkpoint."""
        return {"done": self.done, "error": self.error, "best": self.best, "net": self.net.state_dict(),
                "adam": self.adam.state_dict()}  # fmt: skip

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Go on from there."""
        self.done, self.error, self.best = saved["done"], saved["error"], saved["best"]
        self.net.load_state_dict(saved["net"])
        self.adam.load_state_dict(saved["adam"])


def seen_at(samples: Samples, number: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """(features, targets, which are to be predicted) if a step is MP2's `number`-th: every place of a block was pushed
    last when its turn was."""
    age = torch.full((samples["values"].shape[1],), LENGTH)
    for back in reversed(range(LENGTH)):
        age[places_at(number - back, seed)] = back
    moved = samples["moved"]
    last = moved.gather(1, (LENGTH - age).view(1, 1, -1).expand(len(moved), 1, -1)).squeeze(1)
    now = age == 0
    x = features(
        last * now, age, samples["values"], last, samples["scale"], samples["spread"], samples["conv"]
    )
    return x, moved[:, -1] / samples["scale"][:, None], ~now


def _epoch_blocks(net: nn.Module, adam: Any, samples: Samples, draws: torch.Generator) -> None:
    order = torch.randperm(len(samples["values"]), generator=draws)
    for rows in order.split(BATCH):
        number = 2 * PERIOD + int(torch.randint(10**6, (), generator=draws))
        x, target, unknown = seen_at({name: each[rows] for name, each in samples.items()}, number, 0)
        _descend(adam, (net(x) - target)[:, unknown].abs().mean())


@torch.no_grad()
def errors_blocks(net: nn.Module, samples: Samples) -> dict[str, float]:
    """Relative L1 distance of moves that are not pushed: predicted; held as they were last; taken to be none, which is
    1. Mean of eight steps."""
    total = {"predicted": 0.0, "hold": 0.0}
    for number in range(2 * PERIOD, 3 * PERIOD):
        x, target, unknown = seen_at(samples, number, 1)
        size = target[:, unknown].abs().sum()
        total["predicted"] += float((net(x) - target)[:, unknown].abs().sum() / size) / PERIOD
        total["hold"] += float((x[:, LAST] - target)[:, unknown].abs().sum() / size) / PERIOD
    return total


def _epoch_scalars(net: nn.Module, adam: Any, samples: Samples, draws: torch.Generator) -> None:
    assert isinstance(net, WeightNowcaster)
    for number, kind in enumerate(KINDS[:3]):
        rows = (samples["kind"] == number).nonzero().view(-1)
        for some in rows[torch.randperm(len(rows), generator=draws)].split(4 * BATCH):
            values, target = _aims(samples["history"][some], samples["target"][some])
            _descend(adam, (net.of(kind)(values) - target).abs().mean())


@torch.no_grad()
def errors_scalars(net: nn.Module, samples: Samples) -> dict[str, float]:
    """Relative L1 distance of moves: predicted; the last five periods' repeated. That of staying is 1."""
    assert isinstance(net, WeightNowcaster)
    off, again, size = 0.0, 0.0, 0.0
    for number, kind in enumerate(KINDS[:3]):
        rows = samples["kind"] == number
        if rows.any():
            values, target = _aims(samples["history"][rows], samples["target"][rows])
            off += float((net.of(kind)(values) - target).abs().sum())
            again += float((values[:, -1] - values[:, 0] - target).abs().sum())
            size += float(target.abs().sum())
    return {"predicted": off / max(size, 1e-30), "again": again / max(size, 1e-30)}


def _aims(history: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """(normalised values, what the answer should be)."""
    values, spread = normalised(history.T)
    return values, ((target - history[:, -1]) / (2 * spread).clamp(min=1e-12)).clamp(-1, 1)


def _descend(adam: Any, loss: Tensor) -> None:
    adam.zero_grad()
    loss.backward()
    adam.step()
