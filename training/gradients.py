"""Gradients of every worker by itself: N workers with one copy of the parameters, in one process.

`of_each_in_turn` runs the model once per worker, forward and backward: obviously right, and the oracle. `Together` runs
all workers' samples through it at once and takes apart only what has to be: the gradient of a weight is worked out for
each worker's slice of the batch, and a normalisation over a batch is one over each slice. Everything else - the forward
pass, the gradients of activations - costs what it costs in plain training. Per-sample gradients by `torch.func.vmap`
were the alternative, at little more than half the speed.

Layers that are taken apart: Conv1d, Conv2d, Linear, BatchNorm1d and 2d, LayerNorm, Embedding. A model with parameters
of its own elsewhere (an LSTM) goes in turn; `gradients_of` chooses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from gradwire.scenarios.errors import ScenarioError
from gradwire.training.copies import Copies, buffers_of, put_back
from gradwire.training.recorded import Recorded

Loss = Callable[[nn.Module, tuple[Tensor, ...], Tensor], Tensor]
"""(model, inputs, targets) to the loss of each sample, (samples,), or of each of its tokens, (samples, length)."""
Gradients = Sequence[list[Tensor]]
"""By worker, by parameter, in the order of `model.parameters()`."""


NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
"""Normalisations over all samples of a worker."""


def of_each_in_turn(
    model: nn.Module, loss: Loss, inputs: tuple[Tensor, ...], targets: Tensor, workers: int
) -> tuple[list[float], Gradients]:
    """The loss and the gradients of each worker, one after the other.

    inputs, targets : of all workers, N slices of equally many samples along the first dimension.
    """
    losses: list[float] = []
    gradients: list[list[Tensor]] = []
    parameters = list(model.parameters())
    for mine in zip(*[each.chunk(workers) for each in (*inputs, targets)], strict=True):
        try:
            mean = loss(model, mine[:-1], mine[-1]).mean()
        except ValueError:
            check_norms(model, loss, mine[:-1], mine[-1])
            raise
        found = torch.autograd.grad(mean, parameters, allow_unused=True)
        gradients.append([_or_zero(each, p) for each, p in zip(found, parameters, strict=True)])
        losses.append(float(mean.detach()))
    return losses, gradients


def of_one(
    copies: Copies, worker: int, loss: Loss, inputs: tuple[Tensor, ...], targets: Tensor
) -> tuple[float, list[Tensor]]:
    """(loss, gradients) of one worker's samples at its own parameters."""
    with copies.of(worker):
        losses, found = of_each_in_turn(copies.model, loss, inputs, targets, 1)
    return losses[0], found[0]


def check_norms(model: nn.Module, loss: Loss, inputs: tuple[Tensor, ...], targets: Tensor) -> None:
    """Look for a batch norm that has nothing to normalise over in what one worker computes.

    Raises
    ------
    ScenarioError
        One has a single value per channel, which would become zero, whatever it is.
    """
    names = {module: name for name, module in model.named_modules() if isinstance(module, NORMS)}
    seen: list[tuple[str, Tensor]] = []
    hooks = [each.register_forward_pre_hook(lambda m, given: seen.append((names[m], given[0]))) for each in names]
    try:
        with suppress(ValueError):
            loss(model, inputs, targets)
    finally:
        for hook in hooks:
            hook.remove()
    for name, given in seen:
        if given.numel() == given.shape[1]:
            raise ScenarioError(
                f"gives the batch norm {name} one value per channel, {tuple(given.shape)}, and none to compare it with",
                "training.batch", "two samples of a worker or more, or larger pictures (training.size)",
            )  # fmt: skip


class Together:
    """The gradients of N workers by one forward and one backward pass. Keep it: it finds out once what is where."""

    def __init__(self, model: nn.Module, workers: int) -> None:
        self.model, self.workers = model, workers
        self.modules = {module for module in model.modules() if type(module) in FORWARDS}
        ours = {id(p) for module in self.modules for p in module.parameters(recurse=False)}
        self.missing = [name for name, p in model.named_parameters() if id(p) not in ours]

    @property
    def possible(self) -> bool:
        """Whether all parameters are of layers that can be taken apart."""
        return not self.missing

    def __call__(self, loss: Loss, inputs: tuple[Tensor, ...], targets: Tensor) -> tuple[list[float], Gradients]:
        """The loss and the gradients of each worker; arguments as in `of_each_in_turn`."""
        losses, stacked = self.stacked(loss, inputs, targets)
        return losses.tolist(), [[each[worker] for each in stacked] for worker in range(self.workers)]

    def stacked(self, loss: Loss, inputs: tuple[Tensor, ...], targets: Tensor) -> tuple[Tensor, list[Tensor]]:
        """The losses, (N,), and of each parameter all workers' gradients, (N, ...); nothing waits for the device."""
        parameters = list(self.model.parameters())
        found: dict[int, Tensor] = {}
        with self._taken_apart(found):
            each = loss(self.model, inputs, targets).reshape(self.workers, -1).mean(dim=1)
            each.sum().backward()
        for parameter in parameters:
            parameter.grad = None
        whole = [found.get(id(p)) for p in parameters]
        return each.detach(), [
            p.new_zeros(self.workers, *p.shape) if all_ is None else all_
            for all_, p in zip(whole, parameters, strict=True)
        ]

    @contextmanager
    def _taken_apart(self, found: dict[int, Tensor]) -> Iterator[None]:
        """The model with other forward functions, which put gradients of parameters into `found`, (N, ...) each."""

        def keep(parameter: Tensor, gradient: Tensor) -> None:
            before = found.get(id(parameter))
            found[id(parameter)] = gradient if before is None else before + gradient

        for module in self.modules:
            forward = FORWARDS[type(module)]
            module.forward = _bound(forward, module, self.workers, keep)  # type: ignore[method-assign]
        try:
            yield
        finally:
            for module in self.modules:
                del module.forward  # the class's own is there again


def _bound(forward: Any, module: nn.Module, workers: int, keep: Any) -> Callable[[Tensor], Tensor]:
    return lambda x: forward(module, x, workers, keep)


def _or_zero(gradient: Tensor | None, parameter: Tensor) -> Tensor:
    return torch.zeros_like(parameter) if gradient is None else gradient


Keep = Callable[[Tensor, Tensor], None]


class _Apart(torch.autograd.Function):
    """A layer with weights: forward and the gradient of its input as ever, those of its weights by slice and kept."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, layer: Any) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.layer = layer
        return layer.forward(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        return ctx.layer.backward(x, weight, gradients[0], ctx.needs_input_grad[0]), None, None


class _Convolution:
    """A convolution of any dimension that is taken apart. `padding`: zeros on both sides of each dimension."""

    def __init__(self, module: Any, workers: int, keep: Keep, padding: Sequence[int]) -> None:
        self.module, self.workers, self.keep = module, workers, keep
        self.more = (module.stride, padding, module.dilation, False, [0] * len(padding), module.groups)

    def forward(self, x: Tensor) -> Tensor:
        return torch.convolution(x, self.module.weight, self.module.bias, *self.more)

    def backward(self, x: Tensor, weight: Tensor, gradient: Tensor, of_input: bool) -> Tensor | None:
        module = self.module
        slices = zip(x.chunk(self.workers), gradient.chunk(self.workers), strict=True)
        weights = [
            torch.ops.aten.convolution_backward(g, mine, weight, None, *self.more, (False, True, False))[1]
            for mine, g in slices
        ]
        self.keep(module.weight, torch.stack(weights))
        if module.bias is not None:
            every = tuple(range(2, x.dim()))
            self.keep(module.bias, gradient.sum(dim=every).view(self.workers, -1, gradient.shape[1]).sum(dim=1))
        if not of_input:
            return None
        return torch.ops.aten.convolution_backward(gradient, x, weight, None, *self.more, (True, False, False))[0]


def _convolution(module: Any, x: Tensor, workers: int, keep: Keep) -> Tensor:
    x, padding = padded(module, x)
    return _Apart.apply(x, module.weight, _Convolution(module, workers, keep, padding))  # type: ignore[no-any-return]


def padded(module: Any, x: Tensor) -> tuple[Tensor, list[int]]:
    """(input, zeros that a convolution still has to add on both sides of each dimension).

    What a convolution cannot add by itself is there already: another number of zeros on one side than on the other, as
    "same" has with an even kernel, or other values than zeros.
    """
    shape = list(zip(module.kernel_size, module.dilation, strict=True))
    if module.padding == "same":
        whole = [dilation * (size - 1) for size, dilation in shape]
        sides = [(each // 2, each - each // 2) for each in whole]
    else:
        sides = [(each, each) for each in ([0] * len(shape) if module.padding == "valid" else module.padding)]
    if module.padding_mode == "zeros" and all(before == after for before, after in sides):
        return x, [before for before, _ in sides]
    mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
    both = [each for pair in reversed(sides) for each in pair]  # the last dimension first
    return functional.pad(x, both, mode=mode), [0] * len(sides)


class _Linear:
    """A linear layer that is taken apart."""

    def __init__(self, module: nn.Linear, workers: int, keep: Keep) -> None:
        self.module, self.workers, self.keep = module, workers, keep

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.module.weight, self.module.bias)

    def backward(self, x: Tensor, weight: Tensor, gradient: Tensor, of_input: bool) -> Tensor | None:
        left = gradient.reshape(self.workers, -1, gradient.shape[-1])
        self.keep(self.module.weight, left.transpose(1, 2) @ x.reshape(self.workers, -1, x.shape[-1]))
        if self.module.bias is not None:
            self.keep(self.module.bias, left.sum(dim=1))
        return gradient @ weight if of_input else None


class _Embedding:
    """An embedding that is taken apart."""

    def __init__(self, module: nn.Embedding, workers: int, keep: Keep) -> None:
        self.module, self.workers, self.keep = module, workers, keep

    def forward(self, x: Tensor) -> Tensor:
        return functional.embedding(x, self.module.weight)

    def backward(self, x: Tensor, weight: Tensor, gradient: Tensor, of_input: bool) -> None:
        whole = gradient.new_zeros(self.workers, *weight.shape)
        for mine, tokens, g in zip(whole, x.chunk(self.workers), gradient.chunk(self.workers), strict=True):
            mine.index_add_(0, tokens.reshape(-1), g.reshape(-1, g.shape[-1]))
        if self.module.padding_idx is not None:
            whole[:, self.module.padding_idx] = 0
        self.keep(self.module.weight, whole)


def _weighted(layer: Any) -> Any:
    """The forward function of a layer class above. Its weight is an argument so that there is always something to go
    back to; what it gets is None."""

    def forward(module: Any, x: Tensor, workers: int, keep: Keep) -> Tensor:
        return _Apart.apply(x, module.weight, layer(module, workers, keep))

    return forward


def _copies(parameter: Tensor, workers: int, keep: Keep) -> Tensor:
    """A parameter as (N, ...), whose gradient is kept when it is there."""
    copies = parameter.detach().expand(workers, *parameter.shape).clone().requires_grad_()
    copies.register_hook(lambda gradient: keep(parameter, gradient))
    return copies


def _batch_norm(module: Any, x: Tensor, workers: int, keep: Keep) -> Tensor:
    """Normalised over each worker's samples. Running statistics move by the mean of the workers' (our choice; PyTorch's
    DDP keeps those of the first)."""
    weight = bias = [None] * workers
    if module.affine:
        weight, bias = _copies(module.weight, workers, keep), _copies(module.bias, workers, keep)  # type: ignore[assignment]
    if not module.training:
        mean, var = module.running_mean, module.running_var
        parts = [functional.batch_norm(each, mean, var, w, b, False, 0.0, module.eps)
                 for each, w, b in zip(x.chunk(workers), weight, bias, strict=True)]  # fmt: skip
        return torch.cat(parts)
    parts, means, variances = [], [], []
    for each, w, b in zip(x.chunk(workers), weight, bias, strict=True):
        if module.track_running_stats:
            mean, var = module.running_mean.clone(), module.running_var.clone()
            means.append(mean)
            variances.append(var)
        else:
            mean = var = None
        momentum = module.momentum if module.momentum is not None else 1 / (int(module.num_batches_tracked) + 1)
        parts.append(functional.batch_norm(each, mean, var, w, b, True, momentum, module.eps))
    if means:
        module.num_batches_tracked += 1
        module.running_mean.copy_(torch.stack(means).mean(dim=0))
        module.running_var.copy_(torch.stack(variances).mean(dim=0))
    return torch.cat(parts)


def _layer_norm(module: nn.LayerNorm, x: Tensor, workers: int, keep: Keep) -> Tensor:
    y = functional.layer_norm(x, module.normalized_shape, None, None, module.eps)
    if not module.elementwise_affine:
        return y
    rows = y.reshape(workers, -1, *module.normalized_shape)
    y = rows * _copies(module.weight, workers, keep)[:, None]
    if module.bias is not None:
        y = y + _copies(module.bias, workers, keep)[:, None]
    return y.reshape(x.shape)


FORWARDS: dict[type[nn.Module], Any] = {
    nn.Conv1d: _convolution,
    nn.Conv2d: _convolution,
    nn.Linear: _weighted(_Linear),
    nn.Embedding: _weighted(_Embedding),
    nn.BatchNorm1d: _batch_norm,
    nn.BatchNorm2d: _batch_norm,
    nn.LayerNorm: _layer_norm,
}
"""What is taken apart, and how: (module, input of all workers, N, keep) to output."""


Answers = Callable[[Loss, tuple[Tensor, ...], Tensor], tuple[list[float], Gradients]]
"""(loss, inputs, targets) to the loss and the gradients of each worker."""


def gradients_of(model: nn.Module, workers: int, recorded: bool = False) -> Answers:
    """The faster way that gives a model's gradients: all at once if that is possible, and does what each in turn does.

    The first step is done both ways. They differ where a layer's input is no run of samples (positions, to an
    embedding), and where something is drawn (dropout): then it goes in turn, always.

    recorded : on a GPU, replay what was done the first time; for models and losses in which Python decides nothing.
    """
    together = Together(model, workers)
    if workers == 1 or not together.possible:
        return lambda loss, inputs, targets: of_each_in_turn(model, loss, inputs, targets, workers)
    replay = Recorded(model, together.stacked) if recorded and next(model.parameters()).device.type == "cuda" else None
    alike: bool | None = None

    def gradients(loss: Loss, inputs: tuple[Tensor, ...], targets: Tensor) -> tuple[list[float], Gradients]:
        nonlocal alike, replay
        if alike:
            if replay is not None:
                try:
                    return replay(loss, inputs, targets)
                except RuntimeError:  # it cannot be recorded
                    replay = None
            return together(loss, inputs, targets)
        if alike is not None:
            return of_each_in_turn(model, loss, inputs, targets, workers)
        before = buffers_of(model)
        expected = of_each_in_turn(model, loss, inputs, targets, workers)
        after = buffers_of(model)
        put_back(model, before)
        try:
            answer = together(loss, inputs, targets)
            alike = _agree(answer[1], expected[1])
        except RuntimeError:  # shapes that do not come apart
            alike = False
        if alike:
            return answer
        put_back(model, after)
        return expected

    return gradients


def _agree(one: Gradients, other: Gradients) -> bool:
    """Whether gradients are the same to rounding: to a thousandth of the norm of each worker's."""
    for mine, theirs in zip(one, other, strict=True):
        error = sum(float((a - b).square().sum()) for a, b in zip(mine, theirs, strict=True))
        if error > 1e-6 * sum(float(b.square().sum()) for b in theirs):
            return False
    return True
