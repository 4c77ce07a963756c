"""Stochastic gradient descent as in torch, for workers that keep their own momentum."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gradwire.training.recipe import Recipe


def check_sgd(recipe: Recipe) -> None:
    """Raise ValueError for another optimiser than SGD, which these functions do not implement."""
    if recipe.optimizer != "sgd":
        raise ValueError(f"optimizer = {recipe.optimizer!r} is not supported by this system; expected sgd")


def clip(gradients: Sequence[Tensor], most: float) -> list[Tensor]:
    """Return gradients scaled down to a norm, of all of them together; 0: no clipping."""
    if not most:
        return list(gradients)
    norm = float(torch.stack([gradient.norm() for gradient in gradients]).norm())
    return [gradient * min(1.0, most / max(norm, 1e-30)) for gradient in gradients]


def moves(
    recipe: Recipe, values: Sequence[Tensor], gradients: Sequence[Tensor], velocity: Sequence[Tensor]
) -> tuple[list[Tensor], list[Tensor]]:
    """Return (moves, to be subtracted times the learning rate; new velocity), as `torch.optim.SGD` does.

    velocity : the previous one; empty in the first step, and without momentum.
    """
    new_moves, new_velocity = [], []
    for at, (value, gradient) in enumerate(zip(values, clip(gradients, recipe.clip), strict=True)):
        move = gradient + recipe.weight_decay * value
        if recipe.momentum:
            new_velocity.append(recipe.momentum * velocity[at] + move if velocity else move)
            move = move + recipe.momentum * new_velocity[-1] if recipe.nesterov else new_velocity[-1]
        new_moves.append(move)
    return new_moves, new_velocity
