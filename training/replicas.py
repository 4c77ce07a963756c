"""Separate parameters of each worker, where not all of them received everything.

With servers, parameters come back, and the servers' copies are the true ones. A worker computes with what it received:
a lost parameter keeps its value (`stale`), or is zero, until the next one arrives. So errors do not add up.

In a ring, gradients come back. Every worker makes its own update with its own momentum, so workers that lost different
gradients drift apart until they are resynchronised (`together`).

Copies are made at the first loss on the way back; until then there is one model. From then on each worker also has
separate batch-norm statistics, because those of other parameters would not fit.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn

from gradwire.training.backward.worker_gradients import Gradients, Loss, gradients_of_worker
from gradwire.training.worker_copies import Copies, buffers_of, restore_buffers, slice_of

MakeOptimizer = Callable[[list[Tensor]], torch.optim.Optimizer]


class Replicas(Copies):
    """N copies of a model's parameters and buffers.

    Attributes
    ----------
    buffers : by worker, by name.
    optimizers : one per worker, if workers make their own updates.
    """

    def __init__(self, model: nn.Module, workers: int) -> None:
        super().__init__(model, workers)
        self.buffers = [buffers_of(model) for _ in range(workers)]
        self.optimizers: list[torch.optim.Optimizer] = []

    def with_optimizers(self, make: MakeOptimizer, state: dict[str, Any]) -> None:
        """Give every worker an optimiser in the given state."""
        self.optimizers = [make(values) for values in self.values]
        for optimizer in self.optimizers:
            optimizer.load_state_dict(copy.deepcopy(state))

    def answers(self, loss: Loss, inputs: tuple[Tensor, ...], targets: Tensor) -> tuple[list[float], Gradients]:
        """Return the loss and the gradients of each worker at its own parameters; arguments as in `of_each_in_turn`."""
        losses: list[float] = []
        gradients: list[list[Tensor]] = []
        count = len(self.values)
        for worker in range(count):
            worker_loss, worker_gradients = gradients_of_worker(
                self, worker, loss, *slice_of((inputs, targets), worker, count)
            )
            losses.append(worker_loss)
            gradients.append(worker_gradients)
        for name, value in self.model.named_buffers():
            stacked = torch.stack([buffers[name] for buffers in self.buffers])
            value.copy_(stacked.mean(dim=0) if stacked.is_floating_point() else stacked[0])
        return losses, gradients

    def pull(self, masks: Sequence[Sequence[Tensor | None]], fill: Literal["stale", "zero"]) -> None:
        """Copy the model's parameters to the workers, as far as they arrived.

        masks : by worker and parameter, the elements that arrived, flat bool; None if all did. An empty sequence:
            everything.
        """
        for number, worker_values in enumerate(self.values):
            for tensor, (value, current) in enumerate(zip(worker_values, self.model.parameters(), strict=True)):
                mask = masks[number][tensor] if masks else None
                with torch.no_grad():
                    if mask is None:
                        value.copy_(current)
                        continue
                    arrived = mask.view(value.shape)
                    value.copy_(torch.where(arrived, current, value if fill == "stale" else torch.zeros_like(value)))

    def update(self, means: Sequence[Sequence[Tensor]], rate: float, clip: float) -> None:
        """Update each worker by its own mean, and set the model to the mean of the copies.

        means : N of them, or one that all workers share.
        """
        for number, (worker_values, optimizer) in enumerate(zip(self.values, self.optimizers, strict=True)):
            for parameter, mean in zip(worker_values, means[number if len(means) > 1 else 0], strict=True):
                parameter.grad = mean.clone() if len(means) == 1 else mean
            if clip:
                nn.utils.clip_grad_norm_(worker_values, clip)
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.step()
        self._mean_into_model()

    def together(self) -> None:
        """Give all workers the parameters and buffers of the model."""
        self.pull((), "stale")
        self.buffers = [buffers_of(self.model) for _ in self.buffers]

    def apart(self) -> tuple[float, float]:
        """Return the distance of the workers' parameters from their mean: (maximum, root mean square)."""
        largest, total, count = 0.0, 0.0, 0
        for copies in zip(*self.values, strict=True):
            stacked = torch.stack(copies)
            offset = stacked - stacked.mean(dim=0)
            largest = max(largest, float(offset.abs().max()))
            total += float(offset.double().square().sum())
            count += offset.numel()
        return largest, (total / count) ** 0.5

    @contextmanager
    def of(self, worker: int) -> Iterator[None]:
        """Put a worker's parameters and buffers into the model; changes of the buffers inside the context are the
        worker's."""
        statistics = buffers_of(self.model)
        restore_buffers(self.model, self.buffers[worker])
        try:
            with super().of(worker):
                yield
        finally:
            self.buffers[worker] = buffers_of(self.model)
            restore_buffers(self.model, statistics)

    def all_of_it(self) -> dict[str, Any]:
        return {
            "values": self.state_dict(),
            "buffers": [{name: value.clone() for name, value in buffers.items()} for buffers in self.buffers],
            "optimizers": [copy.deepcopy(optimizer.state_dict()) for optimizer in self.optimizers],
        }

    def go_on_from(self, saved: dict[str, Any], make: MakeOptimizer) -> None:
        self.load_state_dict(saved["values"])
        self.buffers = [{name: value.clone() for name, value in buffers.items()} for buffers in saved["buffers"]]
        self.optimizers = [
            make(worker_values) for worker_values, _ in zip(self.values, saved["optimizers"], strict=False)
        ]
        for optimizer, state in zip(self.optimizers, saved["optimizers"], strict=True):
            optimizer.load_state_dict(copy.deepcopy(state))

    def _mean_into_model(self) -> None:
        with torch.no_grad():
            for parameter, copies in zip(self.model.parameters(), zip(*self.values, strict=True), strict=True):
                parameter.copy_(torch.stack(copies).mean(dim=0))
