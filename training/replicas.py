"""Replicas that differ: the workers' own copies of the parameters, where not all of them got everything back.

With servers, parameters come back, and these are true at the servers. A worker computes with what it got: a parameter
that was lost stays what it was there (`stale`), or is zero, until one arrives. So errors do not add up.

In a ring, gradients come back. Every worker makes its own update of them, with a momentum of its own, and so workers
that lost different ones go different ways for good, until they are brought together (`together`).

Copies are made when something is lost on the way back for the first time; until then there is one model. From then on
workers have statistics of batch norms of their own, too: those of another one's parameters would not fit theirs.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn

from gradwire.training.gradients import Gradients, Loss, of_each_in_turn

MakeOptimizer = Callable[[list[nn.Parameter]], torch.optim.Optimizer]


class Replicas:
    """N copies of the parameters of a model.

    Attributes
    ----------
    values : by worker, by parameter.
    buffers : by worker, by name, what is no parameter.
    optimizers : one for each worker, where workers make their own updates.
    """

    def __init__(self, model: nn.Module, workers: int) -> None:
        self.model = model
        self.values = [[nn.Parameter(each.detach().clone()) for each in model.parameters()] for _ in range(workers)]
        self.buffers = [_buffers(model) for _ in range(workers)]
        self.optimizers: list[torch.optim.Optimizer] = []

    def with_optimizers(self, make: MakeOptimizer, state: dict[str, Any]) -> None:
        """Give every worker an optimiser that is where another one is."""
        self.optimizers = [make(mine) for mine in self.values]
        for each in self.optimizers:
            each.load_state_dict(copy.deepcopy(state))

    def gradients(self, loss: Loss, inputs: tuple[Tensor, ...], targets: Tensor) -> tuple[list[float], Gradients]:
        """The loss and the gradients of each worker at its own parameters; arguments as in `of_each_in_turn`."""
        losses: list[float] = []
        gradients: Gradients = []
        count = len(self.values)
        for worker, *slices in zip(
            range(count), *[each.chunk(count) for each in (*inputs, targets)], strict=True
        ):
            with self.lent(worker):
                found, theirs = of_each_in_turn(self.model, loss, tuple(slices[:-1]), slices[-1], 1)
            losses += found
            gradients += theirs
        for name, value in self.model.named_buffers():
            every = torch.stack([each[name] for each in self.buffers])
            value.copy_(every.mean(dim=0) if every.is_floating_point() else every[0])
        return losses, gradients

    def pull(self, masks: Sequence[Sequence[Tensor | None]], fill: Literal["stale", "zero"]) -> None:
        """Take over the parameters of the model, as far as they arrived.

        masks : by worker and parameter which elements did, flat bool; None where all did. None at all: everything.
        """
        for number, mine in enumerate(self.values):
            for tensor, (value, true) in enumerate(zip(mine, self.model.parameters(), strict=True)):
                mask = masks[number][tensor] if masks else None
                with torch.no_grad():
                    if mask is None:
                        value.copy_(true)
                        continue
                    there = mask.view(value.shape)
                    value.copy_(torch.where(there, true, value if fill == "stale" else torch.zeros_like(value)))

    def update(self, means: Sequence[Sequence[Tensor]], rate: float, clip: float) -> None:
        """Each worker's own update by the mean that it has, of N or, if all have the same, of one. The model becomes
        the mean of the copies."""
        for number, (mine, optimizer) in enumerate(zip(self.values, self.optimizers, strict=True)):
            for parameter, mean in zip(mine, means[number if len(means) > 1 else 0], strict=True):
                parameter.grad = mean.clone() if len(means) == 1 else mean
            if clip:
                nn.utils.clip_grad_norm_(mine, clip)
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.step()
        self._mean_into_model()

    def together(self) -> None:
        """Give all workers the same parameters and statistics again: those of the model."""
        self.pull((), "stale")
        self.buffers = [_buffers(self.model) for _ in self.buffers]

    def apart(self) -> tuple[float, float]:
        """(largest, root mean square) distance of the workers' parameters from their mean."""
        largest, total, count = 0.0, 0.0, 0
        for copies in zip(*self.values, strict=True):
            every = torch.stack([each.detach() for each in copies])
            away = every - every.mean(dim=0)
            largest = max(largest, float(away.abs().max()))
            total += float(away.double().square().sum())
            count += away.numel()
        return largest, (total / count) ** 0.5

    @contextmanager
    def lent(self, worker: int) -> Iterator[nn.Module]:
        """The model with a worker's parameters and statistics: `with replicas.lent(worker)`. What becomes of these in
        there is the worker's."""
        own, statistics = [each.data for each in self.model.parameters()], _buffers(self.model)
        for parameter, value in zip(self.model.parameters(), self.values[worker], strict=True):
            parameter.data = value.data
        _put(self.model, self.buffers[worker])
        try:
            yield self.model
        finally:
            self.buffers[worker] = _buffers(self.model)
            _put(self.model, statistics)
            for parameter, before in zip(self.model.parameters(), own, strict=True):
                parameter.data = before

    def state_dict(self) -> dict[str, Any]:
        """Everything, for a checkpoint."""
        return {
            "values": [[each.detach().clone() for each in mine] for mine in self.values],
            "buffers": [{name: value.clone() for name, value in each.items()} for each in self.buffers],
            "optimizers": [copy.deepcopy(each.state_dict()) for each in self.optimizers],
        }

    def load_state_dict(self, saved: dict[str, Any], make: MakeOptimizer) -> None:
        """Go on from there."""
        with torch.no_grad():
            for mine, theirs in zip(self.values, saved["values"], strict=True):
                for value, their in zip(mine, theirs, strict=True):
                    value.copy_(their)
        self.buffers = [{name: value.clone() for name, value in each.items()} for each in saved["buffers"]]
        self.optimizers = [make(mine) for mine, _ in zip(self.values, saved["optimizers"], strict=False)]
        for each, their in zip(self.optimizers, saved["optimizers"], strict=True):
            each.load_state_dict(copy.deepcopy(their))

    def _mean_into_model(self) -> None:
        with torch.no_grad():
            for parameter, copies in zip(self.model.parameters(), zip(*self.values, strict=True), strict=True):
                parameter.copy_(torch.stack([each.detach() for each in copies]).mean(dim=0))


def _buffers(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in model.named_buffers()}


def _put(model: nn.Module, buffers: dict[str, Tensor]) -> None:
    for name, value in model.named_buffers():
        value.copy_(buffers[name])
