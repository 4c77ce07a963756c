"""Samples blocks of parameters from ordinary training runs, and fits MP2's predictor to them, one epoch per call.

A server is imagined beside a training run that gets its parameters in rotation. What it would know of some blocks
is what the network sees, and what they really are is what it learns.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gradwire.training.parameter_server.block_predictor import BLOCK, BLOCKED, features
from gradwire.training.parameter_server.local_models import flattened
from gradwire.training.parameter_server.move_history import MoveHistory
from gradwire.training.parameter_server.predictor import kinds_of
from gradwire.training.parameter_server.selections import Rotation, flat_positions
from gradwire.training.reducers.base import group_units
from gradwire.training.trainer import Trainer

PERIOD = 9
"""Steps in which every parameter is exchanged once, as `MP2.period` by default."""
SPANS = 60
"""Steps that are sampled, spread over a training run."""
BATCH = 256
Samples = dict[str, Tensor]
Progress = Callable[[float, str], None]


def sample_blocks(trainer: Trainer, seed: int, on_progress: Progress | None = None, most: int = 200) -> Samples:
    """Return blocks of convolutions and matrices, up to `most` of each sampled step; S blocks in all.

    x : features, (S, CHANNELS, BLOCK). target : velocities since the last exchange of each element, in units of its
    tensor's, (S, BLOCK). age : of each element, in units of the oldest, (S, BLOCK); 0 if it is known. scale : how far
    the oldest moves if its velocity is 1, relative to the norm of all parameters, (S, 1).
    """
    draws, steps = np.random.default_rng([seed, 3]), trainer.recipe.steps
    kinds = kinds_of(trainer.model)
    selection = Rotation(trainer.infos, seed, trainer.device, 1 / PERIOD)
    history = MoveHistory(_parameters(trainer), selection.sizes)
    sampled = {round(3 * PERIOD + (span + 0.5) * (steps - 3 * PERIOD) / SPANS) for span in range(SPANS)}
    rows: list[Samples] = []
    for number in range(steps):
        trainer.step()
        rate, now = trainer.recipe.rate_at(number), _parameters(trainer)
        history.rates += rate
        positions = flat_positions(selection.choose(number), selection.sizes)
        history.record(positions, now[positions])
        if number in sampled and rate:
            rows.append(_rows(history, now, kinds, draws, most))
        if on_progress is not None:
            on_progress((number + 1) / steps, f"step {number + 1} of {steps}")
    return {name: torch.cat([row[name] for row in rows]) for name in rows[0]}


def _parameters(trainer: Trainer) -> Tensor:
    return flattened([parameter.detach() for parameter in trainer.model.parameters()])


def _rows(history: MoveHistory, now: Tensor, kinds: list[str], draws: np.random.Generator, most: int) -> Samples:
    """Return random blocks of one step."""
    blocks = features(history, kinds)
    parts = zip(history.values.split(history.sizes), now.split(history.sizes), kinds, strict=True)
    moved = torch.cat([group_units(before - after, BLOCK) for before, after, kind in parts if kind in BLOCKED])
    chosen = torch.from_numpy(np.sort(draws.permutation(len(moved))[:most]))
    passed, scale, oldest = blocks.passed[chosen], blocks.scale[chosen], history.passed().max()
    target = torch.where(passed > 0, moved[chosen] / (passed * scale).clamp(min=1e-30), 0)
    return {"x": blocks.x[chosen], "target": target, "age": passed / oldest, "scale": scale * oldest / now.norm()}


def train_epoch(net: nn.Module, adam: Any, samples: Samples, draws: torch.Generator) -> None:
    """Fit a network to all samples once. The loss is the mean distance of moves (L1)."""
    for rows in torch.randperm(len(samples["x"]), generator=draws).split(BATCH):
        off = (net(samples["x"][rows]) - samples["target"][rows]) * samples["age"][rows]
        adam.zero_grad()
        off.abs().mean().backward()
        adam.step()


@torch.no_grad()
def block_errors(net: nn.Module, samples: Samples) -> dict[str, float]:
    """Return the relative distance (L2) of unknown parameters from the truth: predicted, and with the last velocity
    held. Staying where they were last known is 1."""
    weight = samples["age"] * samples["scale"]
    size = (samples["target"] * weight).norm()
    guesses = {"predicted": net(samples["x"]), "hold": samples["x"][:, 0]}
    return {name: float(((guess - samples["target"]) * weight).norm() / size) for name, guess in guesses.items()}
