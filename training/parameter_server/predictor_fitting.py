"""Fitting of predictors to parameters sampled from ordinary training runs.

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
from gradwire.training.parameter_server.mp2_trainer import positions_at
from gradwire.training.parameter_server.predictor import BLOCK, KINDS, PERIOD, WeightNowcaster
from gradwire.training.parameter_server.wnn_trainer import HISTORY
from gradwire.training.reducers.base import group_units
from gradwire.training.trainer import Trainer

RATE, BATCH = 2e-3, 256
LENGTH = 2 * PERIOD
"""Steps before the predicted one: the longest time since a parameter was pushed."""
WINDOWS = 10
"""Spans sampled from a training run, spread over all of it."""
PERIODS = 30
"""Periods of a training run for predictions of single parameters."""
Samples = dict[str, Tensor]
Progress = Callable[[float, str], None]


def sample_blocks(trainer: Trainer, seed: int, on_progress: Progress | None = None, most: int = 300) -> Samples:
    """Return blocks of convolutions and matrices, up to `most` of each span; S blocks in all.

    moved : movements of the parameters in LENGTH steps and the one to predict, (S, LENGTH + 1, BLOCK).
    values : before that one, (S, BLOCK). scale, spread : of their tensors then, see `predictor.features`, (S,).
    conv : (S,) bool.
    """
    draws = np.random.default_rng([seed, 3])
    kinds = predictor.kinds_of(trainer.model)
    chosen = [at for at, kind in enumerate(kinds) if kind in ("conv", "fc")]
    steps = trainer.recipe.steps
    starts = [round((span + 0.5) * (steps - LENGTH - 1) / WINDOWS) for span in range(WINDOWS)]
    spans: list[Samples] = []
    history: list[list[Tensor]] = []
    for number in range(steps):
        history = [*history[-LENGTH:], _snapshot(trainer, chosen)]
        trainer.step()
        if number - LENGTH in starts:
            states = [*history, _snapshot(trainer, chosen)]
            spans.append(_windows(states, [kinds[at] == "conv" for at in chosen], draws, most))
        if on_progress is not None:
            on_progress((number + 1) / steps, f"step {number + 1} of {steps}")
    return {name: torch.cat([span[name] for span in spans]) for name in spans[0]}


def sample_scalars(trainer: Trainer, seed: int, on_progress: Progress | None = None, most: int = 3000) -> Samples:
    """Return single parameters at the ends of periods, up to `most` of each type and span; S in all.

    history : SEEN values, (S, SEEN). target : the value SEEN periods later, (S,). kind : index into KINDS, (S,).
    """
    draws = np.random.default_rng([seed, 4])
    kinds, steps = predictor.kinds_of(trainer.model), trainer.recipe.steps
    seen: list[dict[str, Tensor]] = []
    for number in range(steps):
        trainer.step()
        if (number + 1) % max(1, steps // PERIODS) == 0:
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
            rows = torch.stack([seen[first + period][kind] for period in range(HISTORY)], dim=1)
            rows_used = torch.from_numpy(draws.permutation(len(rows))[:most].copy())
            history.append(rows[rows_used])
            target.append(seen[first + 2 * HISTORY - 1][kind][rows_used])
            which.append(torch.full((len(rows_used),), KINDS.index(kind)))
    return {"history": torch.cat(history), "target": torch.cat(target), "kind": torch.cat(which)}


def _snapshot(trainer: Trainer, chosen: list[int]) -> list[Tensor]:
    parameters = list(trainer.model.parameters())
    return [parameters[at].detach().reshape(-1).clone() for at in chosen]


def _windows(history: list[list[Tensor]], conv: list[bool], draws: np.random.Generator, most: int) -> Samples:
    """Return blocks of one span, LENGTH + 2 states of some tensors."""
    moved, values, scales, spreads, kinds = [], [], [], [], []
    for tensor, is_conv in enumerate(conv):
        states = torch.stack([state[tensor] for state in history])
        steps = states.diff(dim=0)
        blocks = torch.stack([group_units(step, BLOCK) for step in steps], dim=1)
        moved.append(blocks)
        values.append(group_units(states[-2], BLOCK))
        scales.append(steps[-1].abs().mean().clamp(min=1e-12).expand(len(blocks)))
        spreads.append(states[-2].std(correction=0).clamp(min=1e-12).expand(len(blocks)))
        kinds.append(torch.full((len(blocks),), is_conv))
    columns = {"moved": moved, "values": values, "scale": scales, "spread": spreads, "conv": kinds}
    count = sum(map(len, values))
    rows = torch.from_numpy(np.sort(draws.permutation(count)[:most]))
    return {name: torch.cat(list(column))[rows].clone() for name, column in columns.items()}


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
        state = {"done": self.done, "error": self.error, "best": self.best}
        return {**state, "net": self.net.state_dict(), "adam": self.adam.state_dict()}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        self.done, self.error, self.best = saved["done"], saved["error"], saved["best"]
        self.net.load_state_dict(saved["net"])
        self.adam.load_state_dict(saved["adam"])


def features_at(samples: Samples, number: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return (predictor.features, targets, mask of the positions to predict) in MP2's step `number`."""
    age = torch.full((samples["values"].shape[1],), LENGTH)
    for back in reversed(range(LENGTH)):
        age[positions_at(number - back, seed)] = back
    moved = samples["moved"]
    last = moved.gather(1, (LENGTH - age).view(1, 1, -1).expand(len(moved), 1, -1)).squeeze(1)
    now = age == 0
    x = predictor.features(
        last * now, age, samples["values"], last, samples["scale"], samples["spread"], samples["conv"]
    )
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
        total["hold"] += float((x[:, predictor.LAST_MOVEMENT] - target)[:, unknown].abs().sum() / size) / PERIOD
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
    values, spread = predictor.normalise(history.T)
    return values, ((target - history[:, -1]) / (2 * spread).clamp(min=1e-12)).clamp(-1, 1)


def _descend(adam: Any, loss: Tensor) -> None:
    adam.zero_grad()
    loss.backward()
    adam.step()
