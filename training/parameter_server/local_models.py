"""`LocalModels` holds N workers' own models, makes their optimiser steps, and exchanges parts of their parameters with
a server.

They are the rows of one matrix, so that one operation serves all tensors. Each worker also keeps the values that it had
in common with the server last, element by element: what it pushes is its move since then.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gradwire.training.recipe import Recipe
from gradwire.training.replicas import Copies, clipped


class LocalModels(Copies):
    """The parameters and optimiser states of N workers, at first equal to the model's; n parameters.

    flat : (N, n), the workers' parameters; `values` are views of it, tensor by tensor.
    common : (N, n), what each worker and the server had in common last.
    first : (N, n), the momentum of SGD, in the direction of the gradient, or Adam's first moment.
    second : (N, n), Adam's second moment; (0,) with SGD.
    turns : local steps of each worker.
    """

    def __init__(self, model: nn.Module, recipe: Recipe) -> None:
        super().__init__(model, 0)
        self.recipe = recipe
        parameters = list(model.parameters())
        self.flat = flattened([parameter.detach() for parameter in parameters]).repeat(recipe.workers, 1)
        self.values = [views_of(row, parameters) for row in self.flat]
        self.common = self.flat.clone()
        self.first = torch.zeros_like(self.flat)
        self.second = torch.zeros_like(self.flat) if recipe.optimizer == "adamw" else self.flat.new_empty(0)
        self.turns = [0] * recipe.workers

    def local_step(self, worker: int, gradients: Sequence[Tensor], rate: float) -> None:
        """Make one step of a worker's optimiser, as `torch.optim.SGD` or `torch.optim.AdamW` does."""
        recipe, value, first = self.recipe, self.flat[worker], self.first[worker]
        gradient = flattened(clipped(gradients, recipe.clip))
        self.turns[worker] += 1
        if recipe.optimizer == "adamw":
            turn, (decay, second_decay) = self.turns[worker], recipe.betas
            value.mul_(1 - rate * recipe.weight_decay)
            first.lerp_(gradient, 1 - decay)
            second = self.second[worker].mul_(second_decay).addcmul_(gradient, gradient, value=1 - second_decay)
            spread = (second / (1 - second_decay**turn)).sqrt_().add_(recipe.epsilon)
            value.addcdiv_(first, spread, value=-rate / (1 - decay**turn))
            return
        gradient.add_(value, alpha=recipe.weight_decay)
        if recipe.momentum:
            first.mul_(recipe.momentum).add_(gradient)
            gradient = gradient.add_(first, alpha=recipe.momentum) if recipe.nesterov else first
        value.sub_(gradient, alpha=rate)

    def moves(self, worker: int, positions: Tensor) -> Tensor:
        """Return how far a worker's elements have moved since they were last common, (positions,)."""
        return self.flat[worker][positions] - self.common[worker][positions]

    def pull(self, worker: int, positions: Tensor, values: Tensor, kept: Tensor | None = None) -> None:
        """Give a worker the server's values of some elements.

        kept : the part of the worker's move that it keeps on top of them; none if absent.
        """
        self.common[worker][positions] = values
        self.flat[worker][positions] = values if kept is None else values + kept

    def state_dict(self) -> Any:
        names = ("flat", "common", "first", "second")
        return {**{name: getattr(self, name).clone() for name in names}, "turns": list(self.turns)}

    def load_state_dict(self, saved: Any) -> None:
        for name in ("flat", "common", "first", "second"):
            getattr(self, name).copy_(saved[name])
        self.turns = list(saved["turns"])


def flattened(tensors: Sequence[Tensor]) -> Tensor:
    """Return tensors as one vector, copied."""
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


def views_of(vector: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """Return the parts of a vector as views with the shapes of other tensors."""
    parts = vector.split([tensor.numel() for tensor in like])
    return [part.view(tensor.shape) for part, tensor in zip(parts, like, strict=True)]
