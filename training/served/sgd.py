"""Stochastic gradient descent as torch has it, for workers that keep a momentum of their own."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gradwire.training.recipe import Recipe


def descends(recipe: Recipe) -> None:
    """ValueError for another optimiser, of which whoever updates parameters by these functions would know nothing."""
    if recipe.optimizer != "sgd":
        raise ValueError(f"optimizer = {recipe.optimizer!r} is not how parameters are updated here; expected sgd")


def clipped(gradients: Sequence[Tensor], most: float) -> list[Tensor]:
    """Gradients scaled down to a norm, of all of them together; 0 leaves them as they are."""
    if not most:
        return list(gradients)
    norm = float(torch.stack([each.norm() for each in gradients]).norm())
    return [each * min(1.0, most / max(norm, 1e-30)) for each in gradients]


def moves(
    recipe: Recipe, values: Sequence[Tensor], gradients: Sequence[Tensor], velocity: Sequence[Tensor]
) -> tuple[list[Tensor], list[Tensor]]:
    """(what is subtracted from parameters, times the learning rate; the new velocity), as `torch.optim.SGD` does.

    velocity : of before; empty in the first step, and where there is no momentum.
    """
    found, new = [], []
    for at, (value, gradient) in enumerate(zip(values, clipped(gradients, recipe.clip), strict=True)):
        move = gradient + recipe.weight_decay * value
        if recipe.momentum:
            new.append(recipe.momentum * velocity[at] + move if velocity else move)
            move = move + recipe.momentum * new[-1] if recipe.nesterov else new[-1]
        found.append(move)
    return found, new
