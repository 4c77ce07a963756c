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

from gradwire.training.copies import Copies, buffers_of, put_back, slice_of
from gradwire.training.gradients import Gradients, Loss, of_one

MakeOptimizer = Callable[[list[Tensor]], torch.optim.Optimizer]


class Replicas(Copies):
    """N copies of the parameters of a model, and of what is no parameter.

    Attributes
    ----------
    buffers : by worker, by name, what is no parameter.
    optimizers : one for each worker, where workers make their own updates.
    """

    def __init__(self, model: nn.Module, workers: int) -> None:
        super().__init__(model, workers)
        self.buffers = [buffers_of(model) for _ in range(workers)]
        self.optimizers: list[torch.optim.Optimizer] = []

    def with_optimizers(self, make: MakeOptimizer, state: dict[str, Any]) -> None:
        """Give every worker an optimiser that is where another one is."""
        self.optimizers = [make(mine) for mine in self.values]
        for each in self.optimizers:
            each.load_state_dict(copy.deepcopy(state))

    def answers(self, loss: Loss, inputs: tuple[Tensor, ...], targets: Tensor) -> tuple[list[float], Gradients]:
        """The loss and the gradients of each worker at its own parameters; arguments as in `of_each_in_turn`."""
        losses: list[float] = []
        gradients: list[list[Tensor]] = []
        count = len(self.values)
        for worker in range(count):
            found, theirs = of_one(self, worker, loss, *slice_of((inputs, targets), worker, count))
            losses.append(found)
            gradients.append(theirs)
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
        self.buffers = [buffers_of(self.model) for _ in self.buffers]

    def apart(self) -> tuple[float, float]:
        """(largest, root mean square) distance of the workers' parameters from their mean."""
        largest, total, count = 0.0, 0.0, 0
        for copies in zip(*self.values, strict=True):
            every = torch.stack(copies)
            away = every - every.mean(dim=0)
            largest = max(largest, float(away.abs().max()))
            total += float(away.double().square().sum())
            count += away.numel()
        return largest, (total / count) ** 0.5

    @contextmanager
    def of(self, worker: int) -> Iterator[None]:
        """The model with a worker's parameters and statistics. What becomes of these in there is the worker's."""
        statistics = buffers_of(self.model)
        put_back(self.model, self.buffers[worker])
        try:
            with super().of(worker):
                yield
        finally:
            self.buffers[worker] = buffers_of(self.model)
            put_back(self.model, statistics)

    def all_of_it(self) -> dict[str, Any]:
        """Everything, for a checkpoint."""
        return {
            "values": self.state_dict(),
            "buffers": [{name: value.clone() for name, value in each.items()} for each in self.buffers],
            "optimizers": [copy.deepcopy(each.state_dict()) for each in self.optimizers],
        }

    def go_on_from(self, saved: dict[str, Any], make: MakeOptimizer) -> None:
        """Go on from there."""
        self.load_state_dict(saved["values"])
        self.buffers = [{name: value.clone() for name, value in each.items()} for each in saved["buffers"]]
        self.optimizers = [make(mine) for mine, _ in zip(self.values, saved["optimizers"], strict=False)]
        for each, their in zip(self.optimizers, saved["optimizers"], strict=True):
            each.load_state_dict(copy.deepcopy(their))

    def _mean_into_model(self) -> None:
        with torch.no_grad():
            for parameter, copies in zip(self.model.parameters(), zip(*self.values, strict=True), strict=True):
                parameter.copy_(torch.stack(copies).mean(dim=0))
