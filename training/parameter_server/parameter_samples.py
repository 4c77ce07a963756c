"""Training samples for predictors: parameters sampled from ordinary training runs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from gradwire.training.parameter_server.predictor import BLOCK, KINDS, PERIOD, kinds_of
from gradwire.training.parameter_server.wnn_trainer import HISTORY
from gradwire.training.trainer import Trainer

LENGTH = 2 * PERIOD
"""Steps before the predicted one: the longest time since a parameter was pushed."""
WINDOWS = 10
"""Spans sampled from a training run, spread over all of it."""
PERIODS = 30
"""Periods of a training run for predictions of single parameters."""
Samples = dict[str, Tensor]
Progress = Callable[[float, str], None]


def sample_blocks(trainer: Trainer, seed: int, told: Progress | None = None, most: int = 300) -> Samples:
    """Return blocks of convolutions and matrices, up to `most` of each span; S blocks in all.

    moved : movements of the parameters in LENGTH steps and the one to predict, (S, LENGTH + 1, BLOCK).
    values : before that one, (S, BLOCK). scale, spread : of their tensors then, see `predictor.features`, (S,).
    conv : (S,) bool.
    """
    draws = np.random.default_rng([seed, 3])
    kinds = kinds_of(trainer.model)
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
        if told is not None:
            told((number + 1) / steps, f"step {number + 1} of {steps}")
    return {name: torch.cat([span[name] for span in spans]) for name in spans[0]}


def sample_scalars(trainer: Trainer, seed: int, told: Progress | None = None, most: int = 3000) -> Samples:
    """Return single parameters at the ends of periods, up to `most` of each type and span; S in all.

    history : SEEN values, (S, SEEN). target : the value SEEN periods later, (S,). kind : index into KINDS, (S,).
    """
    draws = np.random.default_rng([seed, 4])
    kinds, steps = kinds_of(trainer.model), trainer.recipe.steps
    seen: list[dict[str, Tensor]] = []
    for number in range(steps):
        trainer.step()
        if (number + 1) % max(1, steps // PERIODS) == 0:
            now = list(trainer.model.parameters())
            seen.append(
                {
                    kind: torch.cat([now[at].detach().reshape(-1) for at, k in enumerate(kinds) if k == kind])
                    for kind in KINDS[:3]
                    if kind in kinds
                }
            )
        if told is not None:
            told((number + 1) / steps, f"step {number + 1} of {steps}")
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
        short = -states.shape[1] % BLOCK
        blocks = pad(steps, (0, short)).view(len(steps), -1, BLOCK).transpose(0, 1)
        moved.append(blocks)
        values.append(pad(states[-2], (0, short)).view(-1, BLOCK))
        scales.append(steps[-1].abs().mean().clamp(min=1e-12).expand(len(blocks)))
        spreads.append(states[-2].std(correction=0).clamp(min=1e-12).expand(len(blocks)))
        kinds.append(torch.full((len(blocks),), is_conv))
    columns = {"moved": moved, "values": values, "scale": scales, "spread": spreads, "conv": kinds}
    count = sum(map(len, values))
    rows = torch.from_numpy(np.sort(draws.permutation(count)[:most]))
    return {name: torch.cat(list(column))[rows].clone() for name, column in columns.items()}
