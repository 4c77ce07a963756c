"""Overlapped averaging on real tensors: workers own an N-th of every layer, and update that alone.

When `gradwire.experiment.collectives.overlapped` sends what, and here what is in it, after Lee et al. (MLHPC '18)
[code]. Of convolutions, and of the vectors behind them, the owner adds up its part of all workers' gradients. Of fully
connected layers it gets its columns of all activations A and all errors E, and works out the gradient A^T E over the
batch of all workers; a bias everybody has from the errors. Owners keep momentum for what they own; what they have
updated is handed to everybody. All of that arrives, so that there is one model, and it is plain SGD's to rounding: sums
are made in another order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from gradwire.experiment.collectives.operations import Group, groups_of
from gradwire.scenarios.errors import ScenarioError
from gradwire.training.exchange import Sent
from gradwire.training.network import Network
from gradwire.training.recipe import Recipe
from gradwire.training.ring import VALUE
from gradwire.training.trainer import StepRow, Trainer, losses_of

if TYPE_CHECKING:
    from gradwire.traces.trace import TensorInfo
    from gradwire.training.data import Images, Text
    from gradwire.training.gradients import Loss


@dataclass
class Owned:
    """A group of layers, cut into parts for N owners.

    flat : its parameters, one after the other and filled up, (N part,); of a fully connected layer (n_in, n_out)
        transposed, so that parts are whole columns of the weight matrix.
    parts : N views of it, what each owner updates.
    bias : of a fully connected layer, which everybody updates alike; nothing elsewhere.
    """

    group: Group
    parameters: list[nn.Parameter]
    workers: int
    flat: Tensor
    parts: list[nn.Parameter]
    bias: list[nn.Parameter]

    @classmethod
    def of(cls, group: Group, parameters: Sequence[nn.Parameter], workers: int) -> Owned:
        """Of the parameters of a model, in the order of `model.parameters()`."""
        mine = [parameters[each] for each in group.tensors]
        flat = mine[0].new_zeros(workers * group.part(workers))
        parts = [nn.Parameter(each) for each in flat.chunk(workers)]
        bias = [each for each in mine if each.dim() < 2] if group.matrix is not None else []
        found = cls(group, mine, workers, flat, parts, bias)
        found.take()
        return found

    @property
    def weight(self) -> nn.Parameter:
        """The weight matrix of a fully connected layer."""
        return next(each for each in self.parameters if each.dim() == 2)

    def filled(self, tensors: Sequence[Tensor]) -> Tensor:
        """Tensors like the parameters as one like `flat`."""
        found = torch.zeros_like(self.flat)
        if self.group.matrix is None:
            found[: self.group.elements] = torch.cat([each.reshape(-1) for each in tensors])
        else:
            (matrix,) = (each for each in tensors if each.dim() == 2)
            found[: matrix.numel()] = matrix.t().reshape(-1)
        return found

    def take(self) -> None:
        """What the model has becomes what owners have."""
        with torch.no_grad():
            self.flat.copy_(self.filled([each.detach() for each in self.parameters]))

    def hand_out(self) -> None:
        """All parts become the model's: the all-gather of parameters."""
        with torch.no_grad():
            if self.group.matrix is not None:
                out, into = self.group.matrix
                self.weight.copy_(self.flat[: out * into].view(into, out).t())
                return
            sizes = [each.numel() for each in self.parameters]
            for each, values in zip(self.parameters, self.flat[: sum(sizes)].split(sizes), strict=True):
                each.copy_(values.view(each.shape))

    def add_up(self, gradients: Sequence[Sequence[Tensor]]) -> None:
        """Owners get the mean of their part from everybody's gradients, N x T: the all-to-all of gradients."""
        rows = [self.filled([mine[each] for each in self.group.tensors]) for mine in gradients]
        for owner, part in enumerate(self.parts):
            pieces = [row.chunk(self.workers)[owner] for row in rows]
            total = pieces[owner].clone()
            for other, piece in enumerate(pieces):
                if other != owner:
                    total += piece
            part.grad = total / self.workers

    def multiply(self, activations: Tensor, errors: Tensor) -> None:
        """Owners work out their columns of the mean gradient from all samples' activations, (samples, n_in), of which
        each has its columns only, and all errors, (samples, n_out)."""
        columns = self.group.columns(self.workers)
        for owner, part in enumerate(self.parts):
            mine = activations[:, owner * columns : (owner + 1) * columns]
            gradient = torch.zeros_like(part).view(columns, errors.shape[1])
            gradient[: mine.shape[1]] = mine.t() @ errors
            part.grad = gradient.view(-1) / self.workers
        for each in self.bias:
            each.grad = errors.sum(dim=0) / self.workers

    def sent(self, rows: int) -> int:
        """Bytes that a worker sends in a step. `rows`: of a worker's activations."""
        part = self.group.part(self.workers)
        if self.group.matrix is None:
            return VALUE * (self.workers - 1) * 2 * part
        return VALUE * (self.workers - 1) * (rows * (self.group.columns(self.workers) + self.group.matrix[0]) + part)


class Averaging:
    """Stands in for `gradwire.training.exchange.Exchange`: what workers exchange in a step.

    seen : module -> what it has computed with since the last step, as [activations, errors] per call.
    """

    def __init__(
        self, model: nn.Module, infos: Sequence[TensorInfo], workers: int, dense: str, mixed: bool = False
    ) -> None:
        """`mixed`: precision (`gradwire.training.precision`)."""
        self.model, self.workers, self.mixed = model, workers, mixed
        parameters = list(model.parameters())
        linear = {id(module.weight): module for module in model.modules() if isinstance(module, nn.Linear)}
        groups = groups_of(infos, dense == "activations")
        self.owned = [Owned.of(each, parameters, workers) for each in groups]
        self.seen: dict[nn.Module, list[list[Tensor]]] = {}
        self.modules: dict[int, nn.Linear] = {}
        for number, each in enumerate(self.owned):
            if each.group.matrix is not None:
                if id(each.weight) not in linear:
                    name = infos[each.group.tensors[0]].name
                    raise ValueError(f'{name} is a matrix of no linear layer; expected dense = "gradients"')
                self.modules[number] = linear[id(each.weight)]

    @contextmanager
    def watching(self) -> Iterator[None]:
        """In here activations and errors of fully connected layers are kept."""
        self.seen = {module: [] for module in self.modules.values()}
        handles = [module.register_forward_hook(self._note) for module in self.seen]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
            self.seen = {}

    def _note(self, module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        assert isinstance(module, nn.Linear)
        if self.mixed and not torch.is_autocast_enabled(output.device.type):
            return  # in float32 it is only tried out how gradients are made
        dtype = module.weight.dtype
        call = [inputs[0].detach().flatten(0, -2).to(dtype)]
        self.seen[module].append(call)
        output.register_hook(lambda errors: call.append(errors.detach().flatten(0, -2).to(dtype)))

    def step(
        self, gradients: Sequence[Sequence[Tensor]], number: int, network: Network | None = None
    ) -> tuple[list[Tensor], Sent]:
        """Owners get the gradients of what they own. Nothing is lost, and no time counted."""
        nbytes = 0
        for place, each in enumerate(self.owned):
            rows = 0
            if place in self.modules:
                activations, errors = self._seen(self.modules[place])
                each.multiply(activations, errors)
                rows = len(activations) // self.workers
            else:
                each.add_up(gradients)
            nbytes += each.sent(rows)
        tensors = sum(len(each.parameters) for each in self.owned)
        return [], Sent([nbytes] * self.workers, [[0.0] * tensors for _ in range(self.workers)])

    def _seen(self, module: nn.Linear) -> tuple[Tensor, Tensor]:
        """Activations and errors of all workers' samples. Gradients come of one pass for each worker, or of one for
        all; in the first step of both, one behind the other (`gradwire.training.gradients.Fastest`)."""
        calls = self.seen[module]
        if len(calls) not in (1, self.workers, self.workers + 1):
            what = "is applied several times to a sample: activations and errors would not go together"
            raise ScenarioError(what, "a linear layer of the model", 'dense = "gradients"')
        mine = calls[: self.workers]
        return torch.cat([call[0] for call in mine]), torch.cat([call[1] for call in mine])

    def state_dict(self) -> dict[str, object]:
        """Nothing: what owners have is what the model has."""
        return {}

    def load_state_dict(self, saved: Mapping[str, object]) -> None:
        """The model is there already."""
        for each in self.owned:
            each.take()


class OverlappedTrainer(Trainer):
    """Trains by overlapped averaging; everything else is as in `Trainer`."""

    def __init__(
        self, model: nn.Module, data: Images | Text, recipe: Recipe, network: Network | None = None,
        loss: Loss = losses_of, dense: str = "activations",
    ) -> None:  # fmt: skip
        """ValueError: a norm to clip to, which no owner knows; a matrix whose activations are none of a linear
        layer's."""
        if recipe.clip:
            raise ValueError(f"clip = {recipe.clip:g} wants the norm of all gradients, of which owners have parts")
        super().__init__(model, data, recipe, None, network, loss)
        self.averaging = Averaging(self.model, self.infos, recipe.workers, dense, recipe.precision != "float32")
        self.exchange = self.averaging  # type: ignore[assignment]
        owned = self.averaging.owned
        self.optimizer = self._optimizer([part for each in owned for part in (*each.parts, *each.bias)])

    def step(self) -> StepRow:
        with self.averaging.watching():
            return super().step()

    def _update(self, means: list[Tensor], sent: Sent, number: int) -> None:
        """Every owner updates its parts, and hands them out."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.recipe.rate_at(number)
        self.optimizer.step()
        for each in self.averaging.owned:
            each.hand_out()
