"""The parameters of each worker by itself, where workers do not all know the same.

One model serves all of them: to work out a worker's gradients, its parameters are put into the model, and those of the
server, which are the model's own, come back afterwards (`Copies`). What a model has besides, the statistics of batch
norms, is either the model's, moved by all, or the workers' own (`gradwire.training.replicas`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

Buffers = dict[str, Tensor]
"""Buffers of a model by name, such as the running statistics of a batch norm."""


class Copies:
    """What N workers believe the parameters to be; in the beginning what they are.

    values : by worker, by parameter, in the order of `model.parameters()`; tensors that may be changed in place.
    """

    def __init__(self, model: nn.Module, workers: int) -> None:
        self.model = model
        self.values = [[each.detach().clone() for each in model.parameters()] for _ in range(workers)]

    @contextmanager
    def of(self, worker: int) -> Iterator[None]:
        """The model with that worker's parameters: `with copies.of(worker)`. What becomes of its buffers in there is
        the model's."""
        parameters = list(self.model.parameters())
        own = [each.data for each in parameters]
        try:
            for parameter, value in zip(parameters, self.values[worker], strict=True):
                parameter.data = value
            yield
        finally:
            for parameter, value in zip(parameters, own, strict=True):
                parameter.data = value

    def state_dict(self) -> list[list[Tensor]]:
        """Everything, for a checkpoint."""
        return [[each.clone() for each in row] for row in self.values]

    def load_state_dict(self, saved: Sequence[Sequence[Tensor]]) -> None:
        """Go on from there."""
        for row, theirs in zip(self.values, saved, strict=True):
            for each, their in zip(row, theirs, strict=True):
                each.copy_(their)


def buffers_of(model: nn.Module) -> Buffers:
    """A copy of a model's buffers."""
    return {name: value.clone() for name, value in model.named_buffers()}


def put_back(model: nn.Module, buffers: Buffers) -> None:
    """Give a model its buffers of before."""
    for name, value in model.named_buffers():
        value.copy_(buffers[name])


def share_out(model: nn.Module, before: Buffers, after: Sequence[Buffers], workers: int) -> None:
    """Move a model's buffers from `before` by what some of N workers moved them, each by an N-th.

    With all N it is the mean of what they have, which synchronous training has as well; counts are the last one's.
    What is the same for all stays so to the bit.
    """
    for name, value in model.named_buffers():
        moved = [each[name] for each in after]
        if not value.is_floating_point():
            value.copy_(moved[-1])
        elif len(moved) < workers:
            value.copy_(before[name] + sum(each - before[name] for each in moved) / workers)
        elif all(torch.equal(each, moved[0]) for each in moved):
            value.copy_(moved[0])
        else:
            value.copy_(torch.stack(moved).mean(dim=0))


def slice_of(
    step: tuple[tuple[Tensor, ...], Tensor], worker: int, workers: int
) -> tuple[tuple[Tensor, ...], Tensor]:
    """(inputs, targets) of one worker out of those of all."""
    inputs, targets = step
    return tuple(each.chunk(workers)[worker] for each in inputs), targets.chunk(workers)[worker]
