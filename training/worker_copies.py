"""Copies of the parameters for each worker, where workers have different ones.

One model serves all workers: to compute a worker's gradients, its parameters are put into the model and the server's,
which are the model's own, are restored afterwards (`Copies`). Buffers, such as batch-norm statistics, belong either to
the model and are moved by all workers, or to the workers (`gradwire.training.replicas`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

Buffers = dict[str, Tensor]
"""Buffers of a model by name, such as running statistics of a batch norm."""


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

    def state_dict(self) -> list[list[Tensor]]:
        return [[value.clone() for value in row] for row in self.values]

    def load_state_dict(self, saved: Sequence[Sequence[Tensor]]) -> None:
        for row, saved_row in zip(self.values, saved, strict=True):
            for value, saved_value in zip(row, saved_row, strict=True):
                value.copy_(saved_value)


def buffers_of(model: nn.Module) -> Buffers:
    """Return a copy of a model's buffers."""
    return {name: value.clone() for name, value in model.named_buffers()}


def restore_buffers(model: nn.Module, buffers: Buffers) -> None:
    """Restore a model's buffers."""
    for name, value in model.named_buffers():
        value.copy_(buffers[name])


def merge_buffers(model: nn.Module, before: Buffers, after: Sequence[Buffers], workers: int) -> None:
    """Set a model's buffers to `before` plus an N-th of each worker's change. With all N workers it is the mean of
    their buffers, as in synchronous training; integer counters take the last worker's value. Values that are equal for
    all workers stay so to the bit."""
    for name, value in model.named_buffers():
        values = [buffers[name] for buffers in after]
        if not value.is_floating_point():
            value.copy_(values[-1])
        elif len(values) < workers:
            value.copy_(before[name] + sum(buffers - before[name] for buffers in values) / workers)
        elif all(torch.equal(buffers, values[0]) for buffers in values):
            value.copy_(values[0])
        else:
            value.copy_(torch.stack(values).mean(dim=0))


def slice_of(step: tuple[tuple[Tensor, ...], Tensor], worker: int, workers: int) -> tuple[tuple[Tensor, ...], Tensor]:
    """Return (inputs, targets) of one worker from those of all."""
    inputs, targets = step
    return tuple(tensor.chunk(workers)[worker] for tensor in inputs), targets.chunk(workers)[worker]
