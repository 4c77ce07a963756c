"""Layers that are taken apart: forward as ever, and gradients of their weights for each worker's slice of the batch.

Conv1d, Conv2d, Linear, BatchNorm1d and 2d, LayerNorm, Embedding. Functions here stand in for these modules' own forward
functions while all workers' samples go through a model at once (`gradwire.training.gradients.Together`): (module, input
of all workers, N, keep) to output, and `keep` hears a parameter with all workers' gradients, (N, ...).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from gradwire.training.precision import as_computed, laid_as, like

Keep = Callable[[Tensor, Tensor], None]


def kernels_for(x: Tensor) -> Any:
    """`gradwire.training.kernels`, if they run here and `x` lies in memory as they want it; else None."""
    if x.dtype != torch.bfloat16 or not x.is_cuda:
        return None
    kernels = _kernels(x.device)
    return kernels if kernels is not None and kernels.suits(x) else None


@cache
def _kernels(device: torch.device) -> Any:
    """The module, or None with a warning: Triton may lack, or what it compiles with."""
    try:
        from gradwire.training import kernels

        kernels.try_out(device)
    except Exception as error:  # whatever compilers and drivers say
        first = str(error).partition("\n")[0]
        warnings.warn(f"kernels for {device} cannot be used, and libraries take twice as long: {first}", stacklevel=2)
        return None
    return kernels


class _Apart(torch.autograd.Function):
    """A layer with weights: forward and the gradient of its input as ever, those of its weights by slice and kept."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, layer: Any) -> Tensor:
        x, weight = as_computed(x, weight)
        ctx.save_for_backward(x, weight)
        ctx.layer = layer
        return layer.forward(x, weight)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        return ctx.layer.backward(x, weight, laid_as(gradients[0], x), ctx.needs_input_grad[0]), None, None


class _Convolution:
    """A convolution of any dimension that is taken apart. `padding`: zeros on both sides of each dimension."""

    def __init__(self, module: Any, workers: int, keep: Keep, padding: Sequence[int]) -> None:
        self.module, self.workers, self.keep, self.padding = module, workers, keep, padding
        self.more = (module.stride, padding, module.dilation, False, [0] * len(padding), module.groups)

    def forward(self, x: Tensor, weight: Tensor) -> Tensor:
        if self.module.bias is None and (kernels := self._of_few_channels(x)):
            return kernels.convolved(x, weight)
        return torch.convolution(x, weight, like(self.module.bias, weight), *self.more)

    def backward(self, x: Tensor, weight: Tensor, gradient: Tensor, of_input: bool) -> Tensor | None:
        module = self.module
        if (kernels := kernels_for(x)) and kernels.fits(module, self.padding):
            side, stride = module.kernel_size[0], module.stride[0]
            weights = kernels.weights_apart(x, gradient, self.workers, side, stride, self.padding[0])
        else:
            slices = zip(x.chunk(self.workers), gradient.chunk(self.workers), strict=True)
            weights = torch.stack([
                torch.ops.aten.convolution_backward(g, mine, weight, None, *self.more, (False, True, False))[1]
                for mine, g in slices
            ])
        self.keep(module.weight, weights)
        if module.bias is not None:
            every = tuple(range(2, x.dim()))
            self.keep(module.bias, gradient.sum(dim=every).view(self.workers, -1, gradient.shape[1]).sum(dim=1))
        if not of_input:
            return None
        if kernels := self._of_few_channels(x):
            return kernels.convolved(gradient, kernels.turned(weight))
        return torch.ops.aten.convolution_backward(gradient, x, weight, None, *self.more, (True, False, False))[0]

    def _of_few_channels(self, x: Tensor) -> Any:
        """Kernels, if it is one for which libraries are slow."""
        kernels = kernels_for(x)
        few = kernels and kernels.fits(self.module, self.padding, kernels.NARROW)
        return kernels if few and kernels.keeps_size(self.module, self.padding) else None


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

    def forward(self, x: Tensor, weight: Tensor) -> Tensor:
        return functional.linear(x, weight, like(self.module.bias, weight))

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

    def forward(self, x: Tensor, weight: Tensor) -> Tensor:
        return functional.embedding(x, weight)

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
    tracked = module.track_running_stats and module.momentum is not None
    if module.training and module.bias is not None and tracked and (kernels := kernels_for(x)):
        return _batch_norm_at_once(kernels, module, x, workers, keep)
    weight, bias = (
        _copies(each, workers, keep) if isinstance(each, nn.Parameter) else [each] * workers
        for each in (module.weight, module.bias)
    )
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


def _batch_norm_at_once(kernels: Any, module: Any, x: Tensor, workers: int, keep: Keep) -> Tensor:
    """The same by kernels for GPUs."""
    values = x.numel() // x.shape[1] // workers

    def seen(mean: Tensor, variance: Tensor) -> None:
        module.num_batches_tracked += 1
        for running, of_each, factor in (
            (module.running_mean, mean, 1.0), (module.running_var, variance, values / (values - 1)),
        ):  # fmt: skip
            running.mul_(1 - module.momentum).add_(of_each.mean(dim=0), alpha=factor * module.momentum)

    def kept(weight: Tensor, bias: Tensor) -> None:
        if isinstance(module.weight, nn.Parameter):
            keep(module.weight, weight)
        keep(module.bias, bias)

    weight = module.weight if module.weight is not None else torch.ones_like(module.bias)
    return kernels.Normalised.apply(x, weight, module.bias, workers, module.eps, seen, kept)  # type: ignore[no-any-return]


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
