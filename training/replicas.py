"""Keeps and updates separate parameters for each worker, which differ after losses, partial pulls or asynchronous
pulls.

One model serves all workers: to compute a worker's gradients, its parameters are put into the model and the server's,
which are the model's own, are restored afterwards (`Copies`). `Replicas` are for workers of which not all received
everything; each then has separate buffers, too.

With servers, parameters come back, and the servers' copies are the true ones. A worker computes with what it received:
a lost parameter keeps its value (`stale`), or is zero, until the next one arrives. So errors do not add up.

In a ring, gradients come back. Every worker makes its own update with its own momentum, so workers that lost different
gradients drift apart until they are resynchronised (`together`).

Copies are made at the first loss on the way back; until then there is one model. From then on each worker also has
separate batch-norm statistics, because those of other parameters would not fit.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from gradwire.training.backward.worker_gradients import Gradients, buffers_of, restore_buffers, sequential_gradients
from gradwire.training.precision import Loss
from gradwire.training.reducers.state import cloned

MakeOptimizer = Callable[[list[Tensor]], Optimizer]


def slice_of(step: tuple[tuple[Tensor, ...], Tensor], worker: int, workers: int) -> tuple[tuple[Tensor, ...], Tensor]:
    """Return (inputs, targets) of one worker from those of all."""
    inputs, targets = step
    return tuple(tensor.chunk(workers)[worker] for tensor in inputs), targets.chunk(workers)[worker]


def clipped(gradients: Sequence[Tensor], most: float) -> list[Tensor]:
    """Return gradients scaled down to a norm, of all of them together; 0: no clipping."""
    if not most:
        return list(gradients)
    norm = float(torch.stack([gradient.norm() for gradient in gradients]).norm())
    return [gradient * min(1.0, most / max(norm, 1e-30)) for gradient in gradients]


def descend(
    optimizer: Optimizer, parameters: Sequence[Tensor], gradients: Iterable[Tensor], rate: float, clip: float
) -> None:
    """Update parameters by their gradients, scaled down to the norm `clip` unless it is 0."""
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient
    if clip:
        nn.utils.clip_grad_norm_(parameters, clip)
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.step()


class Copies:
    """The parameters of N workers, at first equal to the model's.

    values : by worker, by parameter in the order of `model.parameters()`; tensors that may be changed in place.
    """

    def __init__(self, model: nn.Module, workers: int) -> None:
        self.model = model
        self.values = [[parameter.detach().clone() for parameter in model.parameters()] for _ in range(workers)]

    @contextmanager
    def of(self, worker: int) -> Iterator[None]:
        """Put a worker's parameters into the model: `with copies.of(worker)`. Changes of buffers inside the context are
        the model's."""
        parameters = list(self.model.parameters())
        originals = [parameter.data for parameter in parameters]
        try:
            for parameter, value in zip(parameters, self.values[worker], strict=True):
                parameter.data = value
            yield
        finally:
            for parameter, value in zip(parameters, originals, strict=True):
                parameter.data = value

    def gradients(
        self, worker: int, loss: Loss, inputs: tuple[Tensor, ...], targets: Tensor
    ) -> tuple[float, list[Tensor]]:
        """Return (loss, gradients) of one worker's samples at its own parameters."""
        with self.of(worker):
            losses, gradients = sequential_gradients(self.model, loss, inputs, targets, 1)
        return losses[0], gradients[0]

    def state_dict(self) -> list[list[Tensor]]:
        return cloned(self.values)  # type: ignore[no-any-return]

    def load_state_dict(self, saved: Sequence[Sequence[Tensor]]) -> None:
        for row, saved_row in zip(self.values, saved, strict=True):
            for value, saved_value in zip(row, saved_row, strict=True):
                value.copy_(saved_value)


class Replicas(Copies):
    """N copies of a model's parameters and buffers.

    buffers : by worker, by name.
    optimizers : one per worker, if workers make their own updates.
    """

    def __init__(self, model: nn.Module, workers: int) -> None:
        super().__init__(model, workers)
        self.buffers = [buffers_of(model) for _ in range(workers)]
        self.optimizers: list[Optimizer] = []

    def with_optimizers(self, make: MakeOptimizer, state: dict[str, Any]) -> None:
        """Give every worker an optimiser in the given state."""
        self.optimizers = [make(values) for values in self.values]
        for optimizer in self.optimizers:
            optimizer.load_state_dict(copy.deepcopy(state))

    def answers(self, loss: Loss, inputs: tuple[Tensor, ...], targets: Tensor) -> tuple[list[float], Gradients]:
        """Return the loss and the gradients of each worker at its own parameters; arguments as in
        `sequential_gradients`."""
        count = len(self.values)
        results = [self.gradients(worker, loss, *slice_of((inputs, targets), worker, count)) for worker in range(count)]
        for name, value in self.model.named_buffers():
            stacked = torch.stack([buffers[name] for buffers in self.buffers])
            value.copy_(stacked.mean(dim=0) if stacked.is_floating_point() else stacked[0])
        return [loss for loss, _ in results], [gradients for _, gradients in results]

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
        for number, (values, optimizer) in enumerate(zip(self.values, self.optimizers, strict=True)):
            # clipping scales gradients in place
            mean = (tensor.clone() for tensor in means[0]) if len(means) == 1 else means[number]
            descend(optimizer, values, mean, rate, clip)
        with torch.no_grad():
            for parameter, copies in zip(self.model.parameters(), zip(*self.values, strict=True), strict=True):
                parameter.copy_(torch.stack(copies).mean(dim=0))

    def copy_model_to_all(self) -> None:
        """Give all workers the parameters and buffers of the model."""
        self.pull((), "stale")
        self.buffers = [buffers_of(self.model) for _ in self.buffers]

    def distance_from_mean(self) -> tuple[float, float]:
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

    def state_dict(self) -> Any:
        optimizers = [copy.deepcopy(optimizer.state_dict()) for optimizer in self.optimizers]
        return {"values": super().state_dict(), "buffers": cloned(self.buffers), "optimizers": optimizers}

    def resume(self, saved: dict[str, Any], make: MakeOptimizer) -> None:
        """Resume from a state, with optimisers like those that `make` returns."""
        self.load_state_dict(saved["values"])
        self.buffers = cloned(saved["buffers"])
        self.optimizers = [make(values) for values, _ in zip(self.values, saved["optimizers"], strict=False)]
        for optimizer, state in zip(self.optimizers, saved["optimizers"], strict=True):
            optimizer.load_state_dict(copy.deepcopy(state))
