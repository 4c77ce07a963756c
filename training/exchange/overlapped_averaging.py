"""`OverlappedTrainer` trains by lossless overlapped averaging, in which each worker owns and updates an N-th of every
layer.

`gradwire.workload.collectives.exchanges.overlapped_steps` schedules the messages; here are their contents, after Lee et
al. (MLHPC '18) [code]. Of convolutions, and of the vectors behind them, the owner adds up its part of all workers'
gradients. Of fully connected layers it receives its columns of all activations A and all errors E, and computes the
gradient A^T E over the batch of all workers; every worker computes biases from the errors. Owners keep momentum for
their parts and send the updated parts to all. Everything arrives, so that there is one model, and it equals plain SGD
to rounding: sums are made in another order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from gradwire.scenarios.errors import ScenarioError
from gradwire.traces.parts import TensorInfo
from gradwire.training.data import Images, Text
from gradwire.training.exchange.exchange_stats import ExchangeStats
from gradwire.training.exchange.ring_allreduce import VALUE
from gradwire.training.networks.network_interface import Network
from gradwire.training.recipe import Recipe
from gradwire.training.trainer import StepRow, Trainer
from gradwire.workload.collectives.exchanges.overlapped_steps import LayerGroup, groups_of


class OwnedLayers:
    """A group of layers, cut into parts for N owners.

    flat : its parameters, concatenated and padded, (N part,); of a fully connected layer (n_in, n_out) transposed, so
        that parts are whole columns of the weight matrix.
    parts : N views of it, one per owner.
    bias : of a fully connected layer, which all update alike; empty elsewhere.
    """

    def __init__(self, group: LayerGroup, parameters: Sequence[nn.Parameter], workers: int) -> None:
        """Take over the group's parameters, given a model's in the order of `model.parameters()`."""
        self.group, self.workers = group, workers
        self.parameters = [parameters[tensor] for tensor in group.tensors]
        self.flat = self.parameters[0].new_zeros(workers * group.part(workers))
        self.parts = [nn.Parameter(part) for part in self.flat.chunk(workers)]
        self.bias = [vector for vector in self.parameters if vector.dim() < 2] if group.matrix is not None else []
        self.take()

    @property
    def weight(self) -> nn.Parameter:
        """The weight matrix of a fully connected layer."""
        return next(parameter for parameter in self.parameters if parameter.dim() == 2)

    def filled(self, tensors: Sequence[Tensor]) -> Tensor:
        """Return tensors like the parameters as one tensor like `flat`."""
        flat = torch.zeros_like(self.flat)
        if self.group.matrix is None:
            flat[: self.group.elements] = torch.cat([tensor.reshape(-1) for tensor in tensors])
        else:
            (matrix,) = (tensor for tensor in tensors if tensor.dim() == 2)
            flat[: matrix.numel()] = matrix.t().reshape(-1)
        return flat

    def take(self) -> None:
        """Copy the model's parameters to the owners."""
        with torch.no_grad():
            self.flat.copy_(self.filled([parameter.detach() for parameter in self.parameters]))

    def gather_parameters(self) -> None:
        """Copy all parts to the model: the all-gather of parameters."""
        with torch.no_grad():
            if self.group.matrix is not None:
                out, into = self.group.matrix
                self.weight.copy_(self.flat[: out * into].view(into, out).t())
                return
            sizes = [parameter.numel() for parameter in self.parameters]
            for parameter, values in zip(self.parameters, self.flat[: sum(sizes)].split(sizes), strict=True):
                parameter.copy_(values.view(parameter.shape))

    def add_up(self, gradients: Sequence[Sequence[Tensor]]) -> None:
        """Give owners the mean of their part from all gradients, N x T: the all-to-all of gradients."""
        rows = [self.filled([by_tensor[tensor] for tensor in self.group.tensors]) for by_tensor in gradients]
        for owner, part in enumerate(self.parts):
            pieces = [row.chunk(self.workers)[owner] for row in rows]
            others = (piece for other, piece in enumerate(pieces) if other != owner)
            part.grad = sum(others, start=pieces[owner]) / self.workers

    def multiply(self, activations: Tensor, errors: Tensor) -> None:
        """Let owners compute their columns of the mean gradient from all samples.

        activations : (samples, n_in), of which each owner uses only its columns. errors : (samples, n_out).
        """
        columns = self.group.columns(self.workers)
        for owner, part in enumerate(self.parts):
            own_columns = activations[:, owner * columns : (owner + 1) * columns]
            gradient = torch.zeros_like(part).view(columns, errors.shape[1])
            gradient[: own_columns.shape[1]] = own_columns.t() @ errors
            part.grad = gradient.view(-1) / self.workers
        for bias in self.bias:
            bias.grad = errors.sum(dim=0) / self.workers

    def sent(self, rows: int) -> int:
        """Return the bytes that a worker sends in a step. `rows`: of a worker's activations."""
        part = self.group.part(self.workers)
        if self.group.matrix is None:
            return VALUE * (self.workers - 1) * 2 * part
        return VALUE * (self.workers - 1) * (rows * (self.group.columns(self.workers) + self.group.matrix[0]) + part)


class OverlappedExchange:
    """The exchange of overlapped averaging, in place of `gradwire.training.exchange.exchange.Exchange`.

    seen : module -> its inputs since the last step, as [activations, errors] per call.
    """

    def __init__(
        self, model: nn.Module, infos: Sequence[TensorInfo], workers: int, dense: str, mixed: bool = False
    ) -> None:
        """Group the layers. `mixed`: mixed precision (`gradwire.training.precision`)."""
        self.model, self.workers, self.mixed = model, workers, mixed
        parameters = list(model.parameters())
        linear = {id(module.weight): module for module in model.modules() if isinstance(module, nn.Linear)}
        groups = groups_of(infos, dense == "activations")
        self.owned = [OwnedLayers(group, parameters, workers) for group in groups]
        self.seen: dict[nn.Module, list[list[Tensor]]] = {}
        self.modules: dict[int, nn.Linear] = {}
        for number, layers in enumerate(self.owned):
            if layers.group.matrix is not None:
                if id(layers.weight) not in linear:
                    name = infos[layers.group.tensors[0]].name
                    raise ValueError(f'{name} is a matrix outside a linear layer; expected dense = "gradients"')
                self.modules[number] = linear[id(layers.weight)]

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record activations and errors of fully connected layers inside the context."""
        self.seen = {module: [] for module in self.modules.values()}
        handles = [module.register_forward_hook(self._record) for module in self.seen]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
            self.seen = {}

    def _record(self, module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        assert isinstance(module, nn.Linear)
        if self.mixed and not torch.is_autocast_enabled(output.device.type):
            return  # the float32 pass only compares the ways to compute gradients
        dtype = module.weight.dtype
        call = [inputs[0].detach().flatten(0, -2).to(dtype)]
        self.seen[module].append(call)
        output.register_hook(lambda errors: call.append(errors.detach().flatten(0, -2).to(dtype)))

    def step(
        self, gradients: Sequence[Sequence[Tensor]], number: int, network: Network | None = None
    ) -> tuple[list[Tensor], ExchangeStats]:
        """Give owners the gradients of their parts. Nothing is lost, and no time counted."""
        nbytes = 0
        for group, layers in enumerate(self.owned):
            rows = 0
            if group in self.modules:
                activations, errors = self._activations_and_errors(self.modules[group])
                layers.multiply(activations, errors)
                rows = len(activations) // self.workers
            else:
                layers.add_up(gradients)
            nbytes += layers.sent(rows)
        tensors = sum(len(layers.parameters) for layers in self.owned)
        return [], ExchangeStats([nbytes] * self.workers, [[0.0] * tensors for _ in range(self.workers)])

    def _activations_and_errors(self, module: nn.Linear) -> tuple[Tensor, Tensor]:
        """Return activations and errors of all workers' samples. Gradients come from one pass per worker, or one for
        all; in the first step from both, one after the other
        (`gradwire.training.backward.worker_gradients.FastestGradients`)."""
        calls = self.seen[module]
        if len(calls) not in (1, self.workers, self.workers + 1):
            what = "is applied several times to a sample: activations and errors would not match"
            raise ScenarioError(what, "a linear layer of the model", 'dense = "gradients"')
        used = calls[: self.workers]
        return torch.cat([call[0] for call in used]), torch.cat([call[1] for call in used])

    def state_dict(self) -> dict[str, object]:
        """Return no state: the owners' parts are in the model."""
        return {}

    def load_state_dict(self, saved: Mapping[str, object]) -> None:
        """Copy the model's parameters to the owners."""
        for layers in self.owned:
            layers.take()


class OverlappedTrainer(Trainer):
    """Trains by overlapped averaging; everything else is as in `Trainer`."""

    def __init__(
        self,
        model: nn.Module,
        data: Images | Text,
        recipe: Recipe,
        network: Network | None = None,
        dense: str = "activations",
    ) -> None:
        """Validate the parts. Raises ValueError if gradients are clipped, though no owner knows their norm; or a matrix
        does not belong to a linear layer."""
        if recipe.clip:
            what = f"clip = {recipe.clip:g} needs the norm of all gradients"
            raise ValueError(f"{what}, of which each owner has only parts")
        super().__init__(model, data, recipe, None, network)
        mixed = recipe.precision != "float32"
        self.averaging = OverlappedExchange(self.model, self.infos, recipe.workers, dense, mixed)
        self.exchange = self.averaging  # type: ignore[assignment]
        owned = self.averaging.owned
        self.optimizer = self._optimizer([part for layers in owned for part in (*layers.parts, *layers.bias)])

    def step(self) -> StepRow:
        with self.averaging.recording():
            return super().step()

    def _update(self, means: list[Tensor], sent: ExchangeStats, number: int) -> None:
        """Let every owner update its parts, and copy them to the model."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.recipe.rate_at(number)
        self.optimizer.step()
        for layers in self.averaging.owned:
            layers.gather_parameters()
