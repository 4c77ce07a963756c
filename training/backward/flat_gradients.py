"""Holds all workers' gradients, and the reducers' state, as rows of one matrix over all tensors of the model.

Tensor by tensor and worker by worker, ResNet-20 with eight workers takes 520 encodings of a dozen small operations
each, and a GPU spends far more time on launching than on computing them. If nothing is lost and encoding time does not
count, most reducers can process everything at once, with the same bits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, pairwise
from math import prod
from typing import NamedTuple

from gradwire.scenarios.lazily import Tensor, torch
from gradwire.traces.parts import TensorInfo
from gradwire.training.reducers.state import State, flat


class StackedGradients(Sequence[list["Tensor"]]):
    """Gradients by worker, by parameter, as views of one matrix.

    matrix : (N, P), a worker's P elements in a row. shapes : of the T parameters.
    """

    def __init__(self, matrix: Tensor, shapes: Sequence[Sequence[int]]) -> None:
        self.matrix, self.shapes = matrix, shapes
        self._numels = [prod(shape) for shape in shapes]

    def __len__(self) -> int:
        return len(self.matrix)

    def __getitem__(self, worker: int) -> list[Tensor]:  # type: ignore[override]
        parts = self.matrix[worker].split(self._numels)
        return [part.view(shape) for part, shape in zip(parts, self.shapes, strict=True)]

    def __iter__(self) -> Iterator[list[Tensor]]:
        return (self[worker] for worker in range(len(self)))


def matrix_of(gradients: Sequence[Sequence[Tensor]]) -> Tensor:
    """Return gradients of N workers and T tensors as float32 (N, P)."""
    if isinstance(gradients, StackedGradients):
        return gradients.matrix.float()
    return torch.stack([torch.cat([flat(gradient) for gradient in worker_gradients]) for worker_gradients in gradients])


class EncodedModels(NamedTuple):
    """Encodings of whole models by all workers.

    sent : decoded, (N, P).
    nbytes : payload of each worker, N numbers.
    answer : bytes with which a server answers one worker; None if they depend on the mean
        (`gradwire.training.exchange.exchange_stats.answer_bytes`).
    """

    sent: Tensor
    nbytes: list[int]
    answer: int | None = None


@dataclass
class FlatGradients:
    """The reducers' state of N workers' T tensors between steps; P elements of a worker in a row.

    infos, workers, seed : as of an `Exchange`. device : of the gradients.
    step : steps done.
    values : (N, P) by name, such as residuals.
    """

    infos: Sequence[TensorInfo]
    workers: int
    seed: int
    device: torch.device
    step: int = 0
    values: dict[str, Tensor] = field(default_factory=dict)

    @cached_property
    def bounds(self) -> list[tuple[int, int]]:
        """The (first, end) element of each tensor."""
        return list(pairwise(accumulate((info.numel for info in self.infos), initial=0)))

    @cached_property
    def owners(self) -> Tensor:
        """The number of each element's tensor, (P,)."""
        numels = torch.tensor([info.numel for info in self.infos])
        return torch.arange(len(self.infos)).repeat_interleave(numels).to(self.device)

    @cached_property
    def _last(self) -> Tensor:
        return torch.tensor([end - 1 for _, end in self.bounds], device=self.device)

    def counts(self, chosen: Tensor) -> Tensor:
        """Return the number of chosen elements of each tensor, (R, T), given a mask (R, P)."""
        until = chosen.int().cumsum(1)[:, self._last]
        return torch.diff(until, dim=1, prepend=until.new_zeros(len(until), 1))

    def repeat_per_element(self, numbers: Tensor) -> Tensor:
        """Repeat a number of each tensor, (R, T), for each of its elements, (R, P)."""
        return numbers[:, self.owners]

    def largest(self, sizes: Tensor, counts: Sequence[int]) -> Tensor:
        """Return the positions in (N x P,) of the `counts` largest elements of each tensor in each row, in any
        order."""
        rows, width = sizes.shape
        columns = [
            sizes[:, begin:end].topk(count, sorted=False).indices + begin
            for (begin, end), count in zip(self.bounds, counts, strict=True)
        ]
        first = torch.arange(rows, device=self.device)[:, None] * width
        return (torch.cat(columns, dim=1) + first).view(-1)

    def generator(self, tensor: int, worker: int) -> torch.Generator:
        """Return the random generator of that worker's tensor in this step."""
        return State(self.seed, worker, tensor, self.workers, self.step).generator(self.device)

    def shared(self, tensor: int) -> torch.Generator:
        """Return the random generator of that tensor in this step that all workers share."""
        return State(self.seed, 0, tensor, self.workers, self.step).shared(self.device)

    def take(self, states: Sequence[Sequence[State]]) -> None:
        """Take over the state of each worker and tensor, N x T."""
        self.step = states[0][0].step
        names = states[0][0].values
        self.values = {
            name: matrix_of([[state.values[name] for state in worker_states] for worker_states in states])
            for name in names
        }

    def copy_back(self, states: Sequence[Sequence[State]]) -> None:
        """Copy the state back to each worker and tensor, N x T."""
        for worker, worker_states in enumerate(states):
            for state, (begin, end) in zip(worker_states, self.bounds, strict=True):
                state.step = self.step
                state.values = {name: value[worker, begin:end].clone() for name, value in self.values.items()}
