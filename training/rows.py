"""Rows: the gradients of all workers side by side, one matrix of a whole model, and what reducers remember of them.

Tensor by tensor and worker by worker, ResNet-20 with eight workers is 520 encodings of a dozen small operations each,
and a GPU spends far more time on being handed these than on working them out. Where nothing is lost and no time of
encoding counts, most reducers can do all of it at once, and give the same bits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, pairwise
from math import prod
from typing import TYPE_CHECKING, NamedTuple

from gradwire.training.reducers.state import State, flat

if TYPE_CHECKING:
    import torch
    from torch import Generator, Tensor

    from gradwire.traces.trace import TensorInfo


class Stacked(Sequence[list["Tensor"]]):
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
    """Gradients of N workers and T tensors as float32 (N, P)."""
    import torch

    if isinstance(gradients, Stacked):
        return gradients.matrix.float()
    return torch.stack([torch.cat([flat(each) for each in mine]) for mine in gradients])


class Whole(NamedTuple):
    """What all workers send of whole models.

    sent : what a receiver makes of it, (N, P).
    nbytes : payload of each worker, N numbers.
    answer : bytes with which a server answers one worker; None where that depends on the mean
        (`gradwire.training.exchange.answer_bytes`).
    """

    sent: Tensor
    nbytes: list[int]
    answer: int | None = None


@dataclass
class Rows:
    """What is remembered of N workers' T tensors between steps; P elements of a worker in a row.

    infos, workers, seed : as of an `Exchange`. device : where gradients are.
    step : how many steps are behind it.
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
        """The first element of each tensor, and the one behind its last."""
        return list(pairwise(accumulate((info.numel for info in self.infos), initial=0)))

    @cached_property
    def owners(self) -> Tensor:
        """The number of the tensor that each element is of, (P,)."""
        import torch

        numels = torch.tensor([info.numel for info in self.infos])
        return torch.arange(len(self.infos)).repeat_interleave(numels).to(self.device)

    @cached_property
    def _last(self) -> Tensor:
        import torch

        return torch.tensor([end - 1 for _, end in self.bounds], device=self.device)

    def counts(self, chosen: Tensor) -> Tensor:
        """How many elements of each tensor are chosen, (R, T), by a mask (R, P)."""
        import torch

        until = chosen.int().cumsum(1)[:, self._last]
        return torch.diff(until, dim=1, prepend=until.new_zeros(len(until), 1))

    def spread(self, numbers: Tensor) -> Tensor:
        """A number of each tensor, (R, T), for each of its elements, (R, P)."""
        return numbers[:, self.owners]

    def largest(self, sizes: Tensor, counts: Sequence[int]) -> Tensor:
        """Where the largest so many elements of each row of each tensor are in (N x P,), any order."""
        import torch

        rows, width = sizes.shape
        columns = [
            sizes[:, begin:end].topk(count, sorted=False).indices + begin
            for (begin, end), count in zip(self.bounds, counts, strict=True)
        ]
        first = torch.arange(rows, device=self.device)[:, None] * width
        return (torch.cat(columns, dim=1) + first).view(-1)

    def own(self, tensor: int, worker: int) -> Generator:
        """Random numbers of that worker's tensor in this step, and of nobody else."""
        return State(self.seed, worker, tensor, self.workers, self.step).own(self.device)

    def shared(self, tensor: int) -> Generator:
        """Random numbers of that tensor in this step that all workers draw alike."""
        return State(self.seed, 0, tensor, self.workers, self.step).shared(self.device)

    def take(self, states: Sequence[Sequence[State]]) -> None:
        """Remember what is remembered worker by worker and tensor by tensor, N x T."""
        self.step = states[0][0].step
        names = states[0][0].values
        self.values = {
            name: matrix_of([[state.values[name] for state in mine] for mine in states]) for name in names
        }

    def give(self, states: Sequence[Sequence[State]]) -> None:
        """The other way round."""
        for worker, mine in enumerate(states):
            for state, (begin, end) in zip(mine, self.bounds, strict=True):
                state.step = self.step
                state.values = {name: value[worker, begin:end].clone() for name, value in self.values.items()}
